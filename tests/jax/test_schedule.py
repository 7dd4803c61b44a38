"""A check is made at the steps at which the engine makes it, whoever decides."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from foam import _library
from foam._handle import _config as native_config
from foam.jax import _calls, _native, foam_stats, scale_by_foam
from support import LIVELY, gradients, model, same

SCHEDULES = [
    {},
    dict(preset="paper"),
    dict(start_step=5),
    dict(policy="stale", refresh_schedule="front_loaded", front_period=2, front_steps=4, check_period=3),
    dict(policy="stale", refresh_schedule="geometric", preset="paper"),
    dict(policy="stale", refresh_schedule="geometric", refresh_growth=2),
    dict(policy="stale", refresh_schedule="geometric", refresh_growth=3, correction_period=2),
    dict(policy="sandwich", refresh_schedule="geometric", preset="paper", correction_period=4),
    dict(policy="sandwich", refresh_schedule="combined", refresh_growth=3, check_period=4),
    dict(policy="stale", refresh_schedule="combined", preset="paper", check_period=7),
    dict(policy="foam", check_period=7, refresh_delay=3),
    dict(policy="stale", preset="paper", check_period=5, refresh_delay=8),
]


# The others take long to compile.
FIRST = [s if place < 2 else pytest.param(s, marks=pytest.mark.long) for place, s in enumerate(SCHEDULES)]


@pytest.mark.parametrize("options", FIRST, ids=str)
def test_a_check_behind_a_condition_is_the_same_check(options, monkeypatch):
    """On a device whose clocks the host cannot see, XLA decides whether a check is due."""
    options, params = {**LIVELY, "weight_decay": 0.0, **options}, model()
    found = []
    for waits in (False, True):
        monkeypatch.setattr(_calls, "looking_waits", lambda: waits)
        jax.clear_caches()
        optimizer = scale_by_foam(**options)
        state, step = optimizer.init(params), jax.jit(optimizer.update)
        # One conditional for all stacks: XLA waits for each.
        assert len(state.stacks) > 2
        assert step.lower(params, state, params).as_text().count("stablehlo.case") == int(waits)
        for grads in gradients(params, 9):
            updates, state = step(grads, state, params)
        found.append((updates, state))
    jax.clear_caches()
    assert same(*found)
    assert foam_stats(found[0][1])["evd_calls"] > 0


@pytest.mark.parametrize("grafting", ["adam", "none"])
@pytest.mark.parametrize("waits", [False, True])
def test_a_run_whose_checks_change_takes_no_dead_step(waits, grafting, monkeypatch):
    """No check was due in the first 30 steps: until the next one of the new options there is no basis. Without grafting
    a step that has none moves nothing, so that it has to be made at once.
    """
    monkeypatch.setattr(_calls, "looking_waits", lambda: waits)
    jax.clear_caches()
    params = model()
    options = {**LIVELY, "start_step": 0, "beta1": 0.0, "grafting": grafting}
    rare, often = (scale_by_foam(**{**options, "check_period": period}) for period in (100, 20))
    state, step = rare.init(params), jax.jit(rare.update)
    for t, grads in enumerate(gradients(params, 45), 1):
        if t == 31:
            assert foam_stats(state)["evd_calls"] == 0
            step = jax.jit(often.update)
        updates, state = step(grads, state, params)
        if grafting != "none" or t > 30:
            assert all(jnp.any(update != 0) for update in jax.tree.leaves(updates)), f"step {t}"
    assert foam_stats(state)["evd_calls"] > 0
    jax.clear_caches()


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
def test_the_condition_is_the_librarys_schedule_at_every_step(options):
    chosen = {**LIVELY, **options}
    config = native_config(chosen.pop("preset", None), chosen)
    words = _native.record_fields()["has_basis"].word + 2
    known = {"info": jnp.zeros(1, jnp.int32), "record": jnp.ones((1, 1, words), jnp.uint32)}
    steps = np.concatenate([np.arange(1, 3000), 2**31 - np.arange(1, 50)]).astype(np.uint32)
    due = jax.vmap(lambda step: _calls._due(config, {**known, "clock": step.reshape(1, 1)}))(steps)
    library, answer = _library.load(), ctypes.c_int32(0)
    for step, found in zip(steps, np.asarray(due)):
        library.call("foam_config_check_due", ctypes.byref(config), int(step), ctypes.byref(answer))
        assert bool(answer.value) == found, f"step {step}"
