"""What many ranks would have to do for a model: balance, bytes, collectives, and a modelled step. ``python -m foam
scaling`` prints it; nothing is allocated.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence

from . import _library, _structs
from ._handle import ParamSpec, _config, describe
from .errors import FoamError, InvalidArgumentError
from .tensors import DTYPES

__all__ = ["Scaling", "scaling"]

#: Bytes of a rank's note in each collective agreement, without two bytes per parameter, and of a note's seal.
_NOTE, _SEAL = 280, 8
#: Bytes around the values of a message, which are filled up to a multiple of eight.
_WRAP = 16


def _wrapped(size: int) -> int:
    return _WRAP + -(-size // 8) * 8



class Scaling(NamedTuple):
    """What a step is like on so many ranks."""

    ranks: int
    #: Largest and mean bytes of state of a rank.
    state_bytes: int
    state_mean: float
    #: Largest and mean multiplications per step of a rank.
    cost: int
    cost_mean: float
    #: Collectives per step, and the most bytes that a rank sends in one.
    collectives: int
    sent: int
    #: Seconds of the rank with the most work, and of the exchange.
    compute_seconds: float
    exchange_seconds: float

    @property
    def balance(self) -> float:
        """Largest over mean work; 1 is perfect."""
        return self.cost / self.cost_mean if self.cost_mean else 1.0


def owners(specs: Sequence[ParamSpec], ranks: int, preset: Optional[str], options: Mapping[str, Any]) -> Sequence[Any]:
    """The blocks (``foam_block_info``) of these parameters with their owners among so many ranks."""
    library = _library.load()
    config = _config(preset, options)
    described, _keep = describe(specs)
    return library.listed("foam_plan_owners", _structs.BlockInfo, ctypes.byref(config), described, len(specs), ranks)


def scaling(
    specs: Sequence[ParamSpec],
    ranks: int,
    *,
    sharded: bool = False,
    flops: float = 1e14,
    link: float = 5e10,
    latency: float = 2e-5,
    preset: Optional[str] = None,
    options: Optional[Mapping[str, Any]] = None,
) -> Scaling:
    """A step of these parameters on so many ranks.

    Args:
        specs: the parameters.
        ranks: number of ranks.
        sharded: each rank holds an equal part of every parameter (FSDP2) instead of all (DistributedDataParallel).
            The bytes are then those of equal parts; otherwise they are what ``stats()["bytes_sent"]`` counts.
        flops: operations per second of a rank.
        link: bytes per second that a rank sends.
        latency: seconds of a collective.
        preset: as for :class:`foam.Optimizer`.
        options: as for :class:`foam.Optimizer`.
    """
    state, cost, values = [0] * ranks, [0] * ranks, [0] * ranks
    for block in owners(specs, ranks, preset, options or {}):
        state[block.owner] += block.state_bytes
        cost[block.owner] += block.cost
        values[block.owner] += block.elements * DTYPES[specs[block.param_index].dtype][1] // 8
    note = _NOTE + 2 * len(specs) + _SEAL
    others = ranks - 1
    if sharded:
        held = sum(values) / ranks
        # A gradient and a value to the owner, unless it is this rank; new values back to who hold them.
        sent = max(int(2 * held * others / ranks + own * others / ranks) for own in values)
        sent += others * (2 * note + 2 * _WRAP)
        collectives = 4
    else:
        sent = others * (_wrapped(max(values)) + note)
        collectives = 2
    return Scaling(
        ranks,
        max(state),
        sum(state) / ranks,
        max(cost),
        sum(cost) / ranks,
        collectives,
        sent,
        2 * max(cost) / flops,
        (sent / link + collectives * latency) if others else 0.0,
    )


def _measured(
    specs: Sequence[ParamSpec],
    ranks: int,
    sharded: bool,
    preset: Optional[str],
    options: Mapping[str, Any],
    steps: int,
) -> Sequence[str]:
    """The same columns of a real run."""
    from ._measure import World

    shapes = [(spec.name, list(spec.shape), spec.dtype) for spec in specs]
    with World(shapes, ranks, sharded, preset, options) as world:
        world.step(steps + 1)
        ended = world.end()
    return (
        f"{max(ended.state) / 1e6:.4g} MB",
        f"{ended.balance():.3f}",
        str(ended.collectives if ranks > 1 else 0),
        f"{max(ended.sent) / 1e6:.4g} MB",
    )


def main(
    words: Sequence[str],
    ranks: Sequence[int],
    sharded: bool,
    speeds: Sequence[float],
    preset: Optional[str],
    settings: Sequence[str],
    measure: int = 0,
) -> int:
    """Prints a table, one line per number of ranks; 2 if a shape, an option or a number is wrong. With ``measure``
    real runs of so many steps stand beside the model: processes over gloo on this machine.
    """
    from .doctor import _pair, _shapes

    try:
        options = dict(_pair(setting, "KEY=VALUE") for setting in settings)
        shapes = [pair for word in words for pair in _shapes(word)]
        specs = [ParamSpec(name, own.shape, own.dtype) for name, own in shapes]
        flops, link, latency = speeds
        if min(flops, link) <= 0 or latency < 0:
            raise InvalidArgumentError("flops and link: expected numbers > 0; latency: expected at least 0")
        rows: List[Sequence[str]] = [
            ("ranks", "state, largest", "work, largest / mean", "collectives", "bytes sent", "work", "exchange", "step")
        ]
        if measure:
            rows[0] = (*rows[0], "measured: state", "work, largest / mean", "collectives", "bytes sent")
        for count in ranks:
            found = scaling(
                specs,
                count,
                sharded=sharded,
                flops=flops,
                link=link,
                latency=latency,
                preset=preset,
                options=options,
            )
            seconds = [found.compute_seconds, found.exchange_seconds, found.compute_seconds + found.exchange_seconds]
            rows.append(
                (
                    str(count),
                    f"{found.state_bytes / 1e6:.4g} MB",
                    f"{found.balance:.3f}",
                    str(found.collectives if count > 1 else 0),
                    f"{found.sent / 1e6:.4g} MB",
                    *(f"{1e3 * each:.4g} ms" for each in seconds),
                    *(_measured(specs, count, sharded, preset, options, measure) if measure else ()),
                )
            )
    except (OSError, FoamError) as cause:
        print(f"scaling: {cause}", file=sys.stderr)
        return 2
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print("\n".join(lines))
    return 0
