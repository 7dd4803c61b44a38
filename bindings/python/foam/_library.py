"""Finds ``libfoam``, loads it once, and declares its functions.

The functions are taken from the library's table (``foam_get_api``).

Looked for in this order; the first that loads is used:

1. the file that the environment variable ``FOAM_LIBRARY`` names, and then nothing else;
2. ``foam/lib/`` inside this package, where the wheel has it;
3. what the system's loader finds (``LD_LIBRARY_PATH``, ldconfig's directories);
4. ``target/release`` and ``target/debug``, if this package lies in a source checkout.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from ctypes import POINTER, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import _structs
from .errors import FoamError, LibraryError, from_record

__all__ = ["Attempt", "Library", "load", "attempts"]

#: The environment variable that names the library.
VARIABLE = "FOAM_LIBRARY"
#: The one that names folders with NVIDIA's libraries.
CUDA_VARIABLE = "FOAM_CUDA_LIBRARY_PATH"

_PACKAGE = Path(__file__).resolve().parent
_FILE = "libfoam.dylib" if sys.platform == "darwin" else "libfoam.so"
#: While the major version is 0 a minor one may break callers, so that both are in the name.
_ABI = f"0.{_structs.ABI_MINOR}" if _structs.ABI_MAJOR == 0 else str(_structs.ABI_MAJOR)
_SONAME = "libfoam.dylib" if sys.platform == "darwin" else f"libfoam.so.{_ABI}"


class Attempt(NamedTuple):
    """One place where the library was looked for."""

    #: Why this place: "FOAM_LIBRARY", "package", "system loader" or "source checkout".
    how: str
    #: A path, or a name for the system's loader.
    target: str
    #: What came of it; empty if the library was loaded.
    problem: str


class Library:
    """The loaded library and how it was found."""

    def __init__(self, functions: Any, path: str, how: str) -> None:
        self.functions = functions
        self.path = path
        self.how = how
        version = functions.foam_abi_version()
        self.abi: Tuple[int, int] = (version >> 16, version & 0xFFFF)
        self.build_info: str = functions.foam_build_info().decode("utf-8", "replace")

    def call(self, name: str, *arguments) -> None:
        """Calls a function that returns a status, and raises the typed error if it is not ``FOAM_OK``."""
        record = _structs.Error()
        status = getattr(self.functions, name)(*arguments, ctypes.byref(record))
        if status != _structs.OK:
            raise from_record(record, status)

    def listed(self, name: str, kind: Any, *arguments) -> Any:
        """The array of structs that a function fills which is asked for their number first."""
        count, size = ctypes.c_size_t(0), ctypes.sizeof(kind)
        self.call(name, *arguments, None, size, 0, ctypes.byref(count))
        items = (kind * count.value)()
        self.call(name, *arguments, items, size, count.value, ctypes.byref(count))
        return items


_lock = threading.Lock()
_loaded: Optional[Library] = None
_attempts: List[Attempt] = []


def load() -> Library:
    """The library; found and loaded at the first call, the same object afterwards."""
    global _loaded
    with _lock:
        if _loaded is None:
            _attempts.clear()
            _name_cuda_folders()
            _loaded = _find()
        return _loaded


def attempts() -> List[Attempt]:
    """What the last search tried, in order."""
    return list(_attempts)


def _name_cuda_folders() -> None:
    """Tells the library where NVIDIA's Python packages have cuBLAS and cuSOLVER, which no loader's path names."""
    if CUDA_VARIABLE in os.environ:
        return
    places = (Path(entry or ".") / "nvidia" for entry in sys.path)
    found = [str(folder.resolve()) for place in places for folder in sorted(place.glob("*/lib"))]
    if found:
        os.environ[CUDA_VARIABLE] = ":".join(dict.fromkeys(found))


def _find() -> Library:
    for how, target, missing in _candidates():
        try:
            if missing:
                raise LibraryError(missing)
            functions = _Functions(ctypes.CDLL(target))
            library = Library(functions, _mapped_path(functions, target), how)
        except (OSError, AttributeError, FoamError) as cause:
            _attempts.append(Attempt(how, target, str(cause)))
            continue
        _attempts.append(Attempt(how, library.path, ""))
        return library
    tried = "".join(f"\n  {how}: {target}: {problem}" for how, target, problem in _attempts)
    raise LibraryError(
        f"libfoam was not found or could not be used. Tried:{tried}\n"
        f"Install the wheel, or build the library (cargo build --release) and set {VARIABLE} to its path."
    )


def _candidates() -> Iterator[Tuple[str, str, str]]:
    """How, target, and why not if that is known without trying."""
    named = os.environ.get(VARIABLE)
    if named:
        missing = "" if os.path.isfile(named) else "no such file"
        # An absolute path, or the loader would search for a name without a slash.
        yield VARIABLE, os.path.abspath(named), missing
        return
    folder = _PACKAGE / "lib"
    inside = sorted(folder.glob(f"{_FILE}*")) if folder.is_dir() else []
    for path in inside:
        yield "package", str(path), ""
    if not inside:
        yield "package", str(folder / _FILE), "no such file"
    yield "system loader", _SONAME, ""
    # bindings/python/foam of a checkout has the manifest three folders up.
    root = _PACKAGE.parents[2] if len(_PACKAGE.parents) > 2 else _PACKAGE
    if (root / "Cargo.toml").is_file() and (root / "include" / "foam.h").is_file():
        for profile in ("release", "debug"):
            path = root / "target" / profile / _FILE
            yield "source checkout", str(path), "" if path.is_file() else "no such file (cargo build makes it)"


class _Functions:
    """The functions of ``foam.h`` as attributes, each with its types."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library  # keeps it loaded
        _check_version(library)
        table = _table(library)
        for name, (result, arguments) in _prototypes().items():
            address = getattr(table, name[len("foam_") :])
            setattr(self, name, ctypes.CFUNCTYPE(result, *arguments)(address))


