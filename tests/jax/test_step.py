"""A step through JAX is the engine's step, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from foam.jax import foam, foam_stats, scale_by_foam
from support import LIVELY, Engine, flat, gradients, model, subtracted

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
    "combined": dict(policy="sandwich", refresh_schedule="combined", check_period=3),
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


def followed(optimizer, engine, params, steps):
    """Steps both: every update is what the engine subtracts, bit for bit. Gives the last state."""
    state, step = optimizer.init(params), jax.jit(optimizer.update)
    for grads in gradients(params, steps):
        before = engine.tree(params)
        updates, state = step(grads, state, before)
        engine.step(grads)
        for leaf, update in flat(updates).items():
            expected = subtracted(flat(before)[leaf], update, LR)
            assert engine.weights[leaf].tobytes() == expected.tobytes(), leaf
    return state


def same_factors(state, engine):
    """Statistics of the factors, which are the engine's."""
    ours, theirs = foam_stats(state)["factors"], engine.optimizer.factor_stats()
    assert len(ours) == len(theirs) > 0
    for mine, its in zip(ours, theirs):
        for key in set(its) - {"last_branch"}:
            assert mine[key] == its[key] or (mine[key] != mine[key] and its[key] != its[key]), (key, mine, its)
    return ours


@pytest.mark.parametrize("name", VARIANTS)
def test_the_update_is_the_engines_bit_for_bit(name):
    options = {**LIVELY, "weight_decay": 0.0, **VARIANTS[name]}
    params = model()
    engine = Engine(params, LR, **options)
    followed(scale_by_foam(**options), engine, params, 7)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", ["reference", "default", "delayed"])
def test_shared_squares_have_the_bits_of_an_engine_without_them(name, share):
    options = {**LIVELY, "weight_decay": 0.0, **VARIANTS[name], "max_factor_dim": 200}
    params = {"both": jnp.ones((130, 140)), "one": jnp.ones((129, 6))}
    engine = Engine(params, LR, **options, share_squares=False)
    optimizer = scale_by_foam(**options, share_squares=share)
    state = followed(optimizer, engine, params, 7)
    ours = same_factors(state, engine)
    assert sum(factor["checks"] for factor in ours) > 0


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
    state = followed(optimizer, engine, params, 9)
    ours = same_factors(state, engine)
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
