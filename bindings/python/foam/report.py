"""``python -m foam report``: one page about a run, to look into with a browser; the factors that misbehave come first.

The page, ``report.html`` beside this file with the data put in, needs no network and no other file.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from ._diagnosis import diagnose_one
from ._runs import Factor, Run, choose, read_runs
from .errors import FoamError

__all__ = ["Finding", "findings", "main"]

_PAGE = Path(__file__).with_name("report.html")
#: Where the data goes in the page.
_MARK = "/* DATA */ null"

#: More points of a factor than this are thinned out: a screen has no more.
_POINTS = 500

#: The bound is proven and seldom reached; beyond this many τ a person should look at it.
_FAR = 2
#: What the library's findings weigh.
_WEIGHTS = {"noise_above_tau": 40, "damping_dominates": 30, "refreshes_fail": 20, "epsilon_at_cap": 10}
_WEIGHT = 10


class Finding(NamedTuple):
    """Something that is wrong with a factor."""

    #: The larger, the further up.
    weight: float
    text: str


def findings(factor: Factor, run: Run) -> List[Finding]:
    """What is wrong with a factor, worst first; nothing if all is well."""
    found = []
    last = factor.last
    if last.get("fallback_stale", 0) > 0:
        found.append(
            Finding(100, f"{last['fallback_stale']:.0f} eigendecompositions failed and the old basis was kept")
        )
    elif last.get("failed_evds", 0) > 0:
        found.append(Finding(20, f"{last['failed_evds']:.0f} eigendecompositions failed at first"))
    if run.tau is not None:
        bound = _lately(factor.gap_bound)
        if bound > _FAR * run.tau:
            found.append(Finding(10 * math.log2(bound / run.tau), f"the bound is lately {bound / run.tau:.1f} τ"))
        proxy = _lately(factor.proxy)
        if proxy > run.tau:
            found.append(Finding(15 * proxy / run.tau, f"the proxy is lately {proxy / run.tau:.1f} τ"))
    for name, text in diagnose_one(run.judged_by(), run.statistics(factor)).items():
        found.append(Finding(_WEIGHTS.get(name, _WEIGHT), text))
    return sorted(found, key=lambda finding: -finding.weight)


def _lately(values: Sequence[float]) -> float:
    """The median of the later half; 0 if there are no values."""
    known = [value for value in values[len(values) // 2 :] if not math.isnan(value)]
    return statistics.median(known) if known else 0.0


def main(path: str, out: Optional[str], policy: Optional[str], tau: Optional[float]) -> int:
    """Writes the page and prints its path; 2 if the file cannot be used."""
    try:
        runs = choose(read_runs(path), policy, path)
        runs = runs if tau is None else [run._replace(tau=tau) for run in runs]
        target = out or os.path.splitext(path)[0] + ".html"
        with open(target, "w", encoding="utf-8") as file:
            file.write(_page(runs, os.path.basename(path)))
    except (OSError, FoamError) as cause:
        print(f"report: {cause}", file=sys.stderr)
        return 2
    print(target)
    return 0


def _page(runs: Sequence[Run], title: str) -> str:
    data = {"title": title, "runs": [_run(run) for run in runs]}
    # Inside a script element, "</" would end it.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("</", "<\\/")
    return _PAGE.read_text(encoding="utf-8").replace(_MARK, text, 1)


def _run(run: Run) -> Dict[str, Any]:
    judged = [(findings(factor, run), factor) for factor in run.factors]
    judged.sort(key=lambda pair: (-sum(finding.weight for finding in pair[0]), pair[1].param, pair[1].block))
    phases: Dict[str, float] = {}
    for seconds in run.seconds.values():
        for phase, value in seconds.items():
            phases[phase] = phases.get(phase, 0.0) + value
    return {
        "policy": run.policy,
        "tau": run.tau,
        "epsilon_max": run.epsilon_max,
        "seconds": phases,
        "steps": max(max(factor.steps) for factor in run.factors),
        "factors": [_factor(factor, [finding.text for finding in found]) for found, factor in judged],
    }


def _factor(factor: Factor, texts: List[str]) -> Dict[str, Any]:
    kept = _thinned(len(factor.steps))
    columns = {name: getattr(factor, name) for name in ("steps", "epsilon", "proxy", "gap_bound", "rate")}
    return {
        "param": factor.param,
        "block": factor.block,
        "axis": factor.axis,
        "dim": factor.dim,
        "findings": texts,
        **{name: [_number(values[place]) for place in kept] for name, values in columns.items()},
    }


def _thinned(count: int) -> List[int]:
    """Places to keep, evenly spread, the last among them."""
    stride = max(1, math.ceil(count / _POINTS))
    return sorted({*range(0, count, stride), count - 1})


def _number(value: float) -> Optional[float]:
    """JSON has no NaN."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
