"""What an optimizer needs for given shapes, before it is made: blocks, factors, bytes, products."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _library
from ._handle import Handle, ParamSpec, _config, describe
from .errors import InvalidArgumentError, OutOfMemoryError
from .tensors import DTYPES

__all__ = ["ParamPlan", "Plan", "memory", "plan"]

#: Blocks are looked at by making the state of one parameter at a time; states of more bytes are not made for that.
_LARGEST = 1 << 32

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_DEALLOCATE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class ParamPlan(NamedTuple):
    """What one parameter needs."""

    name: str
    shape: Tuple[int, ...]
    dtype: str
    #: Bytes of its state: statistics, bases, inverse roots, moments.
    state_bytes: int
    #: For each block, the sides of its factors; empty for a parameter without a preconditioner; None if unknown,
    #: because the state is too large to be made for a look at it.
    factors: Optional[Tuple[Tuple[int, ...], ...]]

    @property
    def values(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def products(self) -> int:
        """Matrix products of a step: for each factor one into its statistic and one for the direction."""
        return 2 * sum(len(sides) for sides in self.factors or ())

    @property
    def flops(self) -> int:
        """Floating-point operations of these products."""
        return sum(4 * math.prod(sides) * sum(sides) for sides in self.factors or ())


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
        return sum(len(param.factors or ()) for param in self.params)

    def table(self) -> str:
        """The plan as a Markdown table, one line for parameters that need the same."""
        rows = [("parameter", "shape", "blocks", "factors", "state", "bytes per value", "products", "GFLOP per step")]
        alike: Dict[Tuple[Any, ...], List[ParamPlan]] = {}
        for param in self.params:
            alike.setdefault(param[1:], []).append(param)
        for group in alike.values():
            rows.append(_row(group))
        total = ParamPlan("", (sum(param.values for param in self.params),), "", self.state_bytes, None)
        rows.append(
            (
                f"total of {len(self.params)}",
                f"{total.values} values",
                str(self.blocks),
                str(sum(len(sides) for param in self.params for sides in param.factors or ())),
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


def plan(specs: Sequence[ParamSpec], preset: Optional[str], options: Mapping[str, Any]) -> Plan:
    """What an optimizer would need for these parameters. Nothing of the model is allocated."""
    known: Dict[Tuple[Any, ...], ParamPlan] = {}
    planned = []
    for spec in specs:
        if spec.dtype not in DTYPES:
            raise InvalidArgumentError(
                f"parameter '{spec.name}': dtype {spec.dtype}: expected one of {', '.join(DTYPES)}"
            )
        if spec[1:] not in known:
            size = _state_bytes(spec, preset, options)
            sides = _factors(spec, preset, options) if size <= _LARGEST else None
            known[spec[1:]] = ParamPlan(spec.name, tuple(spec.shape), spec.dtype, size, sides)
        planned.append(known[spec[1:]]._replace(name=spec.name))
    return Plan(planned)


def memory(handles: Sequence[Handle]) -> Dict[str, Any]:
    """Bytes of the state of every parameter and of all, and of the workspace."""
    params: Dict[str, int] = {}
    known: Dict[Tuple[Any, ...], int] = {}
    for number, handle in enumerate(handles):
        for spec in handle.specs:
            key = (number, *spec[1:])
            if key not in known:
                known[key] = _state_bytes(spec, handle.preset, handle.options)
            params[spec.name] = params.get(spec.name, 0) + known[key]
    return {
        "total": sum(params.values()),
        "workspace": sum(handle.stats()["workspace_bytes"] for handle in handles),
        "params": params,
    }


def _state_bytes(spec: ParamSpec, preset: Optional[str], options: Mapping[str, Any]) -> int:
    """Bytes of a parameter's state, without allocating it: the allocator hears of the size and refuses."""
    asked: List[int] = []

    def refuse(_user: Any, size: int, _alignment: int) -> None:
        asked.append(size)

    callbacks = (_ALLOCATE(refuse), _DEALLOCATE(lambda *_: None))
    config = _config(preset, {**options, "device": "cpu", "num_threads": 1})
    config.allocate, config.deallocate = (ctypes.cast(each, ctypes.c_void_p) for each in callbacks)
    described, _keep = describe([spec])
    pointer = ctypes.c_void_p()
    library = _library.load()
    try:
        library.call("foam_create", ctypes.byref(config), described, 1, ctypes.byref(pointer))
    except OutOfMemoryError:
        # The state is what is asked for first.
        return asked[0]
    library.functions.foam_destroy(pointer)
    raise AssertionError("foam_create succeeded although its allocator gave nothing")


def _factors(spec: ParamSpec, preset: Optional[str], options: Mapping[str, Any]) -> Tuple[Tuple[int, ...], ...]:
    handle = Handle([spec], preset, {**options, "device": "cpu", "num_threads": 1})
    sides: Dict[int, List[int]] = {}
    for factor in handle.factor_stats():
        sides.setdefault(factor["block"], []).append(factor["dim"])
    handle.close()
    return tuple(tuple(each) for each in sides.values())


def _row(alike: Sequence[ParamPlan]) -> Tuple[str, ...]:
    first = alike[0]
    more = f" and {len(alike) - 1} alike" if len(alike) > 1 else ""
    return (
        first.name + more,
        "×".join(map(str, first.shape)) + f" {first.dtype}",
        "?" if first.factors is None else str(len(first.factors)),
        _sides(first),
        _size(first.state_bytes),
        _ratio(first),
        "?" if first.factors is None else str(first.products),
        "?" if first.factors is None else f"{first.flops / 1e9:.3g}",
    )


def _sides(param: ParamPlan) -> str:
    """The sides of the first block's factors, which are the largest."""
    if param.factors is None:
        return "?"
    return "×".join(map(str, param.factors[0])) if param.factors else "none"


def _ratio(param: ParamPlan) -> str:
    return f"{param.state_bytes / max(param.values, 1):.1f}"


def _size(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
