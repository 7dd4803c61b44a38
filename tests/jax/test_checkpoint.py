"""A state travels bit for bit: Orbax, Flax, pickle; also onto another sharding."""

import pickle

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import serialization
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from foam.jax import foam, foam_stats, partition_specs
from support import LIVELY, gradients, model, same


def trained(optimizer, params, state=None, steps=5, seed=1):
    state = optimizer.init(params) if state is None else state
    step = jax.jit(optimizer.update)
    for grads in gradients(params, steps, seed):
        updates, state = step(grads, state, params)
    return state


def test_orbax_resumes_bit_for_bit(tmp_path):
    params, optimizer = model(), foam(**LIVELY)
    state = trained(optimizer, params)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", jax.eval_shape(optimizer.init, params))
        bare = checkpointer.restore(tmp_path / "state")
    assert same(restored, state)
    assert same(trained(optimizer, params, restored, seed=2), trained(optimizer, params, state, seed=2))
    assert str(foam_stats(bare)) == str(foam_stats(state)), "readable without the optimizer"


def test_orbax_restores_onto_another_sharding(tmp_path):
    params = model()
    mesh = Mesh(np.array(jax.devices()), ("x",))
    shared = foam(mesh=mesh, **LIVELY)
    state = trained(shared, params)
    turned = Mesh(np.array(jax.devices()[::-1]), ("y",))
    other = foam(mesh=turned, **LIVELY)
    specs = partition_specs(jax.eval_shape(other.init, params), "y")
    target = jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(turned, spec)),
        jax.eval_shape(other.init, params),
        specs,
        is_leaf=lambda leaf: isinstance(leaf, PartitionSpec),
    )
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", target)
    assert same(restored, state)
    clock = restored[0].stacks["16x8_float32_root2"]["clock"]
    assert clock.sharding == NamedSharding(turned, PartitionSpec("y"))
    assert same(trained(other, params, restored, seed=2), trained(shared, params, state, seed=2))


def test_flax_and_pickle_carry_it_too():
    params, optimizer = model(), foam(**LIVELY)
    state = trained(optimizer, params)
    assert same(serialization.from_bytes(optimizer.init(params), serialization.to_bytes(state)), state)
    assert same(pickle.loads(pickle.dumps(jax.device_get(state))), state)
