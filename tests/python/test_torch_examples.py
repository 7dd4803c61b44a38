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


#: What the programs of the package's page take for granted.
PRELUDE = """
import sys, types
import numpy, torch
model, array, writer = torch.nn.Linear(4, 3), numpy.ones((4, 3), "f4"), types.SimpleNamespace(add_scalar=print)
lightning = types.ModuleType("lightning.pytorch")
lightning.Callback = object
sys.modules.update({"lightning": types.ModuleType("lightning"), "lightning.pytorch": lightning})
sys.modules["wandb"] = types.SimpleNamespace(run=types.SimpleNamespace(log=print))
Trainer = dict
"""


def test_the_programs_of_the_packages_page_run(command, tmp_path):
    page = (ROOT / "bindings/python/README.md").read_text()
    programs = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(programs) == 4
    for program in programs:
        setting = "" if "optimizer = " in program else "import foam\noptimizer = foam.Optimizer([array])\n"
        done = command("-c", PRELUDE + setting + program, cwd=tmp_path)
        assert done.returncode == 0, program + done.stderr
    assert (tmp_path / "stats.csv").exists()


def test_the_modules_examples_run():
    import doctest

    import foam.torch
    from foam import _torch_model, optimizer

    results = [doctest.testmod(module) for module in (foam, foam.torch, _torch_model, optimizer)]
    assert [result.failed for result in results] == [0, 0, 0, 0] and all(result.attempted for result in results)
