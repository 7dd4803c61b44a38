"""Golden traces give the same bits through C, raw ctypes, NumPy and PyTorch, and agree with the authors' code."""

import ctypes

import numpy as np
import pytest
import torch

import foam.torch
from c_side import trajectory
from conftest import GOLDEN
from foam import _library, _structs, replay
from foam._handle import option_text

CASES = pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
PRECISIONS = pytest.mark.parametrize("precision", ["f32", "f64"])


def raw(case, precision):
    """The weights after the last step through plain ctypes calls, with none of the package's Python but structs."""
    functions, error = _library.load().functions, _structs.Error()

    def must(status):
        assert status == 0, error.message

    config = _structs.Config()
    must(functions.foam_config_init(config, ctypes.sizeof(config), case.preset.encode(), error))
    for key, value in case.options.items():
        must(functions.foam_config_set(config, key.encode(), option_text(value).encode(), error))
    weights = case.start(precision)
    params = (_structs.Param * len(weights))()
    own, grads = (_structs.Tensor * len(weights))(), (_structs.Tensor * len(weights))()
    for param, tensor, weight, root in zip(params, own, weights, case.roots):
        must(functions.foam_param_init(param, ctypes.sizeof(param), error))
        shape = (ctypes.c_int64 * max(weight.ndim, 1))(*weight.shape)
        param.shape, param.ndim, param.root = shape, weight.ndim, root
        param.dtype = tensor.dtype = _structs.Dtype(2, weight.itemsize * 8, 1)
        tensor.data, tensor.device = weight.ctypes.data, _structs.Device(1, 0)
        tensor.ndim, tensor.shape = weight.ndim, shape
    handle = ctypes.c_void_p()
    must(functions.foam_create(config, params, len(weights), handle, error))
    args = _structs.StepArgs()
    must(functions.foam_step_args_init(args, ctypes.sizeof(args), error))
    args.count, args.params, args.grads = len(weights), own, grads
    for step in range(1, case.steps + 1):
        gradients = case.gradients(step, precision)
        for tensor, weight_tensor, gradient in zip(grads, own, gradients):
            ctypes.memmove(ctypes.byref(tensor), ctypes.byref(weight_tensor), ctypes.sizeof(tensor))
            tensor.data = gradient.ctypes.data
        must(functions.foam_step(handle, args, error))
    functions.foam_destroy(handle)
    return weights


def with_torch_optimizer(case, precision):
    """The weights after the last step through ``foam.torch.FOAM``."""
    weights = [torch.nn.Parameter(torch.from_numpy(weight)) for weight in case.start(precision)]
    options = dict(case.options)
    lr = options.pop("lr")
    if any(case.roots):
        assert len(set(case.roots)) == 1, "one group has one root"
        options["root"] = case.roots[0]
    optimizer = foam.torch.FOAM(weights, lr=lr, preset=case.preset, **options)
    for step in range(1, case.steps + 1):
        for weight, gradient in zip(weights, case.gradients(step, precision)):
            weight.grad = torch.from_numpy(gradient)
        optimizer.step()
    return [weight.detach().numpy() for weight in weights]


@PRECISIONS
@CASES
def test_the_same_bits_through_c_ctypes_numpy_and_torch(path, precision, c_program, tmp_path):
    case = replay.load(path)
    report, with_numpy = replay.run(case, precision)
    _, with_torch = replay.run(case, precision, convert=torch.from_numpy)
    gradients = [case.gradients(step, precision) for step in range(1, case.steps + 1)]
    names = [f"param_{index}" for index in range(len(case.roots))]
    start = case.start(precision)
    through_c = trajectory(c_program, tmp_path, names, start, gradients, case.preset, case.options, case.roots)
    assert report.passed, (report.errors, report.tolerances, report.differences[:5])
    assert report.compared > 0
    others = (with_torch, with_torch_optimizer(case, precision), raw(case, precision))
    for ours, c, first, *rest in zip(with_numpy, through_c, start, *others):
        assert ours.tobytes() == c.tobytes()
        assert all(ours.tobytes() == other.tobytes() for other in rest)
        assert not np.array_equal(ours, first)


def test_a_changed_trace_is_noticed():
    case = replay.load(next(path for path in GOLDEN if path.stem == "paper_foam_p2"))
    weights = case.tensors["p0.W.f64"].copy()
    weights[-1].flat[3] += 1e-6
    report, _ = replay.run(case._replace(tensors={**case.tensors, "p0.W.f64": weights}), "f64")
    assert not report.passed and report.errors["W"] > report.tolerances["W"]
    counters = case.tensors["p0.b0.f1.counters"].copy()
    counters[40, 1] += 1
    report, _ = replay.run(case._replace(tensors={**case.tensors, "p0.b0.f1.counters": counters}), "f64")
    assert not report.passed and report.differences[0].startswith("step 41, p0.b0.f1, evd: ")