def _check_version(library: ctypes.CDLL) -> None:
    library.foam_abi_version.restype = c_uint32
    library.foam_abi_version.argtypes = []
    version = library.foam_abi_version()
    major, minor = version >> 16, version & 0xFFFF
    ours = (_structs.ABI_MAJOR, _structs.ABI_MINOR)
    # Additions raise the minor version and keep old callers working; anything else raises the major one.
    if major != ours[0] or minor < ours[1]:
        raise LibraryError(f"has ABI {major}.{minor}; this package needs {ours[0]}.{ours[1]} or a later {ours[0]}.x")


def _table(library: ctypes.CDLL) -> _structs.Api:
    """The library's table of functions."""
    if not hasattr(library, "foam_get_api"):
        raise LibraryError("has no foam_get_api: it is older than this package; build or install it anew")
    get = library.foam_get_api
    get.restype, get.argtypes = POINTER(_structs.Api), [c_uint32]
    table = get(_structs.API_VERSION)
    if not table:
        raise LibraryError(f"has no foam_api of version {_structs.API_VERSION}: it is older than this package")
    return table.contents


def _mapped_path(functions: Any, target: str) -> str:
    """Where the library really lies: the system's loader only got a name."""
    if os.path.isabs(target):
        return target
    address = ctypes.cast(functions.foam_abi_version, c_void_p).value or 0
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            for line in maps:
                fields = line.split(maxsplit=5)
                low, high = (int(end, 16) for end in fields[0].split("-"))
                if low <= address < high and len(fields) == 6:
                    return fields[5].strip()
    except (OSError, ValueError):
        pass
    return target


