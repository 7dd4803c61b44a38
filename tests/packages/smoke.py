"""Trains for some steps with the installed package, with no other package around."""

import array
import importlib.metadata
import shutil
import sys
from pathlib import Path

import foam

environment = Path(sys.prefix).resolve()
for program in ("cc", "gcc", "clang", "cargo", "rustc"):
    assert shutil.which(program) is None, f"the environment is not empty: it has {program}"
assert environment in Path(foam.__file__).resolve().parents, f"another foam was imported: {foam.__file__}"
assert environment in Path(foam.library_path()).resolve().parents, f"another library was loaded: {foam.library_path()}"
assert foam.__version__ == importlib.metadata.version("libfoam")
assert foam.__version__ in foam.build_info(), foam.build_info()
try:
    import numpy
except ImportError:
    pass
else:
    raise AssertionError(f"the environment is not empty: it has {numpy}")

values = array.array("f", [float(i % 5) - 2.0 for i in range(32)])
# Damping is in units of the squared gradient, and these gradients are large. So small a matrix would be merged into a
# vector, with one factor.
options = {"lr": 0.01, "epsilon": 1e-3, "epsilon_max": 1e-1, "merge_dims": False}
weight = memoryview(values).cast("B").cast("f", (8, 4))
with foam.Optimizer({"weight": weight}, **options) as optimizer:
    for _ in range(300):
        gradient = memoryview(array.array("f", values)).cast("B").cast("f", (8, 4))
        optimizer.step({"weight": gradient})
    stats = optimizer.stats()
    factors = optimizer.factor_stats()
loss = sum(0.5 * value * value for value in values)
assert loss < 1, f"loss after 300 steps: {loss}"
assert stats["steps"] == 300 and stats["factors"] == 2 and stats["evd_calls"] > 0, stats
assert [factor["dim"] for factor in factors] == [8, 4], factors
try:
    foam.Optimizer({"weight": weight}, tua=0.5)
except foam.FoamError as error:
    assert "tua" in str(error), error
else:
    raise AssertionError("an unknown option was accepted")
print(f"{foam.build_info()}: loss after 300 steps {loss:.6f}")
