"""The plan: a pytree's leaves cut into blocks as the engine cuts them, and equal blocks put into stacks.

Everything here is static: it depends on shapes, types, options and the number of shards alone, so that it is the same
in every process and at every trace.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import InvalidArgumentError
from ._options import Options, ParamOptions

__all__ = ["Block", "Leaf", "Plan", "Region", "Stack", "cost", "loads", "merged", "plan"]


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
    limit, merge = options.whole("max_factor_dim"), options.flag("merge_dims")
    shapes: List[Tuple[int, ...]] = []
    groups: Dict[Tuple[Any, ...], List[Region]] = {}
    for index, leaf in enumerate(leaves):
        shapes.append(merged(leaf.shape, merge, limit))
        preconditioned = options.preconditions and not leaf.own.grafting_only
        if leaf.own.grafting_only and options.text("grafting") == "none":
            raise InvalidArgumentError(
                f"parameter '{leaf.name}' is grafting-only but grafting = none; expected sgd, adagrad, rmsprop or adam"
            )
        decay = leaf.own.weight_decay_scale if stacked_decay else 1.0
        for region in _regions(index, shapes[-1], limit):
            root = options.root(leaf.own.root, len(region.dims)) if preconditioned else 0.0
            groups.setdefault((region.dims, leaf.work, preconditioned, root, decay), []).append(region)
    loads = [0.0] * shards
    # The dearest blocks are placed first; equal ones in the tree's order.
    ordered = sorted(groups.items(), key=lambda item: (-cost(item[0][0], item[0][2]), item[1][0]))
    rows = {}
    for kind, regions in ordered:
        blocks = [block for region in regions for block in _blocks(region, shapes[region.leaf], limit)]
        rows[kind] = _rows(blocks, loads, cost(kind[0], kind[2]))
    stacks = [Stack(_key(kind), *kind, rows[kind], tuple(regions)) for kind, regions in groups.items()]
    return Plan(tuple(leaves), tuple(shapes), tuple(sorted(stacks)), shards)


def _regions(leaf: int, shape: Sequence[int], limit: int) -> Iterator[Region]:
    """A leaf as grids of equal blocks: whole ones of the limit's size, and what is left over at the ends."""
    parts = []
    for side in shape:
        full, rest = divmod(side, limit)
        cuts = [(0, full, limit)] if full else []
        parts.append(cuts + ([(full * limit, 1, rest)] if rest else []))
    for chosen in itertools.product(*parts):
        start, grid, dims = zip(*chosen)
        yield Region(leaf, start, grid, dims)


def _blocks(region: Region, shape: Sequence[int], limit: int) -> Iterator[Block]:
    """The blocks of a region, numbered as the engine numbers those of the whole leaf."""
    whole = [-(-side // limit) for side in shape]
    for at in itertools.product(*map(range, region.grid)):
        start = tuple(first + place * side for first, place, side in zip(region.start, at, region.dims))
        number = 0
        for first, count in zip(start, whole):
            number = number * count + first // limit
        yield Block(region.leaf, number, start, region.dims)


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
