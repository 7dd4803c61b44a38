"""Problems to step on, the engine's own answer to them, and what a compiled program tells about itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import foam

ROOT = Path(__file__).resolve().parents[2]

#: Options under which a short run has checks that refresh, raise the damping and reuse.
LIVELY = dict(
    preset="reference",
    check_period=2,
    epsilon=1e-4,
    epsilon_max=1e-2,
    max_factor_dim=20,
    merge_dims=False,
    num_threads=1,
)


def model(seed=0, dtype=np.float32):
    """A nested tree with equal and different shapes, vectors, a tensor and a matrix of several blocks."""
    random = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(random.normal(size=shape).astype(np.float32)).astype(dtype)

    return {
        "embed": normal(40, 12),
        "layers": [{"kernel": normal(16, 8), "bias": normal(8)} for _ in range(3)],
        "tensor": normal(4, 5, 6),
    }


def gradients(params, steps, seed=1):
    """A gradient tree for each step; large and small ones, so that factors drift."""
    random = np.random.default_rng(seed)

    def one(step):
        def draw(leaf):
            values = random.normal(size=leaf.shape) * 0.1 * (1 + step % 3)
            return jnp.asarray(values.astype(np.float32)).astype(leaf.dtype)

        return jax.tree.map(draw, params)

    return [one(step) for step in range(steps)]


def flat(tree):
    """Leaves by the name that foam.jax gives them."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = ["/".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path) for path, _ in leaves]
    return dict(zip(names, (np.asarray(leaf) for _, leaf in leaves)))


class Engine:
    """``foam_step`` on copies of the same parameters."""

    def __init__(self, params, lr, own=None, **options):
        self.weights = {name: np.array(leaf) for name, leaf in flat(params).items()}
        given = {name: foam.Param(array, **(own or {}).get(name, {})) for name, array in self.weights.items()}
        self.optimizer = foam.Optimizer(given, lr=lr, **options)

    def step(self, grads):
        return self.optimizer.step(flat(grads))

    def tree(self, like):
        """The weights as a tree of the form of ``like``."""
        # JAX copies a NumPy array later, when it has time, even in jnp.array: it gets one that no step writes to.
        leaves = [jnp.asarray(self.weights[name].copy()) for name in flat(like)]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)


def subtracted(weight, update, lr):
    """What ``foam_step`` does last, in its precision and order of operations."""
    work = np.float64 if weight.dtype == np.float64 else np.float32
    return (weight.astype(work) - work(lr) * update.astype(work)).astype(weight.dtype)


def same(one, other):
    """Whether two trees are equal, bit for bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other))
    equal = jax.tree.structure(one) == jax.tree.structure(other)
    return equal and all(np.asarray(a).tobytes() == np.asarray(b).tobytes() and a.dtype == b.dtype for a, b in pairs)


def copies(compiled, of=None):
    """The copies of arrays in a compiled program; with ``of``, of such as have the type and shape of one in that tree.

    Scalars (loop counters, the step's number) are not counted, and neither are transpositions, which cut a gradient
    into blocks and which XLA calls copies too.
    """
    names = {"float32": "f32", "float64": "f64", "int32": "s32", "uint32": "u32", "uint8": "u8"}
    wanted = set()
    for leaf in jax.tree.leaves(of):
        shape = leaf.addressable_shards[0].data.shape
        wanted.add(f"{names[str(leaf.dtype)]}[{','.join(map(str, shape))}]")
    found = []
    for line in compiled.as_text().splitlines():
        match = re.search(r"= \(?(\w+\[[\d,]+\])\S* copy(-start)?\(", line)
        if match and (match[1] in wanted if wanted else "transpose" not in line):
            found.append(line.strip()[:160])
    return found


def collectives(compiled):
    """What devices send to each other in a compiled program: (kind, result's type)."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    pattern = rf"= (\(?\w+\[[\d,]*\]\S*).*? ({kinds})(?:-start)?\("
    return [(match[2], match[1]) for match in re.finditer(pattern, compiled.as_text())]


def pointers(tree):
    """Where the arrays lie, device by device."""
    return [[shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards] for leaf in jax.tree.leaves(tree)]


def python(*arguments, environment=None, **options):
    """Runs a Python program with the package on its path; gives the finished process."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "bindings" / "python"), **(environment or {})}
    words = [sys.executable, *map(str, arguments)]
    return subprocess.run(words, env=variables, capture_output=True, text=True, timeout=300, **options)
