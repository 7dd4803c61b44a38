"""``python -m foam doctor``: what is loaded, from where, and what was tried, as a table for an issue.

The exit status is 0 if the library can be used, CUDA or not. With ``--plan`` it prints instead what the optimizer
would need for a model: blocks, factors, bytes and products. With a file of statistics it prints instead what keeps
that run from working, with the option to change and a value to try.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import _library, _structs, _version
from ._safetensors import read_shapes
from .errors import FoamError, InvalidArgumentError, LibraryError

__all__ = ["main", "plan_main", "run_main"]

#: CPU features that the kernels profit from.
_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve")

#: How a shape is given to ``--plan``.
_SHAPE = "NAME=768x3072 or a safetensors file"

_PACKAGES = ("numpy", "torch", "jax", "matplotlib")


class Row(NamedTuple):
    """One line of the report."""

    topic: str
    item: str
    result: str


def main() -> int:
    """Prints the report; 1 if the library cannot be used, else 0."""
    rows = list(_package()) + list(_machine())
    usable, library_rows = _library_rows()
    rows += library_rows
    rows += list(_cuda()) + list(_frameworks())
    print(_table(rows))
    if not usable:
        print(
            "\nThe library cannot be used. Install the wheel, or build it (cargo build --release) and set "
            f"{_library.VARIABLE} to its path."
        )
    return 0 if usable else 1


def plan_main(words: Sequence[str], preset: Optional[str], settings: Sequence[str]) -> int:
    """Prints the plan of shapes such as ``w=768x3072`` and of safetensors files; 2 if they or an option are wrong."""
    from .optimizer import plan

    try:
        options = dict(_pair(setting, "KEY=VALUE") for setting in settings)
        shapes = dict(pair for word in words for pair in _shapes(word))
        print(plan(shapes, preset=preset, **options).table())
    except (OSError, FoamError) as cause:
        print(f"doctor: {cause}", file=sys.stderr)
        return 2
    return 0


#: Factors that are named for each finding.
_NAMED = 5


def run_main(path: str, policy: Optional[str]) -> int:
    """Prints the findings about the runs of a file of statistics; 0 without any, 1 with some, 2 if it cannot be read."""
    from ._diagnosis import diagnose
    from ._runs import choose, read_runs

    healthy = True
    try:
        for run in choose(read_runs(path), policy, path):
            found, each = diagnose(run.judged_by(), [run.statistics(factor) for factor in run.factors])
            healthy = healthy and not found
            print(f"{run.policy}: {len(run.factors)} factors, {_findings(len(found))}")
            for name, said in found.items():
                print(f"  {name}: {said}")
                concerned = [factor for factor, own in zip(run.factors, each) if name in own]
                for factor in concerned[:_NAMED]:
                    print(f"    {factor.param}, block {factor.block}, axis {factor.axis} ({factor.dim})")
                if len(concerned) > _NAMED:
                    print(f"    and {len(concerned) - _NAMED} more: python -m foam report {path}")
    except (OSError, FoamError) as cause:
        print(f"doctor: {cause}", file=sys.stderr)
        return 2
    return 0 if healthy else 1


def _findings(count: int) -> str:
    return "nothing is wrong" if count == 0 else f"{count} finding{'s' if count > 1 else ''}"


def _shapes(word: str) -> Iterator[Tuple[str, "_Shape"]]:
    if "=" not in word:
        for name, (shape, dtype) in read_shapes(word).items():
            yield name, _Shape(shape, dtype)
        return
    name, sides = _pair(word, _SHAPE)
    try:
        yield name, _Shape(tuple(int(side) for side in sides.split("x") if side), "float32")
    except ValueError:
        raise InvalidArgumentError(f"'{word}': expected {_SHAPE}") from None


def _pair(word: str, expected: str) -> Tuple[str, str]:
    key, sign, value = word.partition("=")
    if not key or not sign:
        raise InvalidArgumentError(f"'{word}': expected {expected}")
    return key, value


class _Shape(NamedTuple):
    """All that a plan has to know of an array."""

    shape: Tuple[int, ...]
    dtype: str


def _table(rows: List[Row]) -> str:
    """A Markdown table, aligned so that it reads as plain text too."""
    head = Row("topic", "item", "result")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in (0, 1)]
    lines, last = [], ""
    for row in [head, *rows]:
        topic = "" if row.topic == last else row.topic
        last = row.topic
        lines.append(f"| {topic:<{widths[0]}} | {row.item:<{widths[1]}} | {row.result} |")
        if row is head:
            lines.append(f"|{'-' * (widths[0] + 2)}|{'-' * (widths[1] + 2)}|--------|")
    return "\n".join(lines)


def _package() -> Iterator[Row]:
    yield Row("package", "foam", _version.__version__)
    yield Row("package", "folder", os.path.dirname(os.path.abspath(__file__)))
    yield Row("package", "Python", f"{platform.python_version()} ({sys.executable})")


def _machine() -> Iterator[Row]:
    model, features = _cpu()
    yield Row("machine", "system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    libc = " ".join(platform.libc_ver())
    yield Row("machine", "C library", libc.strip() or "unknown")
    yield Row("machine", "CPU", model)
    yield Row("machine", "CPU features", " ".join(features) or "unknown")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Row("machine", "threads", f"{usable} of {os.cpu_count()} usable by this process")


def _cpu() -> Tuple[str, List[str]]:
    model, flags = platform.processor() or platform.machine(), set()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    model = value.strip()
                elif key.strip() in ("flags", "Features"):
                    flags = set(value.split())
                    break
    except OSError:
        pass
    return model, [feature for feature in _FEATURES if feature in flags]


def _library_rows() -> Tuple[bool, List[Row]]:
    library, problem = None, "not run: there is no library"
    try:
        library = _library.load()
        problem = _trial()
    except FoamError as cause:
        if library is not None:
            problem = f"failed: {_one_line(cause.message)}"
    rows = []
    for attempt in _library.attempts():
        outcome = f"not used: {_one_line(attempt.problem)}" if attempt.problem else "loaded"
        rows.append(Row("library", f"{attempt.how}: {attempt.target}", outcome))
    named = os.environ.get(_library.VARIABLE)
    rows.append(Row("library", _library.VARIABLE, named if named else "not set"))
    if library is not None:
        rows.append(Row("library", "path", os.path.realpath(library.path)))
        rows.append(Row("library", "found by", library.how))
        needed = f"{_structs.ABI_MAJOR}.{_structs.ABI_MINOR}"
        rows.append(Row("library", "ABI", f"{library.abi[0]}.{library.abi[1]} (this package needs {needed})"))
        rows.append(Row("library", "build", library.build_info))
    rows.append(Row("library", "trial step", problem or "passed"))
    return not problem, rows


def _trial() -> str:
    """Steps a small matrix until its factors have been decomposed; what went wrong, or nothing."""
    from array import array

    from .optimizer import Optimizer

    values = array("f", [0.5] * 12)
    weight = memoryview(values).cast("B").cast("f", (3, 4))
    with Optimizer({"trial": weight}, check_period=2, merge_dims=False, num_threads=1) as optimizer:
        for step in range(4):
            gradient = array("f", [((place * 7 + step) % 5 - 2) * 1e-3 for place in range(12)])
            optimizer.step({"trial": memoryview(gradient).cast("B").cast("f", (3, 4))})
        statistics = optimizer.stats()
    if statistics["steps"] != 4 or statistics["evd_calls"] < 2:
        return f"took {statistics['steps']} of 4 steps with {statistics['evd_calls']} eigendecompositions"
    return "" if all(value == value for value in values) else "gave values that are not numbers"


def _cuda() -> Iterator[Row]:
    """What the library itself finds of CUDA: each line of its report starts with what it is about."""
    for line in _probe().splitlines():
        item, _, result = line.partition(": ")
        yield Row("CUDA", item, _one_line(result))
    yield Row("CUDA", "library's backends", _backends())


def _probe() -> str:
    size = ctypes.c_size_t(0)
    try:
        library = _library.load()
        library.call("foam_cuda_probe", None, None, 0, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        library.call("foam_cuda_probe", None, text, len(text), ctypes.byref(size))
    except LibraryError:
        return "cuda: not looked for: there is no library"
    except FoamError as cause:
        return f"cuda: not looked for: {cause.message}"
    return text.value.decode("utf-8", "replace")


def _backends() -> str:
    try:
        info = _library.load().build_info
    except FoamError:
        return "unknown: no library"
    return info.partition("backends: ")[2] or "unknown"


def _frameworks() -> Iterator[Row]:
    for name, version in _versions().items():
        yield Row("optional", name, version)


def _versions() -> Dict[str, str]:
    """Versions without importing anything: importing torch takes seconds and may itself be what is broken."""
    from importlib import metadata

    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _one_line(text: str) -> str:
    return " ".join(text.split())
