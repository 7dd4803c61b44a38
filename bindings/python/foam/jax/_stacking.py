"""Leaves into stacks of blocks and back."""

from __future__ import annotations

import itertools
from typing import Any, List, Sequence

import jax
import jax.numpy as jnp

from ._plan import Block, Plan, Stack, where

__all__ = ["stacked", "unstacked"]


def stacked(plan: Plan, stack: Stack, leaves: Sequence[Any], dtype: Any = None) -> Any:
    """The stack's blocks of ``leaves`` as one array; zeros for rows and leaves that are None.

    Without ``dtype`` it is that of the leaves, or the stack's precision if they differ.
    """
    arrays = [leaves[block.leaf] for block in stack.rows if block and leaves[block.leaf] is not None]
    if dtype is None:
        kinds = {array.dtype for array in arrays}
        dtype = kinds.pop() if len(kinds) == 1 else jnp.dtype(stack.work)
    pieces = [_piece(plan, stack, block, leaves, dtype) for block in stack.rows]
    return pieces[0] if len(pieces) == 1 else jax.lax.concatenate(pieces, 0)


def _piece(plan: Plan, stack: Stack, block: Any, leaves: Sequence[Any], dtype: Any) -> Any:
    if block is None or leaves[block.leaf] is None:
        return jnp.zeros((1, *stack.dims), dtype)
    return _cut(plan, block, leaves[block.leaf]).astype(dtype)


def _cut(plan: Plan, block: Block, leaf: Any) -> Any:
    shape = plan.shapes[block.leaf]
    if block.dims == shape:
        return leaf.reshape(1, *block.dims)
    ends = [first + side for first, side in zip(block.start, block.dims)]
    return jax.lax.slice(leaf.reshape(shape), block.start, ends)[None]


def unstacked(plan: Plan, stacks: Sequence[Any]) -> List[Any]:
    """The leaves whose blocks lie in ``stacks``, one array a stack of the plan."""
    places = where(plan)
    leaves = []
    for index, leaf in enumerate(plan.leaves):
        grid = plan.grids[index]
        blocks = {}
        for number, at in enumerate(itertools.product(*map(range, grid))):
            place, row = places[index, number]
            whole = stacks[place]
            blocks[at] = whole[0] if whole.shape[0] == 1 else jax.lax.index_in_dim(whole, row, 0, keepdims=False)
        leaves.append(_joined(blocks, (), grid).reshape(leaf.shape))
    return leaves


def _joined(blocks: Any, at: tuple, grid: Sequence[int]) -> Any:
    axis = len(at)
    if axis == len(grid):
        return blocks[at]
    parts = [_joined(blocks, (*at, place), grid) for place in range(grid[axis])]
    return parts[0] if len(parts) == 1 else jax.lax.concatenate(parts, axis)
