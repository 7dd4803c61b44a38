"""The statistics of every factor can be read out of a state, tabulated and plotted."""

import csv
import math

import jax
import jax.numpy as jnp
import optax
import pytest

import foam as package
from foam.jax import foam, foam_stats, foam_stats_csv
from support import LIVELY, gradients, model, python


def run(optimizer, params, steps=6):
    state, step = optimizer.init(params), jax.jit(optimizer.update)
    for grads in gradients(params, steps):
        _, state = step(grads, state, params)
    return state


def test_statistics_of_a_run():
    params = model()
    statistics = foam_stats(run(foam(**LIVELY), params))
    assert statistics["steps"] == 6 and statistics["skipped_steps"] == 0 and statistics["params"] == 8
    assert statistics["checks"] == 3 * len(statistics["factors"])
    assert 0 < statistics["evd_calls"] <= statistics["checks"]
    assert statistics["evd_rate"] == pytest.approx(statistics["evd_calls"] / statistics["checks"])
    factor = next(factor for factor in statistics["factors"] if factor["param"] == "layers/2/kernel")
    assert factor["axis"] == 0 and factor["dim"] == 16 and factor["last_check"] == 6
    assert factor["epsilon"] >= factor["epsilon_base"] == 1e-4 and factor["branch"] != "none"
    assert factor["eigenvalue_max"] > 0 and math.isfinite(factor["proxy"]) and factor["has_basis"]


def test_what_keeps_a_run_from_working_is_found():
    params = {"w": jnp.ones((12, 8))}
    options = dict(check_period=1, tau=1e-3, beta2=0.9, refresh_schedule="fixed")
    assert foam_stats(run(foam(1e-3, **options), params, 19))["findings"] == {}
    statistics = foam_stats(run(foam(1e-3, **options), params, 22))
    assert list(statistics["findings"]) == ["always_refreshes"] and "try tau = " in statistics["findings"]["always_refreshes"]
    assert [factor["findings"] for factor in statistics["factors"]] == [["always_refreshes"]] * 2


def test_states_are_found_inside_others():
    params = model()
    chained = optax.chain(optax.clip_by_global_norm(1.0), foam(**LIVELY))
    assert foam_stats({"model": 3, "state": run(chained, params)})["steps"] == 6
    labels = jax.tree.map(lambda leaf: "matrix" if leaf.ndim > 1 else "rest", params)
    both = {"matrix": foam(**LIVELY), "rest": foam(**LIVELY)}
    statistics = foam_stats(run(optax.multi_transform(both, labels), params))
    assert statistics["params"] == 8 and len({factor["param"] for factor in statistics["factors"]}) == 8
    with pytest.raises(package.InvalidArgumentError, match="no state of scale_by_foam"):
        foam_stats(optax.adam(1e-3).init(params))


def test_a_state_that_lost_its_types_can_be_read():
    state = run(foam(**LIVELY), model())
    bare = jax.device_get(state[0])._asdict()
    assert str(foam_stats([bare])) == str(foam_stats(state))


def test_csv_for_the_plot_command(tmp_path):
    params, optimizer = {"w": jnp.ones((12, 8)), "b": jnp.ones(8)}, foam(**LIVELY)
    state, step = optimizer.init(params), jax.jit(optimizer.update)
    path = tmp_path / "stats.csv"
    for number, grads in enumerate(gradients(params, 8)):
        _, state = step(grads, state, params)
        if number % 2:
            foam_stats_csv(path, state)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 3 and [row["step"] for row in rows[::3]] == ["2", "4", "6", "8"]
    assert {row["param"] for row in rows} == {"w", "b"} and float(rows[-1]["epsilon"]) > 0
    done = python("-m", "foam", "plot", path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "stats.png").stat().st_size > 10_000
