"""The golden traces of the authors' code and of the paper, replayed through JAX, are inside their tolerances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foam import replay
from foam.jax import foam_stats, scale_by_foam
from support import ROOT

GOLDEN = sorted((ROOT / "tests" / "golden").glob("**/*.safetensors"))


def run(case, precision):
    """The report of a replay; the state is donated, the last subtraction is the engine's."""
    options = {key: value for key, value in case.options.items() if key != "lr"}
    decay, lr = options.pop("weight_decay", 0.0), case.options["lr"]
    # SOAP's weights decay after every step but the first, which takes the learning rate: it is done here.
    after, decay = (lr * decay, 0.0) if case.preset == "soap" else (0.0, decay)
    own = {f"p{index}": {"root": root} for index, root in enumerate(case.roots)}
    optimizer = scale_by_foam(
        preset=case.preset, weight_decay=decay, param_options=lambda name, kind: own[name], **options
    )
    weights = {f"p{index}": weight for index, weight in enumerate(case.start(precision))}
    first = {name: weight.astype("f8") for name, weight in weights.items()}
    state, step = optimizer.init(weights), jax.jit(optimizer.update, donate_argnums=1)
    comparison = replay._Comparison(case, precision)
    kept = {int(step) for step in case.tensors.get("w_steps", range(1, case.steps + 1))}
    rows = {name: [] for name in weights}
    for number in range(1, case.steps + 1):
        grads = {f"p{index}": jnp.asarray(grad) for index, grad in enumerate(case.gradients(number, precision))}
        updates, state = step(grads, state, {name: jnp.asarray(weight) for name, weight in weights.items()})
        for name, update in updates.items():
            own_type = weights[name].dtype.type
            weights[name] = weights[name] - own_type(lr) * np.asarray(update)
            if number > 1:
                weights[name] = weights[name] - own_type(after) * weights[name]
        comparison.factors(number, foam_stats(state)["factors"])
        if number in kept:
            for name, weight in weights.items():
                rows[name].append(weight.astype("f8"))
    for name, own_rows in rows.items():
        expected = case.tensors[f"{name}.W.{precision}"].astype("f8")
        moved = max(np.linalg.norm(after - first[name]) for after in expected)
        for ours, theirs in zip(own_rows[len(own_rows) - len(expected) :], expected):
            comparison.see("W", np.linalg.norm(ours - theirs), moved)
    return comparison.report()


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_inside_the_tolerance(path, precision):
    case = replay.load(path)
    jax.config.update("jax_enable_x64", precision == "f64")
    try:
        report = run(case, precision)
    finally:
        jax.config.update("jax_enable_x64", False)
    assert report.passed, (report.errors, report.tolerances, report.differences[:5])
    assert report.compared > 0
