"""A step through JAX is the engine's step, bit for bit, however it is compiled."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from foam import _library
from foam._handle import _config as native_config
from foam.jax import _calls, _native, foam, foam_stats, scale_by_foam
from support import LIVELY, Engine, flat, gradients, model, same, subtracted

LR = 0.01

VARIANTS = {
    "reference": {},
    "default": dict(preset="default"),
    "stale": dict(policy="stale"),
    "fixed_epsilon": dict(policy="foam_fixed_epsilon"),
    "no_refresh": dict(policy="foam_no_refresh"),
    "residual": dict(policy="diagonal_residual"),
    "certified": dict(policy="foam_certified"),
    "sandwich": dict(policy="sandwich"),
    "qr": dict(policy="sandwich", refresh_method="qr", tau=0.2),
    "corrected": dict(policy="stale", refresh_schedule="geometric", correction_period=2),
    "delayed": dict(policy="stale", check_period=3, refresh_delay=2),
    "grafting_only": dict(policy="grafting_only"),
    "paper": dict(preset="paper"),
    "late_start": dict(start_step=5, grafting="sgd"),
    "no_grafting": dict(grafting="none", beta1=0.0),
    "adagrad_normalized": dict(grafting="adagrad", normalized_grafting=True),
    "nesterov": dict(momentum=0.9, nesterov=True, grafting="rmsprop"),
    "nadam_sum": dict(nadam=True, beta2=1.0, bias_correction=False),
    "root_4": dict(root=4, epsilon_left=2e-4, epsilon_right=5e-4, exponent_multiplier=1.5),
    "merged": dict(merge_dims=True, max_factor_dim=32),
    "momentum_decay": dict(momentum=0.5, weight_decay=0.1),
    "coupled_decay": dict(decoupled_weight_decay=False, weight_decay=0.1),
    "threads": dict(num_threads=2),
    "sparse_statistics": dict(statistics_period=3),
    "no_inverse_root": dict(keep_inverse_root=False),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_update_is_the_engines_bit_for_bit(name):
    options = {**LIVELY, "weight_decay": 0.0, **VARIANTS[name]}
    params = model()
    engine = Engine(params, LR, **options)
    optimizer = scale_by_foam(**options)
    state, step = optimizer.init(params), jax.jit(optimizer.update)
    for grads in gradients(params, 7):
        before = engine.tree(params)
        updates, state = step(grads, state, before)
        engine.step(grads)
        for leaf, update in flat(updates).items():
            expected = subtracted(flat(before)[leaf], update, LR)
            assert engine.weights[leaf].tobytes() == expected.tobytes(), leaf


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", ["reference", "default", "delayed"])
def test_shared_squares_have_the_bits_of_an_engine_without_them(name, share):
    options = {**LIVELY, "weight_decay": 0.0, **VARIANTS[name], "max_factor_dim": 200}
    params = {"both": jnp.ones((130, 140)), "one": jnp.ones((129, 6))}
    engine = Engine(params, LR, **options, share_squares=False)
    optimizer = scale_by_foam(**options, share_squares=share)
    state, step = optimizer.init(params), jax.jit(optimizer.update)
    for grads in gradients(params, 7):
        before = engine.tree(params)
        updates, state = step(grads, state, before)
        engine.step(grads)
        for leaf, update in flat(updates).items():
            expected = subtracted(flat(before)[leaf], update, LR)
            assert engine.weights[leaf].tobytes() == expected.tobytes(), leaf
    ours, theirs = foam_stats(state)["factors"], engine.optimizer.factor_stats()
    assert len(ours) == len(theirs)
    for mine, its in zip(ours, theirs):
        for key in set(its) - {"last_branch"}:
            assert mine[key] == its[key] or (mine[key] != mine[key] and its[key] != its[key]), (key, mine, its)
    assert not theirs or sum(factor["checks"] for factor in ours) > 0


SOAPS = {
    "exact": dict(soap_form="exact"),
    "in_basis": dict(soap_form="in_basis"),
    "kappa": dict(refresh_schedule="kappa", kappa_threshold=0.2),
    "geometric": dict(refresh_schedule="geometric", refresh_growth=2, precondition_1d=True),
    "identity": dict(max_precond_dim=10, normalize_grads=True, soap_form="exact"),
    "blocks": dict(max_factor_dim=10, merge_dims=True),
    "sparse_statistics": dict(statistics_period=2),
}


@pytest.mark.parametrize("name", SOAPS)
def test_soap_is_the_engines_bit_for_bit(name):
    options = {"preset": "soap", "num_threads": 1, "check_period": 2, "front_steps": 4, **SOAPS[name]}
    params = model()
    engine = Engine(params, LR, weight_decay=0.0, **options)
    optimizer = scale_by_foam(weight_decay=0.0, **options)
    state, step = optimizer.init(params), jax.jit(optimizer.update)
    for grads in gradients(params, 9):
        before = engine.tree(params)
        updates, state = step(grads, state, before)
        engine.step(grads)
        for leaf, update in flat(updates).items():
            expected = subtracted(flat(before)[leaf], update, LR)
            assert engine.weights[leaf].tobytes() == expected.tobytes(), leaf
    ours, theirs = foam_stats(state)["factors"], engine.optimizer.factor_stats()
    assert len(ours) == len(theirs) > 0
    for mine, its in zip(ours, theirs):
        for key in set(its) - {"last_branch"}:
            assert mine[key] == its[key] or (mine[key] != mine[key] and its[key] != its[key]), (key, mine, its)
    assert sum(factor["evd_calls"] for factor in ours) > len(ours) // 2


def test_soap_trains_and_skips_what_is_not_finite():
    params, optimizer = model(), foam(LR, preset="soap", num_threads=1)
    state, step = optimizer.init(params), jax.jit(optimizer.update, donate_argnums=1)
    for grads in gradients(params, 3):
        updates, state = step(grads, state, params)
    bad = jax.tree.map(lambda leaf: leaf.at[0].set(jnp.nan), gradients(params, 1)[0])
    updates, state = step(bad, state, params)
    assert all(not np.asarray(leaf).any() for leaf in jax.tree.leaves(updates))
    stats = foam_stats(state)
    assert (stats["steps"], stats["skipped_steps"]) == (3, 1)


SCHEDULES = [
    {},
    dict(preset="paper"),
    dict(start_step=5),
    dict(policy="stale", refresh_schedule="front_loaded", front_period=2, front_steps=4, check_period=3),
    dict(policy="stale", refresh_schedule="geometric", preset="paper"),
    dict(policy="stale", refresh_schedule="geometric", refresh_growth=2),
    dict(policy="stale", refresh_schedule="geometric", refresh_growth=3, correction_period=2),
    dict(policy="sandwich", refresh_schedule="geometric", preset="paper", correction_period=4),
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


def test_decoupled_decay_is_the_engines_up_to_one_rounding():
    params = model()
    options = {**LIVELY, "weight_decay": 0.3}
    engine, optimizer = Engine(params, LR, **options), foam(LR, **options)
    state, step = optimizer.init(params), jax.jit(optimizer.update)
    for grads in gradients(params, 5):
        before = engine.tree(params)
        updates, state = step(grads, state, before)
        engine.step(grads)
        for leaf, update in flat(optax.apply_updates(before, updates)).items():
            np.testing.assert_allclose(update, engine.weights[leaf], rtol=3e-7, atol=1e-8)


def test_eager_jit_and_scan_are_equal_bit_for_bit():
    params, optimizer = model(), foam(LR, **LIVELY)
    every = gradients(params, 6)

    def step(state, grads):
        updates, state = optimizer.update(grads, state, params)
        return state, updates

    start = optimizer.init(params)
    eager, eager_updates = start, []
    for grads in every:
        eager, updates = step(eager, grads)
        eager_updates.append(updates)
    jitted, jitted_updates = start, []
    for grads in every:
        jitted, updates = jax.jit(step)(jitted, grads)
        jitted_updates.append(updates)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *every)
    scanned, scanned_updates = jax.jit(lambda state, grads: jax.lax.scan(step, state, grads))(start, stacked)
    with jax.disable_jit():
        bare, bare_updates = step(start, every[0])
    assert same(eager, jitted) and same(eager, scanned)
    assert same(eager_updates, jitted_updates)
    for number, updates in enumerate(eager_updates):
        assert same(updates, jax.tree.map(lambda leaf: leaf[number], scanned_updates))
    assert int(bare[0].count) == 1 and jax.tree.structure(bare_updates) == jax.tree.structure(updates)


@pytest.mark.long
def test_vmap_equals_a_loop():
    optimizer = foam(LR, **LIVELY)
    many = [model(seed) for seed in range(3)]
    grads = [gradients(params, 5, seed) for seed, params in enumerate(many)]

    def run(params, grads):
        state = optimizer.init(params)
        for one in grads:
            updates, state = optimizer.update(one, state, params)
            params = jax.tree.map(lambda leaf, update: leaf + update, params, updates)
        return params, state

    def together(trees):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    alone = [jax.jit(run)(params, list(own)) for params, own in zip(many, grads)]
    batch = jax.jit(jax.vmap(run))(together(many), [together(step) for step in zip(*grads)])
    for number, (params, state) in enumerate(alone):
        picked = jax.tree.map(lambda leaf: leaf[number], batch)
        assert same(picked[1], state)
        assert same(picked[0], params)
    assert len(foam_stats(batch[1])["factors"]) == 3 * len(foam_stats(alone[0][1])["factors"])


def test_cond_takes_or_leaves_a_step():
    params, optimizer = model(), foam(LR, **LIVELY)
    grads = gradients(params, 4)

    @jax.jit
    def maybe(wanted, state, grads):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.cond(wanted, lambda: optimizer.update(grads, state, params), lambda: (zeros, state))

    state = expected = optimizer.init(params)
    for number, one in enumerate(grads):
        _, state = maybe(number % 2 == 0, state, one)
        if number % 2 == 0:
            _, expected = jax.jit(optimizer.update)(one, expected, params)
    assert same(state, expected) and int(state[0].count) == 2


def test_long_scans_donate_and_learn():
    target = model(3)
    optimizer = foam(0.05, **{**LIVELY, "check_period": 5})

    def step(carry, _):
        params, state = carry
        grads = jax.tree.map(jnp.subtract, params, target)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), optax.global_norm(grads)

    params = model(4)
    run = jax.jit(lambda carry: jax.lax.scan(step, carry, length=150), donate_argnums=0)
    (_, state), norms = run((params, optimizer.init(params)))
    assert norms[-1] < 0.2 * norms[0]
    statistics = foam_stats(state)
    assert statistics["steps"] == 150 and 0 < statistics["evd_calls"] < statistics["checks"]
