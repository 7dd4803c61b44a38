"""Schedules of the controls: as many eigendecompositions as another method had, at times that do not depend on factors.

All factors of a run have the same schedule where that gives the number; else some of them have one with a refresh more,
so that the sum is met as closely as the parameters allow: to one where each has two factors. Which parameters these are
follows from their order in the model alone.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import foam

Options = Dict[str, Any]


class Schedule(NamedTuple):
    """When the factors of a run are refreshed."""

    options: Options
    #: The options of some of the factors, with a refresh more, and how many factors these are.
    more: Options
    factors: int

    def text(self) -> str:
        """For the column of options: ``more`` behind the number of its factors."""
        return told(self.options) + (f" {self.factors} factors: {told(self.more)}" if self.factors else "")


def told(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(options.items()))


def matched(kind: str, given: Mapping[str, Any], steps: int, evds: int, factors: int) -> Schedule:
    """The schedule of this kind with `evds` refreshes of `factors` factors in `steps` steps, for policy `stale` with the
    options `given`.
    """
    settings = {**foam.defaults(given.get("preset")), **given}
    paper = settings["cadence"] == "paper"
    first = 1 if paper else int(settings["start_step"])
    if first < 1:
        raise ValueError(f"start_step = {first}: expected the step of the first refresh")
    found = _by_count(kind, first - paper, steps - paper)
    wanted = evds / factors
    few = max((count for count in found if count <= wanted), default=min(found))
    many = min((count for count in found if count > few), default=few)
    if many == few:
        return Schedule(found[few], {}, 0)
    return Schedule(found[few], found[many], max(0, round((evds - few * factors) / (many - few))))


def split(groups: Sequence[Mapping[str, Any]], counts: Mapping[str, int], schedule: Schedule) -> List[Options]:
    """Parameter groups in which parameters with `schedule.factors` factors have the options `more`; `counts` says how
    many factors each parameter has.
    """
    # Sums of factors that some parameters have, with the first such parameters.
    sums: Dict[int, List[str]] = {0: []}
    for name in (name for group in groups for name in group["param_names"]):
        for total, names in list(sums.items()):
            sums.setdefault(total + counts.get(name, 0), [*names, name])
    apart = set(sums[min(sums, key=lambda total: (abs(total - schedule.factors), total))])
    halves = []
    for group in groups:
        pairs = list(zip(group["param_names"], group["params"]))
        for inside, options in ((False, {}), (True, schedule.more)):
            own = [pair for pair in pairs if (pair[0] in apart) == inside]
            if own:
                names, params = zip(*own)
                halves.append({**group, "params": list(params), "param_names": list(names), **options})
    return halves


# ---- how many refreshes a schedule has


def _multiples(period: int, low: int, high: int) -> int:
    """How many multiples of the period are above `low` and at most `high`."""
    return max(0, high // period - low // period)


@functools.lru_cache(maxsize=None)
def _by_count(kind: str, low: int, high: int) -> Dict[int, Options]:
    """For each number of refreshes that a schedule of this kind can have the options for it. The first is at `low`, the
    others above it and at most at `high`, in the steps that the library counts.
    """
    if kind == "uniform":
        return _uniform(low, high)
    if kind == "geometric":
        return _geometric(low, high)
    if kind == "front_loaded":
        return _front_loaded(low, high)
    raise ValueError(f"schedule '{kind}': expected uniform, geometric or front_loaded")


def _uniform(low: int, high: int) -> Dict[int, Options]:
    found: Dict[int, Options] = {}
    for period in range(1, high + 2):
        # The shortest period of those with the same number: the last refresh is as far from the end as from its like.
        options = {"refresh_schedule": "fixed", "check_period": period}
        found.setdefault(1 + _multiples(period, low, high), options)
    return found


def _geometric(low: int, high: int) -> Dict[int, Options]:
    growths: Dict[int, List[float]] = {}
    for place in range(4001):
        growth = round(1.001 * ((high + 1) / 1.001) ** (place / 4000), 4)
        growths.setdefault(1 + _geometric_times(growth, low, high), []).append(growth)
    return {
        count: {"refresh_schedule": "geometric", "refresh_growth": some[len(some) // 2]}
        for count, some in growths.items()
    }


def _geometric_times(growth: float, low: int, high: int) -> int:
    t, count = 1, 0
    while t <= high:
        count, t = count + (t > low), max(t + 1, math.ceil(growth * t))
    return count


def _front_loaded(low: int, high: int) -> Dict[int, Options]:
    """A quarter of the run at one period, the rest at another, as near to four times the first as the number allows."""
    front = max(1, high // 4)
    best: Dict[int, Tuple[float, int, int]] = {}
    late = [(period, _multiples(period, max(low, front), high)) for period in range(1, high + 2)]
    for early in range(1, front + 2):
        before = 1 + _multiples(early, low, front)
        for period, after in late:
            found = (abs(math.log(period / (4 * early))), early, period)
            best[before + after] = min(best.get(before + after, found), found)
    return {
        count: {
            "refresh_schedule": "front_loaded", "front_period": early, "front_steps": front, "check_period": period
        }
        for count, (_, early, period) in best.items()
    }
