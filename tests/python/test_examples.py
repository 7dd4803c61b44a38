"""The examples, the Python programs of the README and of the package's page, and the examples of the modules run."""

import re

import pytest

from conftest import ROOT


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


def test_torch_digits_trains_and_resumes(command):
    done = command(ROOT / "examples/torch/digits.py")
    assert done.returncode == 0, done.stderr
    for label in ("AdamW", "FOAM"):
        curve = re.search(rf"^{label} +loss by epoch ([\d. ]+)  test ([\d.]+) %", done.stdout, re.M)
        losses = [float(loss) for loss in curve[1].split()]
        assert losses[-1] < 0.05 * losses[0] and float(curve[2]) > 88, done.stdout


README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)


def test_the_readme_has_a_program_for_python_one_for_pytorch_and_one_for_jax():
    assert any("foam.Optimizer(" in program for program in PROGRAMS)
    assert any("from foam.jax import foam" in program for program in PROGRAMS)
    assert any("foam.torch.FOAM(" in program for program in PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.splitlines()[0])
def test_the_readmes_programs_run(program, command, tmp_path):
    done = command("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "it prints something"


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
