"""The transformation is one among Optax's: it composes with theirs and with Flax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foam as package
from foam.jax import foam, foam_stats, scale_by_foam
from support import LIVELY, gradients, model, same


def run(optimizer, params, steps=6, every=None):
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for grads in every or gradients(params, steps):
        params, state = step(params, state, grads)
    return params, state


def test_foam_is_its_direction_decay_and_learning_rate():
    params = model()
    parts = optax.chain(scale_by_foam(weight_decay=0.1, **LIVELY), optax.scale_by_learning_rate(0.02))
    assert same(run(foam(0.02, weight_decay=0.1, **LIVELY), params), run(parts, params))
    apart = optax.chain(scale_by_foam(**LIVELY), optax.add_decayed_weights(0.1), optax.scale_by_learning_rate(0.02))
    for one, other in zip(jax.tree.leaves(run(apart, params)[0]), jax.tree.leaves(run(parts, params)[0])):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_schedules():
    params = model()
    schedule = optax.cosine_decay_schedule(0.1, 3)
    after, _ = run(foam(schedule, **LIVELY), params, 3)
    later, state = run(foam(schedule, **LIVELY), params, 6)
    assert same(after, later), "the rate is 0 from the third step on"
    assert int(state[0].count) == 6


def test_clip():
    params = model()
    clipped = optax.chain(optax.clip_by_global_norm(0.1), optax.clip(0.05), foam(0.01, **LIVELY))
    _, state = run(clipped, params)
    assert foam_stats(state)["steps"] == 6


def test_apply_if_finite():
    params = model()
    every = gradients(params, 5)
    good = [every[0], every[2], every[3], every[4]]
    every[1] = jax.tree.map(lambda leaf: leaf * jnp.nan, every[1])
    optimizer = optax.apply_if_finite(foam(0.01, **LIVELY), 3)
    after, state = run(optimizer, params, every=every)
    expected, other = run(foam(0.01, **LIVELY), params, every=good)
    assert same(state.inner_state, other) and int(state.total_notfinite) == 1
    for one, another in zip(jax.tree.leaves(after), jax.tree.leaves(expected)):
        np.testing.assert_allclose(one, another, rtol=1e-5, atol=1e-7)


def test_multi_steps():
    params = model()
    every = gradients(params, 6)
    optimizer = optax.MultiSteps(foam(0.01, **LIVELY), 2)
    _, state = run(optimizer, params, every=every)
    assert foam_stats(state)["steps"] == 3


def test_inject_hyperparams():
    params = model()
    optimizer = optax.inject_hyperparams(foam)(learning_rate=0.02, weight_decay=0.1, **LIVELY)
    _, state = run(optimizer, params)
    assert set(state.hyperparams) >= {"learning_rate", "weight_decay"}
    state.hyperparams["learning_rate"] = jnp.float32(0.0)
    updates, _ = jax.jit(optimizer.update)(gradients(params, 1)[0], state, params)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(updates))
    after, _ = run(optimizer, params)
    expected, _ = run(foam(0.02, weight_decay=0.1, **LIVELY), params)
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(expected)):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_inject_hyperparams_of_what_must_be_known_is_refused():
    def factory(learning_rate, tau):
        return foam(learning_rate, tau=tau)

    with pytest.raises(package.InvalidArgumentError, match=r"'tau' is a traced array.*static_args=\('tau',\)"):
        optax.inject_hyperparams(factory)(learning_rate=0.1, tau=0.5).init(model())
    optax.inject_hyperparams(factory, static_args=("tau",))(learning_rate=0.1, tau=0.5).init(model())


def labels(params):
    return jax.tree.map(lambda leaf: "foam" if leaf.ndim > 1 else "adam", params)


def test_multi_transform():
    params = model()
    optimizer = optax.multi_transform({"foam": foam(0.01, **LIVELY), "adam": optax.adam(0.01)}, labels)
    after, state = run(optimizer, params)
    assert {factor["param"] for factor in foam_stats(state)["factors"]} == {
        "embed", "tensor", "layers/0/kernel", "layers/1/kernel", "layers/2/kernel",
    }  # fmt: skip
    assert all(not np.array_equal(one, other) for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(params)))


def test_masked():
    params = model()
    optimizer = optax.masked(foam(0.01, **LIVELY), jax.tree.map(lambda leaf: leaf.ndim > 1, params))
    _, state = run(optimizer, params)
    assert foam_stats(state)["params"] == 5


def test_nnx_optimizer():
    nnx = pytest.importorskip("flax.nnx")

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(8, 16, rngs=rngs)
            self.second = nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.relu(self.first(x)))

    network = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(network, foam(0.02, **LIVELY), wrt=nnx.Param)
    x = jax.random.normal(jax.random.key(0), (32, 8))

    @nnx.jit
    def step(network, optimizer):
        loss, grads = nnx.value_and_grad(lambda network: ((network(x) - x[:, :4]) ** 2).mean())(network)
        optimizer.update(network, grads)
        return loss

    losses = [float(step(network, optimizer)) for _ in range(40)]
    assert losses[-1] < 0.3 * losses[0]
    state = nnx.to_pure_dict(nnx.state(optimizer))["opt_state"]
    statistics = foam_stats(state)
    assert statistics["steps"] == 40 and statistics["params"] == 4 and statistics["evd_calls"] > 0
