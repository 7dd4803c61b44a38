"""Devices and processes share the blocks: the result is that of one device, and only updates travel."""

import inspect
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import foam as package
from foam.jax import foam, foam_stats, partition_specs
from support import LIVELY, ROOT, collectives, copies, gradients, model, pointers, same

shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map
CHECK = "check_vma" if "check_vma" in inspect.signature(shard_map).parameters else "check_rep"
VARIANTS = {"defaults": {}, "momentum": {"momentum": 0.9, "weight_decay": 0.1}}


def mesh():
    assert len(jax.devices()) == 2
    return Mesh(np.array(jax.devices()), ("x",))


def everywhere(tree, axis=P()):
    # By way of the host: what shares no buffer with the original can be donated.
    return jax.device_put(jax.device_get(tree), NamedSharding(mesh(), axis))


def train_step(optimizer):
    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def alone(params, every, **options):
    step = jax.jit(train_step(foam(0.01, **options)))
    state = foam(0.01, **options).init(params)
    for grads in every:
        params, state = step(params, state, grads)
    return params, state


def by_block(state):
    """The factors' statistics, which do not depend on the order of the rows."""
    return [{key: str(value) for key, value in factor.items()} for factor in foam_stats(state)["factors"]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_mesh_shares_the_blocks(variant):
    options = {**LIVELY, **VARIANTS[variant]}
    start, optimizer = model(), foam(0.01, mesh=mesh(), **options)
    every = gradients(start, 6)
    params, state = everywhere(start), optimizer.init(start)
    for own in state[0].stacks.values():
        for leaf in own.values():
            assert leaf.sharding.spec == P("x") and leaf.addressable_shards[0].data.shape[0] == leaf.shape[0] // 2
    step = jax.jit(train_step(optimizer), donate_argnums=(0, 1))
    compiled = step.lower(params, state, everywhere(every[0])).compile()
    assert copies(compiled) == [] == copies(compiled, of=(params, state))
    # One gather of updates for each stack, and nothing else: state and gradients stay where they are.
    updates = sorted(str(list(leaf["moment"].shape)).replace(" ", "") for leaf in state[0].stacks.values())
    assert {kind for kind, _ in collectives(compiled)} == {"all-gather"}
    assert sorted(f"[{name.split('[')[1].split(']')[0]}]" for _, name in collectives(compiled)) == updates
    for number, grads in enumerate(every):
        before = pointers((params, state))
        params, state = compiled(params, state, everywhere(grads))
        # The parameters of the first step are borrowed from NumPy, and what is borrowed cannot be donated.
        assert pointers((params, state)) == before or number == 0
    expected, other = alone(start, every, **options)
    assert same(jax.device_get(params), jax.device_get(expected))
    assert by_block(state) == by_block(other)


@pytest.mark.parametrize("shared", [False, True], ids=["without mesh", "with mesh"])
def test_sharded_parameters_are_gathered_and_give_the_same_numbers(shared):
    """Parameters and gradients in pieces on the devices (as in fully sharded training), in plain jit."""
    start = {name: jnp.asarray(leaf) for name, leaf in {"w": np.ones((8, 6), "f4"), "v": np.ones((4, 4), "f4")}.items()}
    every, options = gradients(start, 5), {**LIVELY, **({"mesh": mesh()} if shared else {})}
    optimizer = foam(0.01, **options)
    params, state = everywhere(start, P("x", None)), optimizer.init(start)
    assert params["w"].addressable_shards[0].data.shape == (4, 6)
    step = jax.jit(train_step(optimizer))
    compiled = step.lower(params, state, everywhere(every[0], P("x", None))).compile()
    # XLA gathers the pieces: every device computes with whole gradients.
    assert "all-gather" in {kind for kind, _ in collectives(compiled)}
    for grads in every:
        params, state = compiled(params, state, everywhere(grads, P("x", None)))
        params = everywhere(params, P("x", None))
    expected, other = alone(start, every, **LIVELY)
    assert same(jax.device_get(params), jax.device_get(expected))
    assert by_block(state) == by_block(other)


@pytest.mark.parametrize("checked", [False, True])
def test_inside_a_shard_map_of_the_users(checked):
    start = model()
    optimizer = foam(0.01, axis="x", shards=2, **LIVELY)
    specs = partition_specs(jax.eval_shape(optimizer.init, start), "x")
    placed = jax.tree.map(lambda spec: NamedSharding(mesh(), spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))
    params, state = everywhere(start), jax.device_put(jax.device_get(optimizer.init(start)), placed)
    every = gradients(start, 6)

    def step(params, state, grads):
        grads = jax.tree.map(lambda leaf: jax.lax.pmean(leaf[0], "x"), grads)
        return train_step(optimizer)(params, state, grads)

    mapped = shard_map(step, mesh=mesh(), in_specs=(P(), specs, P("x")), out_specs=(P(), specs), **{CHECK: checked})
    halves = [jax.tree.map(lambda leaf: everywhere(jnp.stack([leaf, leaf]), P("x")), grads) for grads in every]
    if checked and CHECK == "check_rep":
        # These releases cannot infer that a gathered array is equal everywhere, and say so.
        with pytest.raises(ValueError, match="check_rep"):
            jax.jit(mapped).lower(params, state, halves[0])
        return
    compiled = jax.jit(mapped, donate_argnums=(0, 1)).lower(params, state, halves[0]).compile()
    assert copies(compiled) == [] == copies(compiled, of=(params, state))
    for number, grads in enumerate(halves):
        before = pointers(state)
        params, state = compiled(params, state, grads)
        assert pointers(state) == before or number == 0
    expected, other = alone(start, every, **LIVELY)
    assert by_block(state) == by_block(other)
    for one, another in zip(jax.tree.leaves(params), jax.tree.leaves(expected)):
        np.testing.assert_allclose(one, another, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("checked", [False, True])
def test_every_device_its_own_parameters_without_a_word_between_them(checked):
    """Expert or pipeline parallelism: the plain optimizer, and no collective at all in the program."""
    optimizer = foam(0.01, **LIVELY)
    many = [model(seed) for seed in range(2)]
    every = [gradients(params, 5, seed) for seed, params in enumerate(many)]

    def together(trees):
        return jax.tree.map(lambda *leaves: everywhere(jnp.stack(leaves), P("x")), *trees)

    # A vmap over the devices' own dimension of 1: taking it off and putting it back would make XLA copy the state.
    step = jax.vmap(train_step(optimizer))
    mapped = shard_map(step, mesh=mesh(), in_specs=P("x"), out_specs=P("x"), **{CHECK: checked})
    params, state = together(many), together([optimizer.init(params) for params in many])
    compiled = jax.jit(mapped, donate_argnums=(0, 1)).lower(params, state, together(next(zip(*every)))).compile()
    assert collectives(compiled) == [] and "all-gather" not in compiled.as_text() and copies(compiled) == []
    for grads in zip(*every):
        params, state = compiled(params, state, together(grads))
    for number, (own, grads) in enumerate(zip(many, every)):
        expected = alone(own, grads, **LIVELY)
        assert same(jax.tree.map(lambda leaf: np.asarray(leaf[number]), (params, state)), jax.device_get(expected))


def test_scan_over_a_mesh_is_in_place_too():
    start, optimizer = model(), foam(0.01, mesh=mesh(), **LIVELY)
    grads = everywhere(jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients(start, 5)))
    step = train_step(optimizer)

    def run(params, state, grads):
        return jax.lax.scan(lambda carry, one: (step(*carry, one), None), (params, state), grads)[0]

    params, state = everywhere(start), optimizer.init(start)
    compiled = jax.jit(run, donate_argnums=(0, 1)).lower(params, state, grads).compile()
    before = pointers(state)
    params, state = compiled(params, state, grads)
    assert pointers(state) == before and copies(compiled) == []
    assert by_block(state) == by_block(alone(start, gradients(start, 5), **LIVELY)[1])


def test_bad_gradients_are_skipped_on_every_device():
    start, optimizer = model(), foam(0.01, mesh=mesh(), **LIVELY)
    state, grads = optimizer.init(start), gradients(start, 1)[0]
    grads["layers"][2]["kernel"] *= jnp.nan
    params, state = jax.jit(train_step(optimizer))(everywhere(start), state, everywhere(grads))
    assert same(jax.device_get(params), jax.device_get(start))
    statistics = foam_stats(state)
    assert statistics["skipped_steps"] == 1 and statistics["not_finite"] == ["layers/2/kernel"]


def test_meshes_that_do_not_fit_are_refused_by_name():
    square = Mesh(np.array(jax.devices()).reshape(2, 1), ("data", "model"))
    with pytest.raises(package.InvalidArgumentError, match="the mesh has axes .*'data', 'model'"):
        foam(mesh=square)
    with pytest.raises(package.InvalidArgumentError, match="axis 'x': expected one of the mesh's axes"):
        foam(mesh=square, axis="x")
    state = foam(mesh=square, axis=("data", "model"), **LIVELY).init({"w": jnp.ones((30, 30))})
    assert state[0].stacks["20x20_float32_root2"]["clock"].sharding.spec == P(("data", "model"))


def test_two_processes_train_as_one(tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    worker = ROOT / "tests" / "jax" / "two_processes.py"
    command = [sys.executable, str(worker), str(tmp_path), str(port)]
    running = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=240)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert all(process.returncode == 0 for process in running), "\n".join(printed)
    params, every = model(), gradients(model(), 6)
    expected, state = alone(params, every, **LIVELY)
    factors = {tuple(factor[key] for key in ("param", "block", "axis")): factor for factor in by_block(state)}
    seen = {}
    for rank in range(2):
        saved = np.load(tmp_path / f"rank{rank}.npy", allow_pickle=True).item()
        assert same(saved["params"], jax.device_get(expected))
        assert not set(saved["factors"]) & set(seen), "no block is worked on twice"
        seen.update(saved["factors"])
        assert saved["gathered"] == ["all-gather"]
    assert seen == factors and len(factors) > 0
