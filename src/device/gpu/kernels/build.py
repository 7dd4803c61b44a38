"""Compiles foam.cu to foam.ptx with NVIDIA's NVRTC, which needs neither a GPU nor a CUDA installation.

    build.py               writes foam.ptx
    build.py --check       fails, with the difference, if foam.ptx is not what foam.cu gives
    build.py --assemble    assembles foam.ptx with ptxas for every GPU generation, prints what each kernel uses, and
                           fails if one spills registers or needs a stack

The compilers are the ones pinned in tests/cuda/requirements.txt; tests/cuda/environment.sh installs them.
"""

from __future__ import annotations

import argparse
import ctypes
import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, NamedTuple, NoReturn, Optional, Tuple

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE.parents[3] / "tests/cuda/environment.sh"

#: The oldest GPU that is supported; the driver compiles the PTX for all later ones.
ARCHITECTURE = "compute_70"
#: No fast math. A product and a sum are fused only where the source says fma: the arithmetic is as written.
OPTIONS = (f"--gpu-architecture={ARCHITECTURE}", "--std=c++17", "-default-device", "--fmad=false")
#: The newest PTX that the driver of CUDA 12.2 takes.
PTX_VERSION = (8, 2)

#: What the PTX is assembled for, as far as the assembler knows it.
GENERATIONS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
#: Kernels that may have a stack frame, and how many bytes.
STACK_ALLOWED: Dict[str, int] = {}


def fail(message: str) -> NoReturn:
    """Ends the program with a message."""
    sys.exit(f"build.py: {message}")


def main() -> int:
    """Runs the command; the result is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--check", action="store_true", help="compare instead of writing")
    task.add_argument("--assemble", action="store_true", help="assemble foam.ptx and judge its kernels")
    parser.add_argument("--kernels", type=Path, default=HERE, metavar="FOLDER", help="where foam.cu and foam.ptx lie")
    parser.add_argument("--packages", type=Path, metavar="FOLDER", help="where NVIDIA's wheels are installed")
    parser.add_argument("--ptxas", type=Path, metavar="FILE", help="another assembler than the pinned one")
    chosen = parser.parse_args()
    if chosen.assemble:
        ptxas = chosen.ptxas or wheel_file(chosen.packages, "nvidia/cuda_nvcc/bin/ptxas", "nvidia-cuda-nvcc-cu12")
        return assemble(chosen.kernels / "foam.ptx", ptxas)
    library = wheel_file(chosen.packages, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia-cuda-nvrtc-cu12")
    made = compile_ptx(chosen.kernels, library)
    target = chosen.kernels / "foam.ptx"
    if chosen.check:
        return compare(target, made)
    target.write_text(made, encoding="ascii")
    print(f"wrote {target}: {made.count('.entry')} kernels, {len(made)} bytes")
    return 0


def wheel_file(packages: Optional[Path], name: str, wheel: str) -> Path:
    """A file of one of NVIDIA's wheels."""
    if packages is None:
        done = subprocess.run([str(ENVIRONMENT)], stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            fail(f"{ENVIRONMENT} failed with status {done.returncode}; its messages are above")
        packages = Path(done.stdout.splitlines()[-1])
    path = packages / name
    if not path.is_file():
        fail(f"there is no {path}: expected the package {wheel}, which tests/cuda/environment.sh installs")
    return path


# ---- compiling


def load_nvrtc(path: Path) -> ctypes.CDLL:
    """NVRTC with its functions declared."""
    try:
        nvrtc = ctypes.CDLL(str(path))
    except OSError as cause:
        fail(f"NVRTC cannot be loaded: {cause}")
    text = ctypes.c_char_p
    texts = ctypes.POINTER(text)
    program = ctypes.c_void_p
    nvrtc.nvrtcGetErrorString.restype = text
    nvrtc.nvrtcCreateProgram.argtypes = [ctypes.POINTER(program), text, text, ctypes.c_int, texts, texts]
    nvrtc.nvrtcCompileProgram.argtypes = [program, ctypes.c_int, texts]
    for part in ("ProgramLog", "PTX"):
        getattr(nvrtc, f"nvrtcGet{part}Size").argtypes = [program, ctypes.POINTER(ctypes.c_size_t)]
        getattr(nvrtc, f"nvrtcGet{part}").argtypes = [program, text]
    nvrtc.nvrtcDestroyProgram.argtypes = [ctypes.POINTER(program)]
    return nvrtc


def compile_ptx(folder: Path, library: Path) -> str:
    """The PTX of foam.cu, under a heading of our own."""
    nvrtc = load_nvrtc(library)
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    source = folder / "foam.cu"
    if not source.is_file():
        fail(f"there is no {source}")
    # Our own headers are given by name and text, so that no path can get into the PTX.
    headers = sorted(folder.glob("*.cuh"))
    texts = strings([header.read_bytes() for header in headers])
    names = strings([header.name.encode() for header in headers])
    program = ctypes.c_void_p()
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source.read_bytes(), b"foam.cu", len(headers), texts, names
    )
    if status != 0:
        fail(f"nvrtcCreateProgram: {nvrtc.nvrtcGetErrorString(status).decode()}")
    options = strings([option.encode() for option in OPTIONS])
    status = nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options)
    log = output(nvrtc, program, "ProgramLog").strip()
    if log:
        print(log, file=sys.stderr)
    if status != 0:
        fail(f"{source}: {nvrtc.nvrtcGetErrorString(status).decode()}; the compiler's messages are above")
    ptx = output(nvrtc, program, "PTX")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return headed(ptx, f"{major.value}.{minor.value}")


