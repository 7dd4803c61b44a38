"""A donated state is updated where it lies: the same addresses before and after, and no copy in the program."""

import jax
import jax.numpy as jnp
import optax
import pytest

from foam.jax import foam
from support import LIVELY, copies, gradients, model, pointers

SHAPES = {
    "square": {"w": jnp.ones((16, 16))},
    "square_stack": {str(number): jnp.ones((16, 16)) for number in range(4)},
    "oblong": {"w": jnp.ones((16, 12))},
    "oblong_stack": {str(number): jnp.ones((16, 12)) for number in range(4)},
    "cube": {"w": jnp.ones((8, 8, 8))},
    "cut": {"w": jnp.ones((40, 40))},
    "tree": model(),
}
VARIANTS = {"defaults": {}, "momentum": {"momentum": 0.9, "weight_decay": 0.1}, "grafting": {"policy": "grafting_only"}}


def train_step(optimizer):
    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shapes", SHAPES)
def test_jit(shapes, variant):
    params = jax.tree.map(jnp.array, SHAPES[shapes])
    optimizer = foam(0.01, **{**LIVELY, **VARIANTS[variant]})
    state, grads = optimizer.init(params), gradients(params, 1)[0]
    compiled = jax.jit(train_step(optimizer), donate_argnums=(0, 1)).lower(params, state, grads).compile()
    assert copies(compiled) == [] == copies(compiled, of=(params, state))
    for _ in range(3):
        before = pointers((params, state))
        params, state = compiled(params, state, grads)
        assert pointers((params, state)) == before


@pytest.mark.parametrize("share", [True, False])
def test_squares_that_statistic_and_inverse_root_share(share):
    params = {str(number): jnp.ones((130, 12)) for number in range(2)}
    optimizer = foam(0.01, **{**LIVELY, "max_factor_dim": 200, "share_squares": share})
    state, grads = optimizer.init(params), gradients(params, 1)[0]
    names = {name for stack in state[0].stacks.values() for name in stack}
    assert {"inverse_root_0", "root_diagonal_0"} & names == {"root_diagonal_0" if share else "inverse_root_0"}
    compiled = jax.jit(train_step(optimizer), donate_argnums=(0, 1)).lower(params, state, grads).compile()
    assert copies(compiled) == [] == copies(compiled, of=(params, state))
    for _ in range(3):
        before = pointers((params, state))
        params, state = compiled(params, state, grads)
        assert pointers((params, state)) == before


@pytest.mark.parametrize("shapes", SHAPES)
def test_the_bare_update(shapes):
    params = jax.tree.map(jnp.array, SHAPES[shapes])
    optimizer = foam(0.01, **LIVELY)
    state, grads = optimizer.init(params), gradients(params, 1)[0]
    compiled = jax.jit(lambda grads, state, params: optimizer.update(grads, state, params)[::-1], donate_argnums=1)
    compiled = compiled.lower(grads, state, params).compile()
    assert copies(compiled) == [] == copies(compiled, of=state)
    before = pointers(state)
    state, _ = compiled(grads, state, params)
    assert pointers(state) == before


@pytest.mark.parametrize("shapes", SHAPES)
def test_scan(shapes):
    params = jax.tree.map(jnp.array, SHAPES[shapes])
    optimizer = foam(0.01, **LIVELY)
    state = optimizer.init(params)
    grads = jax.tree.map(lambda leaf: jnp.stack([leaf] * 5), gradients(params, 1)[0])
    step = train_step(optimizer)

    def run(params, state, grads):
        return jax.lax.scan(lambda carry, one: (step(*carry, one), None), (params, state), grads)[0]

    compiled = jax.jit(run, donate_argnums=(0, 1)).lower(params, state, grads).compile()
    assert copies(compiled) == [] == copies(compiled, of=(params, state))
    before = pointers(state)
    _, state = compiled(params, state, grads)
    assert pointers(state) == before


def test_a_state_that_is_not_donated_is_left_alone():
    params, optimizer = model(), foam(0.01, **LIVELY)
    state, grads = optimizer.init(params), gradients(params, 1)[0]
    kept = jax.tree.map(lambda leaf: bytes(leaf.tobytes()), jax.device_get(state))
    compiled = jax.jit(optimizer.update).lower(grads, state, params).compile()
    assert len(copies(compiled, of=state)) > 20, "copies are found where they must be"
    for _ in range(3):
        compiled(grads, state, params)
    assert jax.tree.map(lambda leaf: bytes(leaf.tobytes()), jax.device_get(state)) == kept
