"""The examples and the documented Python programs without PyTorch run and say what they should."""

import re

import pytest

from conftest import ROOT
from documents import programs, runs_and_prints


def test_numpy_mlp_trains_and_records(command, tmp_path):
    done = command(ROOT / "examples/python/numpy_mlp.py", tmp_path / "stats.csv")
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"train loss ([\d.]+)", done.stdout)]
    accuracies = [float(accuracy) for accuracy in re.findall(r"test accuracy ([\d.]+) %", done.stdout)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.1 * losses[0], done.stdout
    assert accuracies[-1] > 90
    evds, checks = map(int, re.search(r"(\d+) eigendecompositions where .* done (\d+)", done.stdout).groups())
    assert 0 < evds < checks / 2
    plotted = command("-m", "foam", "plot", tmp_path / "stats.csv")
    assert plotted.returncode == 0, plotted.stderr


PROGRAMS = programs(with_torch=False)


def test_the_readme_has_a_program_for_python_and_one_for_jax():
    readme = [case.values[0] for case in PROGRAMS if case.id.startswith("README")]
    assert any("foam.Optimizer(" in program for program in readme)
    assert any("from foam.jax import foam" in program for program in readme)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_documented_programs_run(program, command, tmp_path):
    runs_and_prints(program, command, tmp_path)


def test_the_example_with_ctypes_alone_is_its_page_s_program(command):
    (program,) = (case.values[0] for case in PROGRAMS if case.id.startswith("docs/ctypes.md"))
    assert program == (ROOT / "examples/python/ctypes_only.py").read_text()
    assert sum(bool(line.strip()) for line in program.splitlines()) < 40, "it stays short"
    imported = re.findall(r"^(?:import|from) (\w+)", program, re.M)
    assert imported == ["os", "ctypes"], "neither the package nor NumPy"
    done = command(ROOT / "examples/python/ctypes_only.py")
    assert done.returncode == 0, done.stderr
    assert abs(float(done.stdout.split()[1])) < 0.1, done.stdout


def test_the_table_of_memory_is_what_its_program_prints(command, tmp_path):
    (program,) = (case.values[0] for case in PROGRAMS if case.id.startswith("docs/memory.md"))
    printed = command("-c", program, cwd=tmp_path).stdout.splitlines()
    lines = (ROOT / "docs/memory.md").read_text().splitlines()
    assert len(printed) == 4 and set(printed) <= set(lines), printed
