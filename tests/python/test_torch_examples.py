"""The PyTorch example and the documented programs with PyTorch run and say what they should."""

import re

import pytest

from conftest import ROOT
from documents import programs, runs_and_prints


def test_torch_digits_trains_and_resumes(command):
    done = command(ROOT / "examples/torch/digits.py")
    assert done.returncode == 0, done.stderr
    for label in ("AdamW", "FOAM"):
        curve = re.search(rf"^{label} +loss by epoch ([\d. ]+)  test ([\d.]+) %", done.stdout, re.M)
        losses = [float(loss) for loss in curve[1].split()]
        assert losses[-1] < 0.05 * losses[0] and float(curve[2]) > 88, done.stdout


PROGRAMS = programs(with_torch=True)


def test_the_readme_has_a_program_for_pytorch():
    assert any("foam.torch.FOAM(" in case.values[0] for case in PROGRAMS if case.id.startswith("README"))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_documented_programs_run(program, command, tmp_path):
    runs_and_prints(program, command, tmp_path)
