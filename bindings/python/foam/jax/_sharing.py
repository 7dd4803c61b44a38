"""Blocks shared by devices: each works on its own rows of every stack, and only the updates are gathered."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, NamedTuple, Optional, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..errors import InvalidArgumentError
from . import _compat
from ._state import ScaleByFoamState

__all__ = ["ALONE", "Sharing", "partition_specs"]

Axis = Union[str, Tuple[str, ...]]


class Sharing(NamedTuple):
    """Over which axis of which mesh the rows are spread; hashable."""

    mesh: Optional[Mesh] = None
    axis: Optional[Axis] = None
    shards: int = 1

    @classmethod
    def read(cls, mesh: Optional[Mesh], axis: Optional[Axis], shards: Optional[int]) -> Sharing:
        """Checks what the user gave."""
        axis = tuple(axis) if isinstance(axis, list) else axis
        if mesh is None and axis is None:
            if shards not in (None, 1):
                raise InvalidArgumentError(f"shards = {shards} without an axis: expected axis='name' too")
            return ALONE
        if mesh is None:
            if shards is None or shards < 1:
                raise InvalidArgumentError(
                    f"axis = {axis!r} without a mesh: expected mesh=..., or, to use it inside your own shard_map, "
                    "shards=the number of devices along the axis"
                )
            return cls(None, axis, int(shards))
        names = tuple(mesh.axis_names)
        if axis is None:
            if len(names) != 1:
                raise InvalidArgumentError(f"the mesh has axes {names}: expected axis= one of them")
            axis = names[0]
        listed = axis if isinstance(axis, tuple) else (axis,)
        missing = [name for name in listed if name not in names]
        if missing:
            raise InvalidArgumentError(f"axis {missing[0]!r}: expected one of the mesh's axes {names}")
        count = math.prod(mesh.shape[name] for name in listed)
        if shards not in (None, count):
            raise InvalidArgumentError(f"shards = {shards}: the mesh has {count} devices along {axis!r}")
        return cls(mesh, axis, count)

    @property
    def spec(self) -> PartitionSpec:
        """How the rows of a stack are spread."""
        return PartitionSpec(self.axis)

    @property
    def inside(self) -> bool:
        """Whether the step runs inside the user's own ``shard_map``."""
        return self.mesh is None and self.axis is not None

    def place(self, make: Callable[[Any], ScaleByFoamState], traced: bool) -> ScaleByFoamState:
        """Makes the state where it belongs; no device ever holds rows of another.

        Args:
            make: from jax.numpy or NumPy to the state.
            traced: whether this happens in a program that is being compiled.
        """
        if self.mesh is None:
            return make(jnp) if traced else jax.tree.map(_owned, make(np))
        make = functools.partial(make, jnp)
        specs = partition_specs(jax.eval_shape(make), self.axis)
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
        )
        return jax.jit(make, out_shardings=shardings)()

    def spread(self, work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """``work`` on every device of the mesh.

        Args:
            work: from the state's rows and a tree that every device has whole to the rows afterwards and another such
                tree; it takes its own rows of the latter with :meth:`own` and returns those of all with :meth:`all`.
        """
        if self.mesh is None:
            return work
        whole = PartitionSpec()
        return _compat.shard_map(work, self.mesh, in_specs=(self.spec, whole), out_specs=(self.spec, whole))

    def own(self, array: Any) -> Any:
        """This device's rows of an array that every device has whole."""
        if self.shards == 1:
            return array
        count = array.shape[0] // self.shards
        return jax.lax.dynamic_slice_in_dim(array, jax.lax.axis_index(self.axis) * count, count)

    def all(self, array: Any) -> Any:
        """The rows of all devices; what every device gets to see of the others' work."""
        return array if self.shards == 1 else _compat.gather(array, self.axis, self.shards)


def _owned(array: np.ndarray) -> jax.Array:
    """An array of JAX's own, without compiling anything.

    JAX borrows NumPy's memory where it is aligned, and what is borrowed cannot be donated: so it is not.
    """
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + 8
    crooked = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    crooked[...] = array
    return jax.device_put(crooked)


#: Every device has everything.
ALONE = Sharing()


def partition_specs(state: Any, axis: Axis) -> Any:
    """The ``PartitionSpec`` of every array of an optimizer state whose blocks are spread over ``axis``.

    For ``in_specs`` and ``out_specs`` of a ``shard_map`` around a step, and for shardings to restore a checkpoint onto.

    Args:
        state: a state, or the shapes of one (``jax.eval_shape``); arrays outside of FOAM's stacks are not spread.
        axis: the mesh axis, or a tuple of them.
    """

    def of(part: Any) -> Any:
        spread = PartitionSpec(axis)
        if not isinstance(part, ScaleByFoamState):
            return PartitionSpec()
        return jax.tree.map(lambda _: PartitionSpec(), part)._replace(
            stacks=jax.tree.map(lambda _: spread, part.stacks)
        )

    return jax.tree.map(of, state, is_leaf=lambda part: isinstance(part, ScaleByFoamState))
