"""The runs that a CSV file of statistics holds, for ``python -m foam plot`` and ``report``."""

from __future__ import annotations

import csv
import math
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ._diagnosis import diagnose
from ._handle import evd_rate
from .errors import InvalidArgumentError

__all__ = ["Factor", "Run", "choose", "read_runs"]

_NEEDED = ("step", "param", "block", "axis", "epsilon", "proxy", "evd_calls")

#: Columns whose last value is kept.
_LAST = (
    "noise_floor",
    "residual",
    "eigenvalue_max",
    "checks",
    "evd_calls",
    "cap_refreshes",
    "failed_evds",
    "fallback_double",
    "fallback_svd",
    "fallback_stale",
)


class Factor(NamedTuple):
    """The history of one factor."""

    param: str
    block: int
    axis: int
    dim: int
    steps: List[float]
    epsilon: List[float]
    proxy: List[float]
    gap_bound: List[float]
    #: Eigendecompositions over checks so far, in percent.
    rate: List[float]
    #: Counters and values of the last row, by column.
    last: Dict[str, float]


class Run(NamedTuple):
    """One run of a CSV file."""

    policy: str
    factors: List[Factor]
    tau: Optional[float]
    epsilon_max: Optional[float]
    #: For each group the seconds of each phase at its last row; empty where the file has none.
    seconds: Dict[str, Dict[str, float]]
    #: The options that were in use, as far as the file says them.
    options: Mapping[str, str] = {}

    def statistics(self, factor: Factor) -> Dict[str, float]:
        """The last statistics of a factor, as the diagnosis takes them."""
        lists = {"epsilon": factor.epsilon, "proxy": factor.proxy}
        last = {name: values[-1] for name, values in lists.items() if values}
        known = {name: value for name, value in factor.last.items() if not math.isnan(value)}
        return {"checks": len(factor.steps), **last, **known}

    def judged_by(self) -> Dict[str, str]:
        """The options that the factors are judged with."""
        return {**self.options, **({} if self.tau is None else {"tau": repr(self.tau)})}


def read_runs(path: Any) -> List[Run]:
    """The runs of a file that ``to_csv`` or the train example wrote, in its order.

    Raises:
        OSError: the file cannot be read.
        InvalidArgumentError: it lacks a column, or a cell is not a number.
    """
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [column for column in _NEEDED if column not in (reader.fieldnames or [])]
        if missing:
            raise InvalidArgumentError(
                f"{os.fspath(path)} has no column '{missing[0]}': expected a file of Optimizer.to_csv or of train"
            )
        runs: Dict[str, Run] = {}
        factors: Dict[Tuple[str, str, str, str], Factor] = {}
        for row in reader:
            policy = row.get("policy") or "run"
            run = runs.get(policy)
            if run is None:
                limits = (_constant(row, "tau"), _constant(row, "epsilon_max"))
                run = runs[policy] = Run(policy, [], *limits, {}, _options(row))
            key = (policy, row["param"], row["block"], row["axis"])
            if key not in factors:
                dim = int(row.get("dim") or 0)
                factors[key] = Factor(key[1], int(key[2]), int(key[3]), dim, [], [], [], [], [], {})
                run.factors.append(factors[key])
            _append(factors[key], row)
            phases = {column[8:]: _number(row, column) for column in row if column.startswith("seconds_")}
            if phases and not any(math.isnan(value) for value in phases.values()):
                run.seconds[row.get("group") or "0"] = phases
    if not runs:
        raise InvalidArgumentError(f"{os.fspath(path)} has no rows: nothing was recorded")
    return list(runs.values())


def _append(factor: Factor, row: Dict[str, str]) -> None:
    factor.steps.append(_number(row, "step"))
    factor.epsilon.append(_number(row, "epsilon"))
    factor.proxy.append(_number(row, "proxy"))
    factor.gap_bound.append(_number(row, "gap_bound"))
    # The train example writes one row per check, `to_csv` writes the number of checks.
    checks = _number(row, "checks") if "checks" in row else len(factor.steps)
    factor.rate.append(100 * evd_rate({"evd_calls": _number(row, "evd_calls"), "checks": checks}))
    for column in _LAST:
        if column in row:
            factor.last[column] = _number(row, column)


def choose(runs: List[Run], policy: Optional[str], path: Any) -> List[Run]:
    """The runs of a policy, or all."""
    chosen = [run for run in runs if policy in (None, run.policy)]
    if not chosen:
        names = ", ".join(run.policy for run in runs)
        raise InvalidArgumentError(f"{os.fspath(path)} has no policy '{policy}': expected one of {names}")
    return chosen


def _number(row: Dict[str, str], column: str) -> float:
    text = row.get(column) or ""
    try:
        return float(text) if text else math.nan
    except ValueError:
        raise InvalidArgumentError(f"column '{column}' has '{text}' in it: expected a number") from None


def _options(row: Dict[str, str]) -> Dict[str, str]:
    if row.get("options"):
        pairs = (word.partition("=") for word in row["options"].split())
        return {key: value for key, _, value in pairs if key not in ("device", "num_threads")}
    # A file of another version says less; a policy that is no policy of the library is a name of a run.
    known = {key: row[key] for key in ("policy", "tau", "epsilon_max") if row.get(key)}
    for left_out in ((), ("policy",), ("epsilon_max",), ("policy", "epsilon_max")):
        options = {key: value for key, value in known.items() if key not in left_out}
        try:
            diagnose(options, [])
        except InvalidArgumentError:
            continue
        return options
    return {}


def _constant(row: Dict[str, str], column: str) -> Optional[float]:
    value = _number(row, column)
    return None if math.isnan(value) else value
