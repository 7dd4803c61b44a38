"""C++ beside Python: the golden traces give the same bits through both, and a run goes from one to the other and back.

    across.py PROGRAM FOLDER        PROGRAM is tests/cpp/trajectory.cc, compiled

The packages of bindings/python and tests/python are on PYTHONPATH; FOAM_LIBRARY names the library.
"""

import pathlib
import sys

import foam
import numpy as np
from c_side import trajectory
from foam import replay

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
program, folder = sys.argv[1], pathlib.Path(sys.argv[2])


def golden(path, precision):
    """Every step of a golden trace, through Python and through C++."""
    case = replay.load(path)
    report, ours = replay.run(case, precision)
    assert report.passed, (path.stem, precision, report.errors)
    names = [f"param_{index}" for index in range(len(case.roots))]
    gradients = [case.gradients(step, precision) for step in range(1, case.steps + 1)]
    start = case.start(precision)
    theirs = trajectory(program, folder, names, start, gradients, case.preset, case.options, case.roots)
    for name, here, there, first in zip(names, ours, theirs, start, strict=True):
        assert here.tobytes() == there.tobytes(), f"{path.stem}, {precision}: {name} differs"
        assert not np.array_equal(here, first), f"{path.stem}, {precision}: {name} has not moved"


def there_and_back(dtype):
    """Four steps in Python, five in C++, three in Python: the bits of twelve steps in Python."""
    random = np.random.default_rng(7)
    shapes = {"matrix": (6, 4), "vector": (5,), "tall": (12, 3)}
    options = {"preset": "reference", "check_period": 3, "max_factor_dim": 8, "lr": 0.05, "epsilon": 1e-6, "epsilon_max": 1e-2}
    whole = {name: random.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    parts = {name: weight.copy() for name, weight in whole.items()}
    gradients = [{n: random.standard_normal(s).astype(dtype) for n, s in shapes.items()} for _ in range(12)]
    with foam.Optimizer(whole, **options) as optimizer:
        for gradient in gradients:
            optimizer.step(gradient)
    with foam.Optimizer(parts, **options) as optimizer:
        for gradient in gradients[:4]:
            optimizer.step(gradient)
        optimizer.save(folder / "from_python")
    lists = [list(gradient.values()) for gradient in gradients[4:9]]
    paths = {"load": folder / "from_python", "save": folder / "from_cpp"}
    continued = trajectory(program, folder, list(shapes), list(parts.values()), lists, options=options, **paths)
    parts = {name: weight.copy() for name, weight in zip(shapes, continued, strict=True)}
    with foam.Optimizer(parts, **options) as optimizer:
        optimizer.load(folder / "from_cpp")
        for gradient in gradients[9:]:
            optimizer.step(gradient)
        assert optimizer.stats()["steps"] == 12
    for name in shapes:
        assert parts[name].tobytes() == whole[name].tobytes(), f"{np.dtype(dtype)}: {name} differs"


traces = sorted(GOLDEN.glob("*.safetensors"))
for trace in traces:
    for kind in ("f32", "f64"):
        golden(trace, kind)
there_and_back(np.float32)
there_and_back(np.float64)
print(f"{2 * len(traces)} golden runs and 2 resumed runs agree bit for bit")
