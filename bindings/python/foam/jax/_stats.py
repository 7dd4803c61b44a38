"""The statistics of every factor, read out of a state."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import jax
import numpy as np

from .. import _structs
from .._csv import append_snapshot
from .._diagnosis import diagnose, merged
from ..errors import InvalidArgumentError
from ._native import record_fields
from ._state import ScaleByFoamState

__all__ = ["foam_stats", "foam_stats_csv"]

#: Options that belong to a machine: what was found does not depend on them.
_UNJUDGED = ("device", "num_threads")

#: Fields of a record that are no counters of a run.
_UNCOUNTED = ("last_branch", "has_basis", "last_refresh", "last_check", "pending_since")

#: Bits of ``info``.
NO_PART, NOT_FINITE, OVERFLOWED, FELL_BACK = 1, 2, 4, 8


def foam_stats(state: Any) -> Dict[str, Any]:
    """The statistics of an optimizer state, or of every FOAM state within one.

    Returns a dict: ``steps``, ``skipped_steps``, ``params``, ``blocks``, the sums of all counters (``checks`` is what
    stale Shampoo would have spent on eigendecompositions, ``evd_calls`` what was spent, ``evd_rate`` their quotient),
    ``not_finite`` (the parameters whose gradients stopped the last step), ``overflowed`` (those whose direction was
    left out of it), ``findings`` (a sentence for each thing that keeps the configuration from working, by name: the
    option to change, and a value to try), and ``factors``: a list with a dict for each factor, ordered by parameter, block and axis, with
    the fields of ``foam_factor_info`` (``epsilon``, ``proxy``, ``gap_bound``, ``evd_calls`` and so on), ``param``,
    ``branch`` and ``evd_rate``. Values that do not exist yet are NaN.

    A process of several sees the blocks that its own devices hold. States under ``vmap`` have their factors one after
    the other, told apart by ``replica``.
    """
    parts = [_Reader(part) for part in _states(state)]
    if not parts:
        raise InvalidArgumentError("there is no state of scale_by_foam in it: expected an optimizer state")
    factors = [factor for part in parts for factor in part.factors()]
    found: Dict[str, Any] = {
        "steps": max(part.count for part in parts),
        "skipped_steps": max(part.skipped for part in parts),
        "params": sum(len(part.names) for part in parts),
        "blocks": sum(part.blocks for part in parts),
    }
    for name, field in record_fields().items():
        if field.dtype == "<i8" and name not in _UNCOUNTED:
            found[name] = sum(factor[name] for factor in factors)
    found["evd_rate"] = _rate(found)
    judged = [part.judge() for part in parts]
    found["findings"] = merged([findings for findings, _ in judged], "state")
    factors = [factor for _, own in judged for factor in own]
    found["not_finite"] = sorted({name for part in parts for name in part.marked(NOT_FINITE)})
    found["overflowed"] = sorted({name for part in parts for name in part.marked(OVERFLOWED)})
    found["factors"] = factors
    return found


def foam_stats_csv(path: Any, state: Any) -> None:
    """Appends one row per factor to a CSV file, with the step: call it every so often outside of the compiled step,
    then run ``python -m foam plot`` on the file. The file is made with a header at the first call.
    """
    parts = [_Reader(part) for part in _states(state)]
    if not parts:
        raise InvalidArgumentError("there is no state of scale_by_foam in it: expected an optimizer state")
    for part in parts:
        append_snapshot(path, part)


def _states(tree: Any) -> List[Any]:
    """Every FOAM state within a tree; one that was restored without its type is a dict."""

    def is_state(part: Any) -> bool:
        named = isinstance(part, Mapping) and set(part) == set(ScaleByFoamState._fields)
        return named or isinstance(part, ScaleByFoamState)

    found = [part for part in jax.tree.leaves(tree, is_leaf=is_state) if is_state(part)]
    return [part if isinstance(part, ScaleByFoamState) else ScaleByFoamState(**part) for part in found]


def _rate(statistics: Mapping[str, Any]) -> float:
    return statistics["evd_calls"] / statistics["checks"] if statistics["checks"] else 0.0


class _Reader:
    """One state, decoded. It has the methods that a CSV snapshot is made of."""

    def __init__(self, state: ScaleByFoamState) -> None:
        text = bytes(_whole(state.layout).reshape(-1, state.layout.shape[-1])[0])
        self.layout = json.loads(text)
        self.state = state
        self.names: List[str] = self.layout["params"]
        self.options: Dict[str, str] = self.layout["options"]
        self.count = int(_whole(state.count).max())
        self.skipped = int(_whole(state.skipped).max())
        self.blocks = sum(row is not None for stack in self.layout["stacks"].values() for row in stack["rows"])

    def stats(self) -> Dict[str, int]:
        """What a snapshot has to know of the whole."""
        return {"steps": self.count}

    def factor_stats(self) -> List[Dict[str, Any]]:
        """The factors as a snapshot wants them."""
        return self.judge()[1]

    def judge(self) -> Tuple[Dict[str, str], List[Dict[str, Any]]]:
        """What is wrong, a sentence by finding, and the factors with the names of their own findings."""
        factors = self.factors()
        options = {key: value for key, value in self.options.items() if key not in _UNJUDGED}
        findings, each = diagnose(options, factors)
        return findings, [{**factor, "findings": own} for factor, own in zip(factors, each)]

    def factors(self) -> List[Dict[str, Any]]:
        """The statistics of every factor, ordered by parameter, block and axis."""
        found = []
        for key, stack in self.layout["stacks"].items():
            own = self.state.stacks[key]
            if "record" not in own:
                continue
            for replica, row, words in _rows(own["record"], 3):
                place = stack["rows"][row]
                if place is not None:
                    found += _factors(self.names[place[0]], place, stack, np.ascontiguousarray(words), replica)
        order = ("param_index", "block", "replica", "axis")
        return sorted(found, key=lambda factor: tuple(factor[key] for key in order))

    def marked(self, bit: int) -> Iterator[str]:
        """The parameters that have a block with ``bit`` in its info."""
        for key, stack in self.layout["stacks"].items():
            for _, row, info in _rows(self.state.stacks[key]["info"], 1):
                place = stack["rows"][row]
                if place is not None and int(info) & bit:
                    yield self.names[place[0]]


def _factors(name: str, place: List[int], stack: Dict[str, Any], words: Any, replica: int) -> Iterator[Dict[str, Any]]:
    for axis, side in enumerate(stack["dims"]):
        statistics: Dict[str, Any] = {"param": name, "param_index": place[0], "block": place[1], "axis": axis, "dim": side}
        statistics.update(root=stack["root"], epsilon_base=stack["epsilon_base"][axis], replica=replica)
        for field, (word, count, dtype) in record_fields().items():
            statistics[field] = words[axis, word : word + count].view(dtype)[0].item()
        ratio, largest = stack["epsilon_ratio"][axis], statistics["eigenvalue_max"]
        if ratio and largest > 0:
            statistics["epsilon_base"] = max(ratio * largest, 2.0**-120)
        statistics["branch"] = _structs.BRANCHES[statistics.pop("last_branch")]
        statistics["has_basis"] = bool(statistics["has_basis"])
        statistics["evd_rate"] = _rate(statistics)
        yield statistics


def _whole(array: Any) -> Any:
    """An array that every device has whole."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        array = array.addressable_shards[0].data
    return np.asarray(array)


def _rows(array: Any, order: int) -> Iterator[Tuple[int, int, Any]]:
    """Replica, row and content of the rows that this process holds; ``order`` counts dimensions without replicas."""
    pieces: List[Tuple[int, Any]]
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        # Each piece once, though several devices may hold it.
        starts = {shard.index[array.ndim - order].start or 0: shard for shard in array.addressable_shards}
        pieces = [(start, shard.data) for start, shard in sorted(starts.items())]
    else:
        pieces = [(0, array)]
    for start, piece in pieces:
        values = np.asarray(piece)
        values = values.reshape(-1, *values.shape[values.ndim - order :])
        for replica in range(values.shape[0]):
            for row in range(values.shape[1]):
                yield replica, start + row, values[replica, row]
