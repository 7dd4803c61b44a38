"""What a step through JAX costs: compile time, plain steps, checks, for few and for many blocks.

    PYTHONPATH=bindings/python FOAM_LIBRARY=target/release/libfoam.so python benches/jax_step.py

Compile time is that of the whole update, `jax.jit(optimizer.update).lower(...).compile()`. A plain step is one without
a check, medians of 30; `adamw` is optax.adamw on the same tree, `engine` is foam.Optimizer.step on the same gradients.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

import foam as package
from foam.jax import foam

#: Name, and the shapes of a tree with so many blocks.
CASES = [
    ("50 equal", [(64, 64)] * 50),
    ("400 equal", [(64, 64)] * 400),
    ("50 of 10 shapes", [(32 + 8 * (number % 10), 64) for number in range(50)]),
    ("400 of 10 shapes", [(32 + 8 * (number % 10), 64) for number in range(400)]),
    ("50 cut of 2 matrices", [(320, 320), (320, 320)]),
    ("400 cut of 4 matrices", [(640, 640), (640, 640), (640, 640), (640, 640)]),
    ("50 of 50 shapes", [(16 + number, 64) for number in range(50)]),
    ("400 of 400 shapes", [(16 + number // 20, 17 + number % 20) for number in range(400)]),
]
#: The first step checks, and then none for long.
OPTIONS = dict(cadence="paper", check_period=1000, max_factor_dim=64, merge_dims=False, epsilon=1e-3, epsilon_max=1e-1)


def tree(shapes, seed):
    random = np.random.default_rng(seed)
    return {f"p{number:03}": jnp.asarray(random.normal(size=shape), jnp.float32) for number, shape in enumerate(shapes)}


def measure(optimizer, params, grads, repeats=30):
    """Seconds to trace and lower, to compile, and of a step."""
    state = optimizer.init(params)
    began = time.perf_counter()
    lowered = jax.jit(optimizer.update, donate_argnums=1).lower(grads, state, params)
    traced = time.perf_counter()
    compiled = lowered.compile()
    done = time.perf_counter()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        updates, state = compiled(grads, state, params)
        jax.block_until_ready(updates)
        times.append(time.perf_counter() - start)
    return traced - began, done - traced, statistics.median(times)


def engine(params, grads, repeats=30):
    weights = {name: np.array(leaf) for name, leaf in params.items()}
    gradients = {name: np.array(leaf) for name, leaf in grads.items()}
    with package.Optimizer(weights, **OPTIONS) as optimizer:
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            optimizer.step(gradients)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main():
    print(f"{package.build_info()} | jax {jax.__version__} on {jax.default_backend()}")
    print("| blocks | trace s | compile s | plain step ms | engine ms | a check of all, EVD ms | adamw ms |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, shapes in CASES:
        params, grads = tree(shapes, 0), tree(shapes, 1)
        trace, compile_, step = measure(foam(**OPTIONS), params, grads)
        _, _, check = measure(foam(**{**OPTIONS, "check_period": 1, "policy": "stale"}), params, grads, 3)
        _, _, adamw = measure(optax.adamw(1e-3), params, grads)
        bare = engine(params, grads)
        cells = [f"{trace:.2f}", f"{compile_:.2f}", *(f"{1e3 * value:.2f}" for value in (step, bare, check, adamw))]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
