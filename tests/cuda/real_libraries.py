"""Loads NVIDIA's real libraries, which needs no GPU, and looks up every symbol that libfoam uses.

    real_libraries.py FOLDER [SYMBOLS]

FOLDER holds the installed packages of one version of CUDA (site-packages); two versions cannot share a process.
SYMBOLS is src/device/gpu/cuda/symbols.txt: on each line a library (cuda, cublas, cusolver, nvrtc), a symbol, and nothing
more, or the version of CUDA that brought it, or the word optional. The driver's library is not to be had without a
driver, so its symbols are looked up in cuda.h.
"""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Tuple

ROOT = Path(__file__).resolve().parents[2]

#: CUDA's libraries under the names of their files, of any version.
FILES = {"nvrtc": "libnvrtc.so.*", "cublas": "libcublas.so.*", "cusolver": "libcusolver.so.*"}

Version = Tuple[int, int]


class Symbol(NamedTuple):
    """One line of the list."""

    library: str
    name: str
    since: Version
    optional: bool


def main(folder: Path, symbols: Path) -> int:
    """Prints what was found; 1 if something is missing."""
    wanted = list(read_symbols(symbols))
    libraries = {library: load(folder, library) for library in FILES}
    toolkit = nvrtc_version(libraries["nvrtc"])
    header = find(folder, "include/cuda.h").read_text(encoding="utf-8", errors="replace")
    declared = set(re.findall(r"\bcu[A-Z]\w+", header))
    missing, later = [], []
    counts: Dict[str, int] = {}
    for symbol in wanted:
        there = symbol.name in declared if symbol.library == "cuda" else hasattr(libraries[symbol.library], symbol.name)
        if there:
            counts[symbol.library] = counts.get(symbol.library, 0) + 1
        elif symbol.optional or symbol.since > toolkit:
            later.append(symbol.name)
        else:
            missing.append(symbol)
    if later:
        print(f"not in this version, which the list allows: {', '.join(later)}")
    found = ", ".join(f"{count} symbols of {library}" for library, count in counts.items())
    print(f"CUDA {toolkit[0]}.{toolkit[1]} ({', '.join(described(libraries))}), loaded without a GPU: found {found}")
    for symbol in missing:
        print(f"missing: {symbol.library} {symbol.name}", file=sys.stderr)
    return 1 if missing else 0


def read_symbols(path: Path) -> Iterator[Symbol]:
    """The list's lines."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) < 2 or words[0] not in ("cuda", *FILES):
            sys.exit(f"{path}:{number}: '{line}': expected one of cuda, {', '.join(FILES)}, then a symbol")
        note = " ".join(words[2:])
        version = re.search(r"(\d+)\.(\d+)", note)
        if note and not version and "optional" not in note:
            sys.exit(f"{path}:{number}: '{note}': expected a version of CUDA, or optional, or nothing")
        since = (int(version[1]), int(version[2])) if version else (0, 0)
        # An optional symbol that came with a known version is not optional from then on.
        yield Symbol(words[0], words[1], since, "optional" in note and not version)


def find(folder: Path, end: str) -> Path:
    """The one file of NVIDIA's packages whose path ends so."""
    found: List[Path] = sorted(folder.glob(f"nvidia/*/{end}"))
    if len(found) != 1:
        names = ", ".join(map(str, found)) or "none"
        sys.exit(f"{folder}: expected one nvidia/*/{end}, found {names}; see tests/cuda/requirements.txt")
    return found[0]


def load(folder: Path, library: str) -> ctypes.CDLL:
    """A library with all that it needs, by its path."""
    path = find(folder, f"lib/{FILES[library]}")
    try:
        return ctypes.CDLL(str(path))
    except OSError as cause:
        sys.exit(f"{path} cannot be loaded: {cause}")


def nvrtc_version(nvrtc: ctypes.CDLL) -> Version:
    """NVRTC's version, which is its toolkit's."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def described(libraries: Dict[str, ctypes.CDLL]) -> Iterator[str]:
    """Each library's own word on its version."""
    for name, call in (("cublas", "cublasGetProperty"), ("cusolver", "cusolverGetProperty")):
        numbers = []
        for part in range(3):
            value = ctypes.c_int()
            getattr(libraries[name], call)(part, ctypes.byref(value))
            numbers.append(str(value.value))
        yield f"{name} {'.'.join(numbers)}"


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    listed = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "src/device/gpu/cuda/symbols.txt"
    sys.exit(main(Path(sys.argv[1]), listed))
