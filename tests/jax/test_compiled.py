"""However a step is compiled, it is the same step, bit for bit."""

import jax
import jax.numpy as jnp
import optax
import pytest

from foam.jax import foam, foam_stats
from support import LIVELY, gradients, model, same

LR = 0.01


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
