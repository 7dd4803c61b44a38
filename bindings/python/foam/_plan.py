"""What an optimizer needs for given shapes, before it is made: blocks, factors, bytes, products."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _library, _structs
from ._handle import Handle, ParamSpec, _config, describe
from .errors import InvalidArgumentError
from .tensors import DTYPES

__all__ = ["ParamPlan", "Plan", "blocks", "memory", "plan"]


class ParamPlan(NamedTuple):
    """What one parameter needs."""

    name: str
    shape: Tuple[int, ...]
    dtype: str
    #: Bytes of its state: statistics, bases, inverse roots, moments.
    state_bytes: int
    #: For each block, the sides of its factors; empty for a parameter without a preconditioner.
    factors: Tuple[Tuple[int, ...], ...]
    #: Products of each factor for the direction: one with an inverse root; without, one into the basis and one back.
    direction_products: int = 1

    @property
    def values(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def products(self) -> int:
        """Matrix products of a step: for each factor one into its statistic and one or two for the direction."""
        return (1 + self.direction_products) * sum(len(sides) for sides in self.factors)

    @property
    def flops(self) -> int:
        """Floating-point operations of these products."""
        multiplied = sum(math.prod(sides) * sum(sides) for sides in self.factors)
        return 2 * (1 + self.direction_products) * multiplied


class Plan(NamedTuple):
    """What a model needs."""

    params: List[ParamPlan]

    @property
    def state_bytes(self) -> int:
        """Bytes of the whole state, without the workspace."""
        return sum(param.state_bytes for param in self.params)

    @property
    def blocks(self) -> int:
        """Blocks with factors."""
        return sum(len(param.factors) for param in self.params)

    def table(self) -> str:
        """The plan as a Markdown table, one line for parameters that need the same."""
        rows = [("parameter", "shape", "blocks", "factors", "state", "bytes per value", "products", "GFLOP per step")]
        alike: Dict[Tuple[Any, ...], List[ParamPlan]] = {}
        for param in self.params:
            alike.setdefault(param[1:], []).append(param)
        for group in alike.values():
            rows.append(_row(group))
        total = ParamPlan("", (sum(param.values for param in self.params),), "", self.state_bytes, ())
        rows.append(
            (
                f"total of {len(self.params)}",
                f"{total.values} values",
                str(self.blocks),
                str(sum(len(sides) for param in self.params for sides in param.factors)),
                _size(total.state_bytes),
                _ratio(total),
                str(sum(param.products for param in self.params)),
                f"{sum(param.flops for param in self.params) / 1e9:.3g}",
            )
        )
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(lines)


def blocks(specs: Sequence[ParamSpec], preset: Optional[str], options: Mapping[str, Any]) -> Sequence[Any]:
    """The blocks (``foam_block_info``) that the library would cut these parameters into. Nothing is allocated."""
    library = _library.load()
    config = _config(preset, options)
    described, _keep = describe(specs)
    return library.listed("foam_plan_blocks", _structs.BlockInfo, ctypes.byref(config), described, len(specs))


def plan(specs: Sequence[ParamSpec], preset: Optional[str], options: Mapping[str, Any]) -> Plan:
    """What an optimizer would need for these parameters. Nothing is allocated."""
    for spec in specs:
        if spec.dtype not in DTYPES:
            raise InvalidArgumentError(
                f"parameter '{spec.name}': dtype {spec.dtype}: expected one of {', '.join(DTYPES)}"
            )
    sizes = [0] * len(specs)
    sides: List[List[Tuple[int, ...]]] = [[] for _ in specs]
    for block in blocks(specs, preset, options):
        sizes[block.param_index] += block.state_bytes
        if block.factors:
            sides[block.param_index].append(tuple(block.shape[: block.ndim]))
    config = _config(preset, options)
    has_roots = config.keep_inverse_root and config.preconditioner != _structs.PRECONDITIONER_SOAP
    directions = 1 if has_roots else 2
    planned = zip(specs, sizes, sides)
    return Plan(
        [
            ParamPlan(spec.name, tuple(spec.shape), spec.dtype, size, tuple(own), directions)
            for spec, size, own in planned
        ]
    )


def memory(handles: Sequence[Handle]) -> Dict[str, Any]:
    """Bytes of the state of every parameter and of all, and of the workspace."""
    params: Dict[str, int] = {}
    for handle in handles:
        for param in plan(handle.specs, handle.preset, handle.options).params:
            params[param.name] = params.get(param.name, 0) + param.state_bytes
    return {
        "total": sum(params.values()),
        "workspace": sum(handle.stats()["workspace_bytes"] for handle in handles),
        "params": params,
    }


def _row(alike: Sequence[ParamPlan]) -> Tuple[str, ...]:
    first = alike[0]
    more = f" and {len(alike) - 1} alike" if len(alike) > 1 else ""
    return (
        first.name + more,
        "×".join(map(str, first.shape)) + f" {first.dtype}",
        str(len(first.factors)),
        _sides(first),
        _size(first.state_bytes),
        _ratio(first),
        str(first.products),
        f"{first.flops / 1e9:.3g}",
    )


def _sides(param: ParamPlan) -> str:
    """The sides of the first block's factors, which are the largest."""
    return "×".join(map(str, param.factors[0])) if param.factors else "none"


def _ratio(param: ParamPlan) -> str:
    return f"{param.state_bytes / max(param.values, 1):.1f}"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
