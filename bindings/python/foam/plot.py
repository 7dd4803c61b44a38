"""``python -m foam plot``: epsilon, proxy and eigendecomposition rate of every factor, after the paper's figures 2
and 3, as PNG and SVG.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any, Dict, List, Optional, Tuple

from ._runs import Factor, Run, choose, read_runs
from .errors import FoamError
from .report import findings

__all__ = ["main"]

#: Okabe and Ito's colours, which a colour-blind reader can tell apart; parameters take them in turn.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")

#: More factors than this are not named in the legend.
_LEGEND = 12


def main(path: str, out: Optional[str], policy: Optional[str], tau: Optional[float]) -> int:
    """Draws a PNG and an SVG for each run; 0 if that worked, 2 if the file or matplotlib is missing."""
    try:
        runs = choose(read_runs(path), policy, path)
    except (OSError, FoamError) as cause:
        print(f"plot: {cause}", file=sys.stderr)
        return 2
    try:
        import matplotlib
    except ImportError:
        print("plot needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 2
    matplotlib.use("Agg")
    prefix = out or os.path.splitext(path)[0]
    for run in runs:
        stem = prefix if len(runs) == 1 else f"{prefix}-{run.policy}"
        figure = _draw(run, run.tau if tau is None else tau)
        for ending in ("png", "svg"):
            figure.savefig(f"{stem}.{ending}", dpi=144)
            print(f"{stem}.{ending}")
    return 0


def _draw(run: Run, tau: Optional[float]) -> Any:
    from matplotlib.figure import Figure

    colours: Dict[str, str] = {}
    for factor in run.factors:
        colours.setdefault(factor.param, _COLOURS[len(colours) % len(_COLOURS)])
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08)
    epsilon, proxy, rate = figure.subplots(1, 3)
    worst, problem = _worst(run)
    for factor in run.factors:
        style: Dict[str, Any] = {
            "color": colours[factor.param],
            "linestyle": _DASHES[factor.axis % len(_DASHES)],
            "linewidth": 2.8 if factor is worst else 1.4,
            "alpha": 0.9 if len(run.factors) <= _LEGEND or factor is worst else 0.5,
            "label": _label(factor, run.factors),
        }
        # Epsilon holds from one check to the next; a step plot says so.
        epsilon.step(factor.steps, factor.epsilon, where="post", **style)
        proxy.plot(factor.steps, factor.proxy, **style)
        rate.plot(factor.steps, factor.rate, **style)
    limit = {"color": "0.35", "linewidth": 1, "linestyle": (0, (1, 2))}
    _finish(epsilon, "Damping ε", log=True)
    if run.epsilon_max is not None and run.policy in ("foam", "foam_no_refresh", "foam_certified"):
        epsilon.axhline(run.epsilon_max, **limit)
        _note(epsilon, run.epsilon_max, "ε_max")
    _finish(proxy, "Proxy h of the relative gap", log=_spread(run))
    if tau is not None and _any(factor.proxy for factor in run.factors):
        proxy.axhline(tau, **limit)
        _note(proxy, tau, f"τ = {tau:g}")
    _finish(rate, "Eigendecompositions, % of checks", log=False)
    rate.set_ylim(0, 105)
    if not _any(factor.proxy for factor in run.factors):
        proxy.text(0.5, 0.5, "this policy computes no proxy", transform=proxy.transAxes, ha="center", color="0.4")
        proxy.grid(False)
        proxy.set(xticks=[], yticks=[], xlabel="")
    title = f"{run.policy}: {len(run.factors)} Kronecker factors"
    if worst is not None:
        title += f"\nbold: {_label(worst, run.factors)}: {problem}"
    figure.suptitle(title, fontsize=12, fontweight="bold")
    _legend(figure, run, colours)
    return figure


def _worst(run: Run) -> Tuple[Optional[Factor], str]:
    """The factor that misbehaves most, and how, where there are too many to tell by their colours."""
    if len(run.factors) <= _LEGEND:
        return None, ""
    judged = [(findings(factor, run), factor) for factor in run.factors]
    found, factor = max(judged, key=lambda pair: sum(finding.weight for finding in pair[0]))
    return (factor, found[0].text) if found else (None, "")


def _finish(axes: Any, title: str, log: bool) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("step")
    if log:
        axes.set_yscale("log")
    axes.grid(True, which="major", color="0.9")
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _note(axes: Any, height: float, text: str) -> None:
    place = axes.get_yaxis_transform()
    # Beside the panel, where no curve can run through it.
    axes.text(1.01, height, text, transform=place, ha="left", va="center", color="0.35", fontsize=9)


def _spread(run: Run) -> bool:
    """Whether proxies are all positive and span more than a decade and a half."""
    values = [value for factor in run.factors for value in factor.proxy if not math.isnan(value)]
    return bool(values) and min(values) > 0 and max(values) > 30 * min(values)


def _any(columns: Any) -> bool:
    return any(not math.isnan(value) for column in columns for value in column)


def _label(factor: Factor, factors: List[Factor]) -> str:
    blocks = any(other.param == factor.param and other.block != factor.block for other in factors)
    block = f" block {factor.block}" if blocks else ""
    size = f" ({factor.dim})" if factor.dim else ""
    return f"{factor.param}{block} axis {factor.axis}{size}"


def _legend(figure: Any, run: Run, colours: Dict[str, str]) -> None:
    """Below the panels: every factor by name, or, if there are too many, what colours and dashes mean."""
    from matplotlib.lines import Line2D

    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(handles) > _LEGEND:
        axes = sorted({factor.axis for factor in run.factors})
        params = list(colours)[: len(_COLOURS)]
        more = f" and {len(colours) - len(params)} more" if len(colours) > len(params) else ""
        handles = [Line2D([], [], color=colours[name]) for name in params]
        handles += [Line2D([], [], color="0.3", linestyle=_DASHES[axis % len(_DASHES)]) for axis in axes]
        labels = params[:-1] + [params[-1] + more] + [f"axis {axis}" for axis in axes]
    columns = min(len(handles), 4)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=9, frameon=False)
