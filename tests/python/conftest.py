"""What the tests share: where things are, and a C program to compare with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = sorted((ROOT / "tests" / "golden").glob("**/*.safetensors"))

# The models are small; threads of torch and OpenBLAS would only wait for each other. Before either is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The package of this checkout, also for a bare `pytest`.
sys.path.insert(0, str(ROOT / "bindings" / "python"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: run only with FOAM_TEST_ALL=1 (tests/support/python.rs)")


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def library() -> Path:
    """The shared library under test."""
    import foam

    return Path(foam.library_path()).resolve()


@pytest.fixture(scope="session")
def command():
    """Runs a Python program with the package on its path; gives the finished process."""

    def run(*arguments, environment=None, **options):
        variables = {**os.environ, "PYTHONPATH": str(ROOT / "bindings" / "python"), **(environment or {})}
        variables = {key: value for key, value in variables.items() if value is not None}
        words = [sys.executable, *map(str, arguments)]
        return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=300, **options)

    return run


@pytest.fixture(scope="session")
def c_program(tmp_path_factory, library):
    """`trajectory.c`, compiled against the header and linked with the library under test."""
    folder = tmp_path_factory.mktemp("c")
    for name in ("libfoam.so", "libfoam.so.0.1"):
        (folder / name).symlink_to(library)
    program = folder / "trajectory"
    compiler = os.environ.get("CC", "cc").split()
    source = ROOT / "tests" / "python" / "trajectory.c"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    link = [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lfoam"]
    subprocess.run([*compiler, *flags, str(source), "-o", str(program), *link], check=True)
    return program
