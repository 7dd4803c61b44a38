"""The differences between the releases of JAX that are supported, in one place."""

from __future__ import annotations

import inspect
from typing import Any, FrozenSet, Sequence, Tuple

import jax

__all__ = ["OLDEST", "align", "ffi", "gather", "result", "shard_map", "varying"]

#: The first release whose ``ffi_call`` can declare that results lie where operands lay.
OLDEST = (0, 4, 36)


def _version() -> Tuple[int, ...]:
    return tuple(int(part) for part in jax.__version__.split(".")[:3] if part.isdigit())


if _version() < OLDEST:
    raise ImportError(f"foam.jax needs jax {'.'.join(map(str, OLDEST))} or newer; found {jax.__version__}")

if hasattr(jax, "ffi") and hasattr(jax.ffi, "ffi_call"):
    ffi = jax.ffi
else:
    import jax.extend.ffi as ffi  # type: ignore[no-redef]

#: How a result's type says over which axes of a mesh its values vary, or "".
_VARYING = next(
    (name for name in ("manual_axis_type", "vma") if name in inspect.signature(jax.ShapeDtypeStruct).parameters), ""
)


def varying(array: Any) -> FrozenSet[str]:
    """The mesh axes over which an array varies inside a checked ``shard_map``; empty elsewhere."""
    if not _VARYING:
        return frozenset()
    kind = getattr(jax.typeof(array), _VARYING, None)
    return frozenset(getattr(kind, "varying", kind) or ())


def align(arrays: Sequence[Any]) -> list:
    """The arrays, made to vary over the same axes, as a call inside a checked ``shard_map`` demands."""
    axes = frozenset().union(*(varying(array) for array in arrays))
    return [_vary(array, tuple(sorted(axes - varying(array)))) for array in arrays] if axes else list(arrays)


def _vary(array: Any, axes: Tuple[str, ...]) -> Any:
    if not axes:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, axes, to="varying")
    return jax.lax.pvary(array, axes)


def result(shape: Sequence[int], dtype: Any, like: Any) -> jax.ShapeDtypeStruct:
    """The type of a call's result that varies over the axes over which ``like`` does."""
    if not _VARYING or not varying(like):
        return jax.ShapeDtypeStruct(tuple(shape), dtype)
    kind = jax.typeof(like)
    more = {_VARYING: getattr(kind, _VARYING)}
    if _VARYING != "vma":
        # These releases want to know the mesh too.
        whole = jax.sharding.PartitionSpec(*(None for _ in shape))
        more["sharding"] = jax.sharding.NamedSharding(kind.sharding.mesh, whole)
    return jax.ShapeDtypeStruct(tuple(shape), dtype, **more)


def gather(array: Any, axis: str, shards: int) -> Any:
    """The rows of all devices of ``axis``, on every device, inside a ``shard_map``."""
    if not varying(array):
        return jax.lax.all_gather(array, axis, axis=0, tiled=True)
    # Under check_vma the result must count as equal on all devices.
    if "to" in inspect.signature(jax.lax.all_gather).parameters:
        return jax.lax.all_gather(array, axis, axis=0, tiled=True, to="invarying")
    rows = array.shape[0]
    whole = jax.numpy.zeros((rows * shards, *array.shape[1:]), array.dtype)
    start = (jax.lax.axis_index(axis) * rows, *(0 for _ in array.shape[1:]))
    whole, array = align([whole, array])
    return jax.lax.psum(jax.lax.dynamic_update_slice(whole, array, start), axis)


def shard_map(function: Any, mesh: Any, in_specs: Any, out_specs: Any) -> Any:
    """``jax.shard_map`` without its check of replication, which older releases cannot do around foreign calls."""
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    from jax.experimental.shard_map import shard_map as older

    return older(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_rep=False)
