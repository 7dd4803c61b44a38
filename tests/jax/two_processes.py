"""One process of the two that share a model's blocks: ``two_processes.py FOLDER PORT RANK``."""

import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bindings" / "python"))

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from foam.jax import foam, foam_stats
from support import LIVELY, collectives, gradients, model


def main():
    folder, port, rank = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=rank)
    mesh = Mesh(np.array(jax.devices()), ("hosts",))
    whole = NamedSharding(mesh, PartitionSpec())

    def everywhere(tree):
        def place(leaf):
            return jax.make_array_from_callback(leaf.shape, whole, np.asarray(leaf).__getitem__)

        return jax.tree.map(place, tree)

    optimizer = foam(0.01, mesh=mesh, **LIVELY)
    start = model()
    params, state = everywhere(start), optimizer.init(everywhere(start))

    def step(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    every = [everywhere(grads) for grads in gradients(start, 6)]
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, every[0]).compile()
    for grads in every:
        params, state = compiled(params, state, grads)
    factors = [{key: str(value) for key, value in factor.items()} for factor in foam_stats(state)["factors"]]
    saved = {
        "params": jax.tree.map(lambda leaf: np.asarray(leaf.addressable_shards[0].data), params),
        "factors": {tuple(factor[key] for key in ("param", "block", "axis")): factor for factor in factors},
        "gathered": sorted({kind for kind, _ in collectives(compiled)}),
    }
    np.save(folder / f"rank{rank}.npy", saved, allow_pickle=True)


if __name__ == "__main__":
    main()