def _prototypes() -> Dict[str, Tuple[Any, List[Any]]]:
    """Result and argument types of every function of ``foam_api``."""
    handle, error, status, size_out = c_void_p, POINTER(_structs.Error), c_int32, POINTER(c_size_t)
    config, args = POINTER(_structs.Config), POINTER(_structs.StepArgs)
    stack = POINTER(_structs.Stack)
    place: List[Callable] = [c_int64, c_int64, c_int64]
    return {
        "foam_abi_version": (c_uint32, []),
        "foam_build_info": (c_char_p, []),
        "foam_status_name": (c_char_p, [c_int32]),
        "foam_cuda_probe": (status, [POINTER(c_int32), c_char_p, c_size_t, size_out, error]),
        "foam_config_init": (status, [config, c_uint32, c_char_p, error]),
        "foam_config_set": (status, [config, c_char_p, c_char_p, error]),
        "foam_config_get": (status, [config, c_char_p, c_char_p, c_size_t, error]),
        "foam_config_validate": (status, [config, error]),
        "foam_config_check_due": (status, [config, c_int64, POINTER(c_int32), error]),
        "foam_param_init": (status, [POINTER(_structs.Param), c_uint32, error]),
        "foam_create": (status, [config, POINTER(_structs.Param), c_size_t, POINTER(c_void_p), error]),
        "foam_create_ranks": (
            status,
            [config, POINTER(_structs.Comm), POINTER(_structs.Param), c_size_t, POINTER(c_void_p), error],
        ),
        "foam_plan_owners": (
            status,
            [config, POINTER(_structs.Param), c_size_t, c_int32, POINTER(_structs.BlockInfo), c_size_t]
            + [c_size_t, size_out, error],
        ),
        "foam_param_state_bytes": (status, [handle, c_int64, POINTER(c_uint64), error]),
        "foam_read_states": (status, [handle, POINTER(_structs.StatePart), c_size_t, error]),
        "foam_write_states": (status, [handle, POINTER(_structs.StatePart), c_size_t, c_uint64, c_uint64, error]),
        "foam_synchronize": (status, [handle, error]),
        "foam_destroy": (None, [handle]),
        "foam_step_args_init": (status, [args, c_uint32, error]),
        "foam_step": (status, [handle, args, error]),
        "foam_step_together": (status, [POINTER(handle), args, c_size_t, error]),
        "foam_set_option": (status, [handle, c_char_p, c_char_p, error]),
        "foam_get_option": (status, [handle, c_char_p, c_char_p, c_size_t, error]),
        "foam_plan_blocks": (
            status,
            [config, POINTER(_structs.Param), c_size_t, POINTER(_structs.BlockInfo), c_size_t, c_size_t, size_out, error],
        ),
        "foam_blocks": (status, [handle, POINTER(_structs.BlockInfo), c_size_t, c_size_t, size_out, error]),
        "foam_record_fields": (status, [POINTER(_structs.RecordField), c_size_t, c_size_t, size_out, error]),
        "foam_stack_ports": (
            status,
            [config, stack, c_int32, c_int32, POINTER(_structs.StackPort), c_size_t, c_size_t, size_out, error],
        ),
        "foam_stats": (status, [handle, POINTER(_structs.StatsInfo), error]),
        "foam_factor_stats": (
            status,
            [handle, POINTER(_structs.FactorInfo), c_size_t, c_size_t, size_out, error],
        ),
        "foam_factor_read": (
            status,
            [handle, *place, c_int32, POINTER(c_double), c_size_t, size_out, error],
        ),
        "foam_diagnosis": (status, [handle, c_char_p, c_size_t, size_out, error]),
        "foam_diagnose": (
            status,
            [
                POINTER(_structs.Config),
                POINTER(_structs.FactorInfo),
                c_size_t,
                c_size_t,
                POINTER(c_uint64),
                c_char_p,
                c_size_t,
                size_out,
                error,
            ],
        ),
        "foam_exact_gap": (status, [handle, *place, POINTER(c_double), error]),
        "foam_save_file": (status, [handle, c_char_p, error]),
        "foam_load_file": (status, [handle, c_char_p, error]),
        "foam_save_memory": (status, [handle, c_void_p, c_size_t, size_out, error]),
        "foam_load_memory": (status, [handle, c_void_p, c_size_t, error]),
        "foam_stack_init": (status, [stack, c_uint32, error]),
        "foam_stack_layout": (
            status,
            [config, stack, POINTER(_structs.StackBuffer), c_size_t, c_size_t, size_out, error],
        ),
        "foam_stack_workspace": (status, [config, stack, size_out, error]),
        "foam_stack_reset": (status, [config, stack, POINTER(_structs.Tensor), c_size_t, error]),
        "foam_stack_args_init": (status, [POINTER(_structs.StackArgs), c_uint32, error]),
        **{
            f"foam_stack_{verb}": (status, [config, stack, POINTER(_structs.StackArgs), error])
            for verb in ("accumulate", "check", "apply")
        },
        "foam_stack_trim": (None, []),
        **{
            f"foam_xla_{verb}{platform}": (c_void_p, [c_void_p])
            for verb in ("accumulate", "check", "apply")
            for platform in ("", "_cuda")
        },
    }
