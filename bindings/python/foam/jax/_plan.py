"""The plan: a pytree's leaves cut into blocks by the library, and equal blocks put into stacks.

Everything here is static: it depends on shapes, types, options and the number of shards alone, so that it is the same
in every process and at every trace.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .._handle import ParamSpec
from .._plan import blocks as library_blocks
from ._native import Shape
from ._options import Options, ParamOptions

__all__ = ["Block", "Leaf", "Plan", "Region", "Stack", "cost", "loads", "plan"]


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

    @property
    def ends(self) -> Tuple[int, ...]:
        """Where it ends along each axis."""
        return tuple(first + side for first, side in zip(self.start, self.dims))


class Region(NamedTuple):
    """The blocks of one leaf that are of equal size: a grid of them."""

    leaf: int
    #: Where the grid begins in the merged leaf, and how many blocks it has along each axis.
    start: Tuple[int, ...]
    grid: Tuple[int, ...]
    dims: Tuple[int, ...]

    @property
    def count(self) -> int:
        """How many blocks it has."""
        return math.prod(self.grid)


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
    #: The same blocks, in the same order, as they lie in the leaves.
    regions: Tuple[Region, ...] = ()

    @property
    def shape(self) -> Shape:
        """What the library has to know about its blocks."""
        return Shape(self.dims, self.work, self.preconditioned)


class Plan(NamedTuple):
    """All leaves and stacks."""

    leaves: Tuple[Leaf, ...]
    #: The merged shape of each leaf.
    shapes: Tuple[Tuple[int, ...], ...]
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
    shapes, cuts = _cut(options, leaves)
    groups: Dict[Tuple[Any, ...], List[Tuple[Region, List[Block]]]] = {}
    for leaf, regions in zip(leaves, cuts):
        preconditioned = options.preconditions and not leaf.own.grafting_only
        decay = leaf.own.weight_decay_scale if stacked_decay else 1.0
        for region, blocks in regions:
            root = options.root(leaf.own.root, len(region.dims)) if preconditioned else 0.0
            groups.setdefault((region.dims, leaf.work, preconditioned, root, decay), []).append((region, blocks))
    loads = [0.0] * shards
    # The dearest blocks are placed first; equal ones in the tree's order.
    ordered = sorted(groups.items(), key=lambda item: (-cost(item[0][0], item[0][2]), item[1][0][0]))
    rows = {}
    for kind, regions in ordered:
        rows[kind] = _rows([block for _, blocks in regions for block in blocks], loads, cost(kind[0], kind[2]))
    stacks = [
        Stack(_key(kind), *kind, rows[kind], tuple(region for region, _ in regions))
        for kind, regions in groups.items()
    ]
    return Plan(tuple(leaves), tuple(shapes), tuple(sorted(stacks)), shards)


def _cut(
    options: Options, leaves: Sequence[Leaf]
) -> Tuple[List[Tuple[int, ...]], List[List[Tuple[Region, List[Block]]]]]:
    """The merged shape of every leaf, and its blocks as the library cuts them, in grids of equal ones."""
    specs = [ParamSpec(leaf.name, leaf.shape, leaf.work, *leaf.own) for leaf in leaves]
    found: List[List[Block]] = [[] for _ in leaves]
    for item in library_blocks(specs, options.preset, dict(options.given)) if specs else ():
        start, rest = [], item.offset
        for stride in item.strides[: item.ndim]:
            start.append(rest // stride)
            rest %= stride
        block = Block(item.param_index, item.block, tuple(start), tuple(item.shape[: item.ndim]))
        found[item.param_index].append(block)
    shapes = [tuple(max(ends) for ends in zip(*(block.ends for block in blocks))) for blocks in found]
    return shapes, [_regions(blocks) for blocks in found]


def _regions(blocks: Sequence[Block]) -> List[Tuple[Region, List[Block]]]:
    """The blocks of a leaf, those of equal size together: each such group is a grid."""
    groups: Dict[Tuple[int, ...], List[Block]] = {}
    for block in blocks:
        groups.setdefault(block.dims, []).append(block)
    regions = []
    for dims, equal in groups.items():
        places = [sorted(set(starts)) for starts in zip(*(block.start for block in equal))]
        start, grid = tuple(own[0] for own in places), tuple(len(own) for own in places)
        regions.append((Region(equal[0].leaf, start, grid, dims), equal))
    return regions


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
    ahead = set(order[: len(blocks) - full * shards])
    rest, rows = iter(blocks), []
    for shard in range(shards):
        count = full + (shard in ahead)
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
