"""FOAM for JAX: an ``optax.GradientTransformation`` whose state is a pytree of plain arrays.

>>> import jax.numpy as jnp
>>> from foam.jax import foam, foam_stats
>>> params = {"w": jnp.ones((8, 4))}
>>> optimizer = foam(learning_rate=2e-3)
>>> state = optimizer.init(params)
>>> updates, state = optimizer.update({"w": jnp.ones((8, 4))}, state, params)
>>> foam_stats(state)["steps"]
1

The work is done by the shared library through XLA's foreign function interface, in ``jit``, ``scan``, ``cond``,
``vmap`` and ``shard_map``. Donate the state to your compiled step (``jax.jit(step, donate_argnums=...)``): it is then
updated where it lies.
"""

try:
    import jax as _jax  # noqa: F401
    import optax as _optax  # noqa: F401
except ImportError as cause:
    raise ImportError(f"foam.jax needs jax and optax ({cause}): pip install 'libfoam[jax]'") from cause

from ._sharing import partition_specs
from ._state import ScaleByFoamState
from ._stats import foam_stats, foam_stats_csv
from ._transform import foam, scale_by_foam

__all__ = ["ScaleByFoamState", "foam", "foam_stats", "foam_stats_csv", "partition_specs", "scale_by_foam"]
