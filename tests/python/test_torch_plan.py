"""What an optimizer needs is known before it is made, and is what it then takes."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import foam
from conftest import ROOT
from foam.torch import FOAM
from models import OPTIONS, network

SHAPES = {
    "matrix": (40, 30),
    "long": (70, 3),
    "kernel": (8, 4, 3, 3),
    "vector": (33,),
    "scalar": (),
    "cube": (20, 20, 20),
}
SETTINGS = [{}, {"merge_dims": False}, {"max_factor_dim": 16, "merge_dims": False}, {"grafting": "none", "beta1": 0.0}]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_plan_is_what_the_optimizer_takes(options, dtype):
    arrays = {name: np.ones(shape, dtype) for name, shape in SHAPES.items()}
    planned = foam.plan(arrays, preset="reference", **options)
    with foam.Optimizer(arrays, preset="reference", **options) as optimizer:
        stats, memory, factors = optimizer.stats(), optimizer.memory(), optimizer.factor_stats()
    # The arrays of a state are aligned; nothing else comes on top.
    arrays_at_most = 16 * len(SHAPES) * 6
    assert planned.state_bytes == memory["total"]
    assert 0 <= stats["state_bytes_host"] - memory["total"] <= 256 * arrays_at_most
    assert memory["params"] == {param.name: param.state_bytes for param in planned.params}
    assert memory["workspace"] == stats["workspace_bytes"]
    assert sum(len(sides) for param in planned.params for sides in param.factors) == stats["factors"] == len(factors)
    assert planned.blocks == stats["blocks"]
    for param in planned.params:
        found = [factor["dim"] for factor in factors if factor["param"] == param.name]
        assert [side for sides in param.factors for side in sides] == found


def test_products_and_operations_are_counted():
    (param,) = foam.plan({"w": (64, 32)}, merge_dims=False).params
    # G Gᵀ and Gᵀ G into the statistics, L G and G R for the direction, two operations per multiplication.
    assert param.products == 4 and param.flops == 2 * 2 * (64 * 64 * 32 + 64 * 32 * 32)
    # Without inverse roots, and with SOAP, the direction goes into the basis and back.
    for options in ({"keep_inverse_root": False}, {"preset": "soap"}):
        (param,) = foam.plan({"w": (64, 32)}, merge_dims=False, **options).params
        assert param.products == 6 and param.flops == 2 * 3 * (64 * 64 * 32 + 64 * 32 * 32)
    (param,) = foam.plan({"w": foam.Param((64, 32), grafting_only=True)}).params
    assert (param.factors, param.products, param.flops) == ((), 0, 0)


def test_a_model_on_the_meta_device_is_planned_without_memory():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(20000, 30000, dtype=torch.bfloat16), nn.Linear(8, 8))
    planned = foam.plan(model.named_parameters(), max_factor_dim=8192, merge_dims=False)
    large, small = planned.params[0], planned.params[2]
    # Two matrices in float32 for each of 12 blocks' factors, and two for its elements.
    assert 14e9 < large.state_bytes < 15e9 and len(large.factors) == 12 and large.dtype == "bfloat16"
    assert small.factors == ((8, 8),)
    assert re.search(r"0\.weight +\| 30000×20000 bfloat16 \| 12 ", planned.table())


def test_the_torch_optimizer_says_what_its_parameters_take():
    model = network()
    optimizer = FOAM(model, **OPTIONS)
    memory = optimizer.memory()
    assert list(memory["params"]) == ["0.weight", "2.weight", "0.bias", "2.bias"]
    assert memory["total"] == sum(memory["params"].values()) <= optimizer.stats()["state_bytes_host"]
    # Without a preconditioner: the filtered gradient and Adam's second moment, 16 floats each, and a clock.
    assert memory["params"]["0.bias"] == 2 * 16 * 4 + 16


def test_shapes_that_cannot_be_are_refused_by_name():
    with pytest.raises(foam.InvalidArgumentError, match="parameter 'w': dtype int64: expected one of float32"):
        foam.plan({"w": np.ones(3, np.int64)})
    with pytest.raises(foam.InvalidArgumentError, match="'w'"):
        foam.plan({"w": (3, -1)})


# ---- python -m foam doctor --plan


def table(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_doctor_prints_the_plan_of_shapes(command):
    done = command(
        "-m", "foam", "doctor", "--plan", "wte=50x768", "h.0=768x768", "h.1=768x768", "--set", "merge_dims=false"
    )
    assert done.returncode == 0, done.stderr
    rows = table(done.stdout)
    assert rows[0] == [
        "parameter",
        "shape",
        "blocks",
        "factors",
        "state",
        "bytes per value",
        "products",
        "GFLOP per step",
    ]
    planned = foam.plan({"wte": (50, 768), "h": (768, 768)}, merge_dims=False)
    assert rows[3][:4] == ["h.0 and 1 alike", "768×768 float32", "1", "768×768"]
    assert rows[3][7] == f"{planned.params[1].flops / 1e9:.3g}"
    assert rows[-1][0] == "total of 3" and rows[-1][2] == "3"
    assert "topic" not in done.stdout


def test_the_doctor_prints_the_plan_of_a_file(command):
    golden = next((ROOT / "tests/golden").glob("*.safetensors"))
    done = command("-m", "foam", "doctor", "--plan", golden)
    assert done.returncode == 0, done.stderr
    assert "total of " in done.stdout


@pytest.mark.parametrize(
    "words, message",
    [
        (["w=3xtwo"], "'w=3xtwo': expected NAME=768x3072 or a safetensors file"),
        (["missing.safetensors"], "missing.safetensors"),
        (["w=3x4", "--set", "taw=1"], "taw"),
        (["w=3x4", "--set", "tau"], "'tau': expected KEY=VALUE"),
    ],
)
def test_the_doctor_refuses_what_it_cannot_plan(command, words, message):
    done = command("-m", "foam", "doctor", "--plan", *words)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
