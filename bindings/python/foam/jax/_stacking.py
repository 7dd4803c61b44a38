"""Leaves into stacks of blocks and back.

XLA compiles a kernel for every slice, some ten milliseconds each, but kernels that are equal only once. So a leaf of
many blocks is cut by one transposition, and leaves are taken out of a stack by slices that differ in nothing but a
number that is known when they run.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from ._plan import Plan, Region, Stack

__all__ = ["stacked", "unstacked"]


def stacked(plan: Plan, stack: Stack, leaves: Sequence[Any], dtype: Any = None) -> Any:
    """The stack's blocks of ``leaves`` as one array; zeros for rows that hold none and for leaves that are None.

    Without ``dtype`` it is that of the leaves, or the stack's precision if they differ.
    """
    if dtype is None:
        kinds = {leaves[region.leaf].dtype for region in stack.regions if leaves[region.leaf] is not None}
        dtype = kinds.pop() if len(kinds) == 1 else jnp.dtype(stack.work)
    parts = []
    for region in stack.regions:
        leaf = leaves[region.leaf]
        if leaf is None:
            parts.append(jnp.zeros((region.count, *stack.dims), dtype))
        else:
            parts.append(_cut(region, leaf.reshape(plan.shapes[region.leaf])).astype(dtype))
    return _padded(plan, stack, parts[0] if len(parts) == 1 else jax.lax.concatenate(parts, 0))


def unstacked(plan: Plan, stacks: Sequence[Any], any_number: Any) -> List[Any]:
    """The leaves whose blocks lie in ``stacks``, one array a stack of the plan; ``any_number`` is one that XLA does not
    know when it compiles."""
    found: List[Dict[Tuple[int, ...], Any]] = [{} for _ in plan.leaves]
    sizes = [sum(region.count for region in stack.regions) for stack in plan.stacks if len(stack.regions) > 1]
    numbers = _numbers(max(sizes, default=0), any_number)
    for stack, whole in zip(plan.stacks, stacks):
        rows, first = _bare(plan, stack, whole), 0
        for region in stack.regions:
            part = rows
            if len(stack.regions) > 1:
                part = jax.lax.dynamic_slice_in_dim(rows, numbers[first], region.count)
            found[region.leaf][region.start] = _uncut(region, part)
            first += region.count
    return [_assembled(parts).reshape(leaf.shape) for parts, leaf in zip(found, plan.leaves)]


def _numbers(most: int, any_number: Any) -> List[Any]:
    """0, 1, 2, ..., each in a buffer of its own, and none of them known to XLA when it compiles.

    They come out of a branch that is always taken, which XLA cannot see through the sorts of equal numbers.
    """
    if most <= 8:
        return [np.int32(number) for number in range(most)]

    def same(number: Any) -> Any:
        return jax.lax.sort(jnp.stack([number, number]))[0]

    def taken(number: Any) -> List[Any]:
        # Without a sort in it XLA would take both branches, and choose.
        return [same(number) - number, *(jnp.int32(row) for row in range(1, most))]

    def never(number: Any) -> List[Any]:
        return [jnp.int32(0)] * most

    return jax.lax.cond(same(any_number) == any_number, taken, never, any_number)


def _cut(region: Region, leaf: Any) -> Any:
    """The blocks of a region, one a row."""
    ends = [first + count * side for first, count, side in zip(region.start, region.grid, region.dims)]
    part = jax.lax.slice(leaf, region.start, ends)
    if region.count == 1:
        return part[None]
    order = len(region.dims)
    between = part.reshape([size for pair in zip(region.grid, region.dims) for size in pair])
    turned = between.transpose([*range(0, 2 * order, 2), *range(1, 2 * order, 2)])
    return turned.reshape(region.count, *region.dims)


def _uncut(region: Region, rows: Any) -> Any:
    """The part of the leaf that rows of blocks came from."""
    order = len(region.dims)
    between = rows.reshape(*region.grid, *region.dims)
    turned = between.transpose([axis for pair in zip(range(order), range(order, 2 * order)) for axis in pair])
    return turned.reshape([count * side for count, side in zip(region.grid, region.dims)])


def _assembled(parts: Dict[Tuple[int, ...], Any]) -> Any:
    """The parts of a leaf, by where they begin, put together axis by axis, the last first."""
    for axis in reversed(range(len(next(iter(parts))))):
        groups: Dict[Tuple[int, ...], List[Any]] = {}
        for start in sorted(parts):
            groups.setdefault(start[:axis], []).append(parts[start])
        parts = {start: one[0] if len(one) == 1 else jax.lax.concatenate(one, axis) for start, one in groups.items()}
    return parts[()]


def _holes(plan: Plan, stack: Stack) -> List[Tuple[int, int]]:
    """For each shard the number of its blocks, and of its rows without one."""
    size = len(stack.rows) // plan.shards
    shards = [stack.rows[shard * size : (shard + 1) * size] for shard in range(plan.shards)]
    return [(sum(row is not None for row in rows), sum(row is None for row in rows)) for rows in shards]


def _padded(plan: Plan, stack: Stack, blocks: Any) -> Any:
    """The blocks, with the rows between them that only fill up a shard."""
    if None not in stack.rows:
        return blocks
    parts, first = [], 0
    for count, empty in _holes(plan, stack):
        parts.append(jax.lax.slice_in_dim(blocks, first, first + count))
        parts.append(jnp.zeros((empty, *stack.dims), blocks.dtype))
        first += count
    return jax.lax.concatenate([part for part in parts if part.shape[0]], 0)


def _bare(plan: Plan, stack: Stack, rows: Any) -> Any:
    """The rows that hold a block."""
    if None not in stack.rows:
        return rows
    parts, first = [], 0
    for count, empty in _holes(plan, stack):
        parts.append(jax.lax.slice_in_dim(rows, first, first + count))
        first += count + empty
    return jax.lax.concatenate([part for part in parts if part.shape[0]], 0)