def strings(values: List[bytes]) -> "ctypes.Array[ctypes.c_char_p]":
    """An array of C strings."""
    return (ctypes.c_char_p * len(values))(*values)


def output(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, part: str) -> str:
    """The log or the PTX of a program."""
    size = ctypes.c_size_t()
    status = getattr(nvrtc, f"nvrtcGet{part}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(max(size.value, 1))
    status = status or getattr(nvrtc, f"nvrtcGet{part}")(program, buffer)
    return "" if status != 0 else buffer.value.decode("utf-8", "replace")


def headed(ptx: str, version: str) -> str:
    """PTX under a heading of ours instead of the compiler's, which names its build."""
    found = re.search(r"^\.version (\d+)\.(\d+)$", ptx, re.MULTILINE)
    if not found:
        fail("NVRTC gave no PTX")
    if (int(found[1]), int(found[2])) > PTX_VERSION:
        older = ".".join(map(str, PTX_VERSION))
        fail(f"NVRTC {version} gives PTX {found[1]}.{found[2]}, which older drivers refuse; expected {older}")
    lines = (
        "The kernels of foam.cu. Made by build.py; do not edit.",
        f"NVRTC {version}: {' '.join(OPTIONS)}",
    )
    head = "".join(f"// {line}\n" for line in lines)
    # NVRTC's own header leaves 36 constants behind that nothing refers to.
    unused = re.compile(r"^\.global .* _ZN\w+2nv6target\w+(\[\d+\])?( = .*)?;\n", re.MULTILINE)
    return head + "\n" + unused.sub("", ptx[found.start() :]).rstrip() + "\n"


def compare(target: Path, made: str) -> int:
    """0 if the file holds what was made; else the difference is printed."""
    kept = target.read_text(encoding="ascii") if target.is_file() else ""
    if kept == made:
        print(f"foam.ptx is what foam.cu gives: {made.count('.entry')} kernels, {len(made)} bytes")
        return 0
    sides = (kept.splitlines(True), made.splitlines(True))
    sys.stdout.writelines(difflib.unified_diff(*sides, fromfile="foam.ptx", tofile="made from foam.cu"))
    what = "is not what foam.cu gives" if kept else "is missing"
    print(f"build.py: {target} {what}; run {Path(__file__).name} to write it anew", file=sys.stderr)
    return 1


# ---- assembling


class Use(NamedTuple):
    """What the assembler says that a function uses."""

    registers: int
    shared: int
    stack: int
    spills: int


def assemble(ptx: Path, ptxas: Path) -> int:
    """0 if the PTX assembles for every generation without spills and stack frames."""
    if not ptx.is_file():
        fail(f"there is no {ptx}; run {Path(__file__).name} to make it")
    known = run(ptxas, "--help").stdout
    version = re.search(r"release (\d+\.\d+)", run(ptxas, "--version").stdout)
    generations = [name for name in GENERATIONS if f"'{name}'" in known]
    left_out = [name for name in GENERATIONS if name not in generations]
    if not generations:
        fail(f"{ptxas} knows none of {', '.join(GENERATIONS)}")
    uses: Dict[str, Dict[str, Use]] = {}
    problems = []
    with tempfile.TemporaryDirectory() as scratch:
        for generation in generations:
            arguments = ("--verbose", "--warn-on-spills", f"--gpu-name={generation}", f"--output-file={scratch}/cubin")
            done = run(ptxas, *arguments, str(ptx))
            said = done.stdout + done.stderr
            if done.returncode != 0:
                problems.append(f"{generation}: ptxas failed with status {done.returncode}:\n{said.rstrip()}")
                continue
            functions, entries = read_uses(said)
            for name, use in functions.items():
                uses.setdefault(name, {})[generation] = use
                problems += judge(name, generation, use)
            if entries != ptx.read_text(encoding="ascii").count(".entry"):
                problems.append(f"{generation}: ptxas reports on {entries} kernels, not on all of them:\n{said}")
    print(f"ptxas {version[1] if version else '?'}: registers of each kernel; bytes of shared memory")
    print(table(uses, generations))
    if left_out:
        print(f"not known to this ptxas: {', '.join(left_out)}")
    for problem in problems:
        print(f"build.py: {problem}", file=sys.stderr)
    if problems:
        return 1
    most, name = max((use.registers, name) for name, found in uses.items() for use in found.values())
    assembled = f"{len(uses)} kernels assemble for {', '.join(generations)}"
    print(f"{assembled}: no spills, no stack, at most {most} registers ({name})")
    return 0


def run(*command: object) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end, whatever its status."""
    try:
        return subprocess.run([str(word) for word in command], capture_output=True, text=True)
    except OSError as cause:
        fail(f"{command[0]} cannot be run: {cause}")


def read_uses(said: str) -> Tuple[Dict[str, Use], int]:
    """What `ptxas --verbose` says of each function, and how many of them are kernels."""
    uses, name, entries = {}, "", 0
    for line in said.splitlines():
        if re.search(r"Compiling entry function", line):
            entries += 1
        elif found := re.search(r"Function properties for (\S+)", line):
            name = found[1]
            uses[name] = Use(0, 0, 0, 0)
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            uses[name] = uses[name]._replace(stack=int(found[1]), spills=int(found[2]) + int(found[3]))
        elif found := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            uses[name] = uses[name]._replace(registers=int(found[1]), shared=int(shared[1]) if shared else 0)
    return uses, entries


def judge(name: str, generation: str, use: Use) -> List[str]:
    """What is wrong with a function."""
    problems = []
    if use.spills:
        problems.append(f"{generation}: {name} spills {use.spills} bytes of registers")
    if use.stack > STACK_ALLOWED.get(name, 0):
        problems.append(f"{generation}: {name} has a stack frame of {use.stack} bytes")
    return problems


def table(uses: Dict[str, Dict[str, Use]], generations: List[str]) -> str:
    """Kernels by generations."""
    rows = [["kernel", *generations, "shared", "stack", "spills"]]
    for name, by_generation in uses.items():
        found = by_generation.values()
        most = [str(max(use[column] for use in found)) for column in (1, 2, 3)]
        cells = (by_generation.get(generation) for generation in generations)
        rows.append([name, *(str(use.registers) if use else "-" for use in cells), *most])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join("  ".join(line) for line in lines)


if __name__ == "__main__":
    sys.exit(main())
