"""The plan: a pytree's leaves cut into blocks as the engine cuts them, and equal blocks put into stacks.

Everything here is static: it depends on shapes, types, options and the number of shards alone, so that it is the same
in every process and at every trace.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import InvalidArgumentError
from ._options import Options, ParamOptions

__all__ = ["Block", "Leaf", "Plan", "Stack", "merged", "plan"]


class Leaf(NamedTuple):
    """A leaf that takes part."""

    name: str
    shape: Tuple[int, ...]
    #: The precision of its work, "float32" or "float64".
    work: str
    own: ParamOptions


class Block(NamedTuple):
    """A rectangular piece of a merged leaf."""

    leaf: int
    #: Its number within the leaf, in row-major order.
    number: int
    start: Tuple[int, ...]
    dims: Tuple[int, ...]


class Stack(NamedTuple):
    """Blocks of equal dims, precision and options, which one call works on."""

    #: Its key in the state.
    key: str
    dims: Tuple[int, ...]
    work: str
    preconditioned: bool
    root: float
    weight_decay_scale: float
    #: The blocks, row by row; None for a row that only fills up a shard.
    rows: Tuple[Optional[Block], ...]


class Plan(NamedTuple):
    """All leaves and stacks."""

    leaves: Tuple[Leaf, ...]
    #: The merged shape of each leaf, and how many blocks there are along each axis.
    shapes: Tuple[Tuple[int, ...], ...]
    grids: Tuple[Tuple[int, ...], ...]
    stacks: Tuple[Stack, ...]
    shards: int


def plan(options: Options, leaves: Sequence[Leaf], stacked_decay: bool, shards: int = 1) -> Plan:
    """Cuts ``leaves`` into blocks and stacks them.

    Args:
        options: the transformation's.
        leaves: those that take part, in the tree's order.
        stacked_decay: whether the calls do the weight decay; its scale then tells stacks apart.
        shards: how many devices share the rows of each stack.
    """
    limit, merge = options.whole("max_factor_dim"), options.flag("merge_dims")
    shapes, grids, groups = [], [], {}
    for index, leaf in enumerate(leaves):
        shape = merged(leaf.shape, merge, limit)
        grid = tuple(-(-side // limit) for side in shape) if any(side > limit for side in shape) else (1,) * len(shape)
        shapes.append(shape)
        grids.append(grid)
        preconditioned = options.preconditions and not leaf.own.grafting_only
        if leaf.own.grafting_only and options.text("grafting") == "none":
            raise InvalidArgumentError(
                f"parameter '{leaf.name}' is grafting-only but grafting = none; expected sgd, adagrad, rmsprop or adam"
            )
        decay = leaf.own.weight_decay_scale if stacked_decay else 1.0
        for number, at in enumerate(itertools.product(*map(range, grid))):
            start = tuple(place * limit for place in at)
            dims = tuple(min(limit, side - first) for first, side in zip(start, shape))
            root = options.root(leaf.own.root, len(dims)) if preconditioned else 0.0
            kind = (dims, leaf.work, preconditioned, root, decay)
            groups.setdefault(kind, []).append(Block(index, number, start, dims))
    loads = [0.0] * shards
    # The dearest blocks are placed first; equal ones in the tree's order.
    ordered = sorted(groups.items(), key=lambda item: (-cost(item[0][0], item[0][2]), item[1][0]))
    rows = {kind: _rows(blocks, loads, cost(kind[0], kind[2])) for kind, blocks in ordered}
    stacks = [Stack(_key(kind), *kind, rows[kind]) for kind in groups]
    return Plan(tuple(leaves), tuple(shapes), tuple(grids), tuple(sorted(stacks)), shards)


def merged(shape: Sequence[int], merge: bool, limit: int) -> Tuple[int, ...]:
    """The shape that is cut: ones dropped and neighbours merged from the left while the product fits the limit."""
    if not merge:
        return tuple(shape) or (1,)
    kept: List[int] = []
    for side in shape:
        if side == 1:
            continue
        if kept and kept[-1] * side <= limit:
            kept[-1] *= side
        else:
            kept.append(side)
    return tuple(kept) or (1,)


def cost(dims: Sequence[int], preconditioned: bool) -> float:
    """What a step with a block costs, in multiplications: statistic and inverse root along each axis, and the share
    of the checks, whose eigendecompositions grow with the cube of the side."""
    elements = math.prod(dims)
    if not preconditioned:
        return float(elements)
    return float(sum(2 * elements * side + side**3 for side in dims))


def _rows(blocks: List[Block], loads: List[float], each: float) -> Tuple[Optional[Block], ...]:
    """Deals blocks to shards: the same number to each, and what is left over to those with the least to do."""
    shards = len(loads)
    size = -(-len(blocks) // shards)
    full = len(blocks) // shards
    order = sorted(range(shards), key=lambda shard: (loads[shard], shard))
    luckless = set(order[: len(blocks) - full * shards])
    rest, rows = iter(blocks), []
    for shard in range(shards):
        count = full + (shard in luckless)
        loads[shard] += count * each
        rows += [next(rest) for _ in range(count)] + [None] * (size - count)
    return tuple(rows)


def _key(kind: Tuple[Any, ...]) -> str:
    """A name that says what is in the stack; no two kinds have the same."""
    dims, work, preconditioned, root, decay = kind
    parts = ["x".join(map(str, dims)), work]
    parts += [f"root{root:.17g}"] if preconditioned else ["grafting"]
    parts += [f"decay{decay:.17g}"] if decay != 1.0 else []
    return "_".join(parts).replace(".", "p").replace("+", "")


def loads(chosen: Plan) -> List[float]:
    """The cost that each shard has."""
    totals = [0.0] * chosen.shards
    for stack in chosen.stacks:
        size = len(stack.rows) // chosen.shards
        for row, block in enumerate(stack.rows):
            totals[row // size] += cost(stack.dims, stack.preconditioned) if block else 0.0
    return totals


def where(chosen: Plan) -> Dict[Tuple[int, int], Tuple[int, int]]:
    """The stack and the row of each (leaf, number)."""
    return {
        (block.leaf, block.number): (place, row)
        for place, stack in enumerate(chosen.stacks)
        for row, block in enumerate(stack.rows)
        if block is not None
    }
