"""Trees of any structure and leaves of any kind work, or are refused by name; bad gradients leave the state alone."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import foam as package
from foam.jax import foam, foam_stats, scale_by_foam
from support import LIVELY, Engine, flat, gradients, model, same, subtracted

LR = 0.01


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_equals_the_engine(dtype):
    params = model(dtype=dtype)
    options = {**LIVELY, "weight_decay": 0.0}
    engine, optimizer = Engine(params, LR, **options), scale_by_foam(**options)
    state = optimizer.init(params)
    assert all(leaf.dtype != dtype for leaf in jax.tree.leaves(state)), "state is kept in single precision"
    for grads in gradients(params, 4):
        # With f32 gradients of the same values the update comes unrounded.
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), grads)
        before = engine.tree(params)
        updates, after = jax.jit(optimizer.update)(wide, state, before)
        narrow, state = jax.jit(optimizer.update)(grads, state, before)
        assert same(after, state)
        engine.step(grads)
        for name, update in flat(updates).items():
            assert engine.weights[name].tobytes() == subtracted(flat(before)[name], update, LR).tobytes(), name
        assert {leaf.dtype for leaf in jax.tree.leaves(narrow)} == {jnp.dtype(dtype)}
        assert same(narrow, jax.tree.map(lambda leaf: leaf.astype(dtype), updates))


def test_double_precision_equals_the_engine():
    jax.config.update("jax_enable_x64", True)
    try:
        params = model(dtype=np.float64)
        for options in ({}, {"statistic_dtype": "f32"}):
            options = {**LIVELY, "weight_decay": 0.0, **options}
            engine, optimizer = Engine(params, LR, **options), scale_by_foam(**options)
            state = optimizer.init(params)
            for grads in gradients(params, 5):
                before = engine.tree(params)
                updates, state = jax.jit(optimizer.update)(grads, state, before)
                engine.step(grads)
                for name, update in flat(updates).items():
                    assert update.dtype == np.float64
                    assert engine.weights[name].tobytes() == subtracted(flat(before)[name], update, LR).tobytes()
        # Single precision parameters with double precision statistics.
        options = {**LIVELY, "weight_decay": 0.0, "statistic_dtype": "f64"}
        params = model()
        engine, optimizer = Engine(params, LR, **options), scale_by_foam(**options)
        state = optimizer.init(params)
        for grads in gradients(params, 3):
            before = engine.tree(params)
            updates, state = jax.jit(optimizer.update)(grads, state, before)
            engine.step(grads)
        name = "embed"
        assert engine.weights[name].tobytes() == subtracted(flat(before)[name], flat(updates)[name], LR).tobytes()
    finally:
        jax.config.update("jax_enable_x64", False)


def test_double_statistics_without_x64_are_refused_with_the_way_out():
    with pytest.raises(package.InvalidArgumentError, match="statistic_dtype = f64.*jax_enable_x64"):
        foam(statistic_dtype="f64").init({"w": jnp.ones((3, 3))})


def test_leaves_that_take_no_part():
    params = {
        "w": jnp.ones((6, 4)),
        "none": None,
        "count": jnp.arange(3),
        "flag": jnp.array([True]),
        "empty": jnp.zeros((0, 5)),
        "masked": optax.MaskedNode(),
        "pair": (jnp.ones(()), [jnp.ones((2, 1, 3))]),
    }
    optimizer = foam(LR, **LIVELY)
    state = optimizer.init(params)
    grads = jax.tree.map(jnp.ones_like, params)
    updates, state = jax.jit(optimizer.update)(grads, state, params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    after = optax.apply_updates(params, updates)
    assert (after["count"] == params["count"]).all() and after["none"] is None
    assert not np.array_equal(after["w"], params["w"]) and after["pair"][0] != 1
    assert {factor["param"] for factor in foam_stats(state)["factors"]} == {"w", "pair/0", "pair/1/0"}


def test_float0_gradients_of_integers_pass():
    params = {"w": jnp.ones((4, 3)), "n": jnp.arange(2)}
    grads = jax.grad(lambda p: (p["w"] ** 2).sum(), allow_int=True)(params)
    optimizer = scale_by_foam(**LIVELY)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    assert updates["n"].dtype == jax.dtypes.float0 and float(jnp.abs(updates["w"]).sum()) > 0


@pytest.mark.parametrize("tree", [jnp.ones((5, 3)), [jnp.ones(3)], (), {}, optax.MaskedNode()])
def test_any_structure_even_none(tree):
    optimizer = foam(LR, **LIVELY)
    updates, state = jax.jit(optimizer.update)(tree, optimizer.init(tree), tree)
    assert jax.tree.structure(updates) == jax.tree.structure(tree) and int(state[0].count) == 1


def test_a_parameter_without_a_gradient_stands_still_like_the_engines():
    params = {"a": jnp.ones((6, 4)), "b": 2 * jnp.ones((6, 4)), "c": jnp.ones((3,))}
    options = {**LIVELY, "weight_decay": 0.0}
    engine, optimizer = Engine(params, LR, **options), scale_by_foam(**options)
    state = optimizer.init(params)
    for number, grads in enumerate(gradients(params, 6)):
        if number % 3 == 1:
            grads["b"] = None
        before = engine.tree(params)
        updates, state = jax.jit(optimizer.update)(grads, state, before)
        engine.optimizer.step({name: None if leaf is None else np.asarray(leaf) for name, leaf in grads.items()})
        assert (updates["b"] is None) == (grads["b"] is None)
        for name in params:
            if updates[name] is not None:
                expected = subtracted(flat(before)[name], np.asarray(updates[name]), LR)
                assert engine.weights[name].tobytes() == expected.tobytes(), name
    checks = {factor["param"]: factor["checks"] for factor in foam_stats(state)["factors"]}
    assert checks["b"] == 2 and checks["a"] == 3


def test_options_of_single_parameters():
    params = {"embed": jnp.ones((30, 8)), "w": jnp.ones((16, 8)), "v": 2 * jnp.ones((16, 8))}
    own = {
        "embed": dict(grafting_only=True, lr_scale=0.5),
        "w": dict(root=4.0, weight_decay_scale=0.0),
    }
    options = {**LIVELY, "weight_decay": 0.2, "momentum": 0.5}
    engine = Engine(params, LR, own, **options)
    optimizer = scale_by_foam(param_options=lambda name, kind: own.get(name), **options)
    state = optimizer.init(params)
    for grads in gradients(params, 5):
        before = engine.tree(params)
        updates, state = jax.jit(optimizer.update)(grads, state, before)
        engine.step(grads)
        for name, update in flat(updates).items():
            np.testing.assert_allclose(subtracted(flat(before)[name], update, LR), engine.weights[name], rtol=1e-6)
    assert {(factor["param"], factor["root"]) for factor in foam_stats(state)["factors"]} == {("w", 4.0), ("v", 2.0)}


def test_weight_decay_masks():
    params = {"w": jnp.ones((4, 3)), "bias": jnp.ones((3,))}
    zeros = jax.tree.map(jnp.zeros_like, params)
    for mask in ({"w": True, "bias": False}, lambda tree: jax.tree.map(lambda leaf: leaf.ndim > 1, tree)):
        for options in ({}, {"momentum": 0.5}):
            optimizer = scale_by_foam(weight_decay=0.5, weight_decay_mask=mask, **options)
            updates, _ = jax.jit(optimizer.update)(zeros, optimizer.init(params), params)
            assert (updates["w"] > 0).all() and (updates["bias"] == 0).all()
    with pytest.raises(package.InvalidArgumentError, match="weight_decay_mask"):
        scale_by_foam(weight_decay=0.5, weight_decay_mask={"w": True}).init(params)


# ---- gradients that are not finite


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_a_bad_gradient_skips_the_whole_step_and_is_reported(bad, decay):
    params, optimizer = model(), foam(LR, weight_decay=decay, **LIVELY)
    first, second, third = gradients(params, 3)
    second["layers"][1]["kernel"] = second["layers"][1]["kernel"].at[2, 3].set(bad)
    step = jax.jit(optimizer.update)
    _, state = step(first, optimizer.init(params), params)
    updates, after = step(second, state, params)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(updates))
    quiet = {key: {name: own[name] for name in own if name != "info"} for key, own in state[0].stacks.items()}
    kept = {key: {name: own[name] for name in own if name != "info"} for key, own in after[0].stacks.items()}
    assert same(quiet, kept) and int(after[0].count) == 1 and int(after[0].skipped) == 1
    statistics = foam_stats(after)
    assert statistics["skipped_steps"] == 1
    if np.isfinite(bad) is np.False_:
        assert statistics["not_finite"] == ["layers/1/kernel"]
    # As if it had never been.
    _, resumed = step(third, after, params)
    _, expected = step(third, state, params)
    assert same(resumed[0].stacks, expected[0].stacks) and foam_stats(resumed)["not_finite"] == []


# ---- refusals


def test_updates_without_needed_parameters_are_refused():
    params = {"w": jnp.ones((3, 3))}
    optimizer = foam(weight_decay=0.1)
    with pytest.raises(package.InvalidArgumentError, match=r"weight decay needs the parameters.*params"):
        optimizer.update(params, optimizer.init(params))
    optimizer = foam(weight_decay=0.0)
    optimizer.update(params, optimizer.init(params))


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(taus=1), "unknown option.*taus"),
        (dict(tau=-1), "'tau' = '-1'"),
        (dict(lr=1.0), "'lr'.*learning_rate"),
        (dict(device="cuda"), "'device'.*arrays"),
        (dict(policy="best"), "policy.*foam_certified"),
        (dict(preset="reference", epsilon_max=1e-12), "epsilon_max"),
        (dict(nonfinite="error"), "nonfinite.*skip"),
        (dict(weight_decay=-1.0), "weight_decay = -1"),
        (dict(preset="best"), "preset 'best'"),
        (dict(axis="x"), "axis = 'x' without a mesh.*shards"),
        (dict(shards=2), "shards = 2 without an axis"),
    ],
)
def test_wrong_options_are_refused_by_name(options, message):
    with pytest.raises(package.FoamError, match=message):
        foam(**options)


@pytest.mark.parametrize(
    "leaf, message",
    [
        (jnp.ones(3, jnp.complex64), "parameter 'a/0' is complex64: expected float32"),
        (1.0, "parameter 'a/0' is a Python float: expected an array"),
        ("text", "parameter 'a/0' is str: expected an array"),
    ],
)
def test_wrong_leaves_are_refused_by_name(leaf, message):
    with pytest.raises(package.UnsupportedError, match=message):
        foam().init({"a": [leaf]})


def test_trees_and_states_that_do_not_fit_are_refused_by_name():
    params = {"w": jnp.ones((4, 3)), "v": jnp.ones((2, 2))}
    optimizer = foam(**LIVELY)
    state = optimizer.init(params)
    with pytest.raises(package.ShapeMismatchError, match=r"gradient of 'w': expected shape \[4, 3\], got \[3, 4\]"):
        optimizer.update({**params, "w": jnp.ones((3, 4))}, state, params)
    with pytest.raises(package.ShapeMismatchError, match="gradient 'u' but no such parameter"):
        optimizer.update({**params, "u": jnp.ones(3)}, state, params)
    with pytest.raises(package.ShapeMismatchError, match="stacks of blocks"):
        optimizer.update({"w": params["w"]}, state, {"w": params["w"]})
    broken = state[0]._replace(stacks=jax.tree.map(lambda leaf: leaf[..., :1], state[0].stacks))
    with pytest.raises(package.ShapeMismatchError, match=r"state '2x2_float32_root2', buffer '\w+': expected \w+\[1"):
        optimizer.update(params, (broken, *state[1:]), params)
    with pytest.raises(package.InvalidArgumentError, match="param_options.*'learning_rate'"):
        foam(param_options=lambda name, kind: {"learning_rate": 1}).init(params)
