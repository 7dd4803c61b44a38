"""Golden traces give the same bits through C, raw ctypes and NumPy, and agree with the authors' code."""

import ctypes

import numpy as np
import pytest

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


@PRECISIONS
@CASES
def test_the_same_bits_through_c_ctypes_and_numpy(path, precision, c_program, tmp_path):
    case = replay.load(path)
    report, with_numpy = replay.run(case, precision)
    gradients = [case.gradients(step, precision) for step in range(1, case.steps + 1)]
    names = [f"param_{index}" for index in range(len(case.roots))]
    start = case.start(precision)
    through_c = trajectory(c_program, tmp_path, names, start, gradients, case.preset, case.options, case.roots)
    assert report.passed, (report.errors, report.tolerances, report.differences[:5])
    assert report.compared > 0
    for ours, c, plain, first in zip(with_numpy, through_c, raw(case, precision), start):
        assert ours.tobytes() == c.tobytes() == plain.tobytes()
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
