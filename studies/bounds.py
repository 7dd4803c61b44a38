"""How far above the true gap are h, h·g(m) and the sandwich, on real trajectories?

    FOAM_LIBRARY=target/release/libfoam.so PYTHONPATH=bindings/python python studies/bounds.py

Trains the three tasks of ``default_preset.py`` with the policies foam, foam_certified and sandwich, checked every ten
steps (``refresh_schedule = fixed``), all other options those of the default preset. At every check of every factor the true gap is computed with NumPy in double precision from
the statistic, basis, spectrum and ε that the library lends, and beside it h, h·g(m) and the sandwich by their equations
(``docs/theory.md``), for the same operator. What the library reports is then compared with both. Prints a table, and
draws ε, bound and true gap of one factor into ``docs/bounds.png``. ``--steps 40 --task digits`` is a smaller run.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402
import torch  # noqa: E402

import default_preset  # noqa: E402
import foam  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
TASKS = ("digits", "autoencoder", "characters")
POLICIES = ("foam", "foam_certified", "sandwich")
#: The policies that keep the gap at most τ by a proven bound.
CERTIFIED = ("foam_certified", "sandwich")
LR = 3e-3
#: The factor that is drawn: task, parameter, axis.
DRAWN = ("autoencoder", "2.weight", 0)

Key = Tuple[str, int, int]


class Operator(NamedTuple):
    """What is in use instead of (A + ε)^(−q): Q (D + ε)^(−q) Qᵀ."""

    basis: np.ndarray
    spectrum: np.ndarray
    epsilon: float


class Check(NamedTuple):
    """One check of one factor; the first five numbers are NumPy's, for the same operator."""

    step: int
    gap: float
    h: float
    #: h·g(m).
    scaled: float
    sandwich: float
    #: What the library reported as h and as bound; NaN where it reported none for this operator.
    proxy: float
    bound: float
    refreshed: bool
    epsilon: float
    #: The gap once the check has chosen ε, spectrum or a new basis; by NumPy, and by the library.
    left: float
    exact: float


# ---- the equations of docs/theory.md


def gap(statistic: np.ndarray, used: Operator, q: float) -> float:
    """‖f(X) − f(B)‖_F / ‖f(B)‖_F, by an eigendecomposition of X."""
    values, vectors = np.linalg.eigh(statistic)
    meant = (vectors * (np.maximum(values, 0.0) + used.epsilon) ** -q) @ vectors.T
    in_use = (used.basis * (used.spectrum + used.epsilon) ** -q) @ used.basis.T
    return float(np.linalg.norm(meant - in_use) / np.linalg.norm(in_use))


def growth(m: float, q: float) -> float:
    """g(m)."""
    if m <= 0.0:
        return 1.0
    return math.inf if m >= 1.0 else ((1.0 - m) ** -q - 1.0) / (q * m)


def bounds(statistic: np.ndarray, used: Operator, q: float, m: float) -> Tuple[float, float, float]:
    """h, h·g(m) and the sandwich of an operator in use."""
    a = used.spectrum + used.epsilon
    rotated = used.basis.T @ statistic @ used.basis
    drift = (rotated - np.diag(used.spectrum)) / np.sqrt(np.outer(a, a))
    powers = a**-q
    norm = np.linalg.norm(powers)
    h = q * powers.max() / norm * np.linalg.norm(drift)
    # C: the divided difference of x^(−q), by the hyperbolic form, which does not cancel.
    half = 0.5 * np.abs(np.subtract.outer(np.log(a), np.log(a)))
    near = half < 1e-9
    quotient = np.where(near, q, np.sinh(q * half) / np.sinh(np.where(near, 1.0, half)))
    coupling = np.sqrt(np.outer(powers, powers)) * quotient
    lower = -coupling * drift
    upper = coupling * (np.linalg.inv(np.eye(len(a)) + drift) - np.eye(len(a)))
    sandwich = np.linalg.norm(lower + upper) / 2 + np.linalg.norm(upper - lower) / 2
    return float(h), float(h * growth(m, q)), float(sandwich / norm)


# ---- a run


class Factor:
    """A factor of the optimizer as it was before a check."""

    def __init__(self, optimizer: foam.Optimizer, record: Dict[str, Any]) -> None:
        self.used = lent(optimizer, record)
        self.fresh = self.used.spectrum
        self.refreshed = record["last_refresh"]

    def kept(self, optimizer: foam.Optimizer, step: int) -> float:
        """The share of the statistic that the average has kept since the last refresh."""
        beta = float(optimizer.options["beta2"])
        return beta ** (step - self.refreshed) * (1 - beta**self.refreshed) / (1 - beta**step)


def place(record: Dict[str, Any]) -> Key:
    return record["param"], record["block"], record["axis"]


def lent(optimizer: foam.Optimizer, record: Dict[str, Any]) -> Operator:
    """What is in use now."""
    basis = np.array(optimizer.factor_matrix(*place(record), "basis")).T
    return Operator(basis, np.array(optimizer.factor_matrix(*place(record), "spectrum")), record["epsilon"])


def corrected_statistic(optimizer: foam.Optimizer, record: Dict[str, Any], step: int) -> np.ndarray:
    """A: the statistic with its bias corrected, as the preset does."""
    return optimizer.factor_matrix(*place(record), "statistic") / (1 - float(optimizer.options["beta2"]) ** step)


def examine(optimizer: foam.Optimizer, policy: str, before: Factor, record: Dict[str, Any], step: int) -> Check:
    """Compares what a check said with the truth."""
    q, refreshed = 1.0 / record["root"], record["last_refresh"] == step
    statistic = corrected_statistic(optimizer, record, step)
    after = lent(optimizer, record)
    basis = before.used.basis
    diagonal = np.maximum(np.einsum("ij,ij->j", basis, statistic @ basis), 0.0)
    base = float(optimizer.options["epsilon"]) * diagonal.max()
    kept = before.kept(optimizer, step)
    # The operator that the check judged.
    if policy == "sandwich":
        used = Operator(basis, diagonal, base) if refreshed else after
        m = 1 - ((kept * before.fresh + used.epsilon) / (used.spectrum + used.epsilon)).min()
    else:
        chosen = policy == "foam_certified" and not refreshed
        used = before.used._replace(epsilon=after.epsilon if chosen else max(base, before.used.epsilon))
        m = 1 - kept
    h, scaled, sandwich = bounds(statistic, used, q, m)
    true = gap(statistic, used, q)
    # A certified policy reports h for the ε before its choice; the sandwich keeps no bound of a basis that it gave up.
    proxy = math.nan if policy == "foam_certified" and not refreshed else record["proxy"]
    bound = math.nan if policy == "sandwich" and refreshed else record["gap_bound"]
    left, exact = gap(statistic, after, q), optimizer.exact_gap(*place(record))
    return Check(step, true, h, scaled, sandwich, proxy, bound, refreshed, after.epsilon, left, exact)


class Moment(NamedTuple):
    """The factor that is drawn, after a step."""

    step: int
    gap: float
    epsilon: float
    refreshed: bool


class Run(NamedTuple):
    checks: List[Check]
    #: Of the factor that is drawn: its checks, and every step.
    drawn: List[Check]
    moments: List[Moment]
    evd_rate: float
    tau: float


def run(name: str, policy: str, steps: Optional[int], follow: Optional[Key]) -> Run:
    """Trains a task with a policy, and examines every check."""
    model, batch, _, usual = default_preset.task(name, 0)
    named = dict(model.named_parameters())
    found: List[Check] = []
    drawn: List[Check] = []
    moments: List[Moment] = []
    known: Dict[Key, Factor] = {}
    # Where a refresh is due anyway nothing is bounded.
    options = {"policy": policy, "refresh_schedule": "fixed"}
    with foam.Optimizer(named, lr=LR, num_threads=1, **options) as optimizer:
        for step in range(1, (steps or usual) + 1):
            model.zero_grad()
            batch().backward()
            optimizer.step({key: value.grad for key, value in named.items()})
            for record in optimizer.factor_stats():
                key = place(record)
                if record["last_check"] == step:
                    if key in known:
                        check = examine(optimizer, policy, known[key], record, step)
                        found.append(check)
                        if key == follow:
                            drawn.append(check)
                    if record["last_refresh"] == step:
                        known[key] = Factor(optimizer, record)
                    else:
                        known[key].used = lent(optimizer, record)
                if key == follow:
                    statistic = corrected_statistic(optimizer, record, step)
                    true = gap(statistic, known[key].used, 1.0 / record["root"])
                    moments.append(Moment(step, true, record["epsilon"], record["last_refresh"] == step))
        rate, tau = optimizer.stats()["evd_rate"], float(optimizer.options["tau"])
    return Run(found, drawn, moments, rate, tau)


# ---- the table


def ratios(checks: List[Check], value: Callable[[Check], float]) -> List[float]:
    return [value(check) / check.gap for check in checks if check.gap > 0 and math.isfinite(value(check))]


def shown(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def cell(found: List[float]) -> str:
    """Median and maximum."""
    return f"{shown(statistics.median(found))}, {shown(max(found))}" if found else "–"


def most(found: List[float]) -> str:
    """The largest gap as a share of its bound."""
    return shown(1 / min(found)) if found else "–"


#: What is compared with the gap.
COLUMNS: Dict[str, Callable[[Check], float]] = {
    "h": lambda check: check.h,
    "h·g(m)": lambda check: check.scaled,
    "sandwich": lambda check: check.sandwich,
    "`gap_bound`": lambda check: check.bound,
}


def table(runs: Dict[Tuple[str, str], Run]) -> List[str]:
    """Two tables, a row per run: median and maximum of each bound over the gap, and the largest gap over each bound."""
    over = [["task", "policy", "checks", "EVDs", *COLUMNS]]
    under = [["task", "policy", *(f"gap / {name}" for name in COLUMNS)]]
    for lines in (over, under):
        lines.append(["---"] * len(lines[0]))
    for (name, policy), found in runs.items():
        each = [ratios(found.checks, value) for value in COLUMNS.values()]
        counts = [str(len(found.checks)), f"{100 * found.evd_rate:.0f} %"]
        over.append([name, f"`{policy}`", *counts, *map(cell, each)])
        under.append([name, f"`{policy}`", *map(most, each)])
    rows = [*over, None, *under]
    return ["" if line is None else f"| {' | '.join(line)} |" for line in rows]


def worst(found: List[float]) -> float:
    return max(found, default=math.nan)


def summary(runs: Dict[Tuple[str, str], Run]) -> List[str]:
    """Where the library and NumPy should agree, and what the policies promise."""
    every = [(policy, found.tau, check) for (_, policy), found in runs.items() for check in found.checks]
    kept = [(c.left, tau) for policy, tau, c in every if policy in CERTIFIED]
    exact = worst([abs(c.left - c.exact) for _, _, c in every])
    proxy = worst([abs(c.proxy / c.h - 1) for _, _, c in every if math.isfinite(c.proxy)])
    bound = worst([c.gap / c.bound for _, _, c in every if math.isfinite(c.bound)])
    return [
        f"{len(every)} checks; largest gap / `gap_bound`: {bound:.4f}",
        f"largest gap that a certified policy left behind / tau: {worst([left / tau for left, tau in kept]):.4f}",
        f"NumPy and the library: the gaps differ by at most {exact:.1e}, h relatively by at most {proxy:.1e}",
    ]


# ---- the picture

#: Of Okabe and Ito, which colour-blind people can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
#: What a policy steers by, and where a check has it.
STEERS: Dict[str, Tuple[str, Callable[[Check], float]]] = {
    "foam": ("proxy h, which is no bound", lambda check: check.proxy),
    "foam_certified": ("proven bound h·g(m)", lambda check: check.bound),
    "sandwich": ("proven bound, the cheapest that suffices", lambda check: check.bound),
}


def draw(runs: Dict[str, Run], path: Path) -> None:
    """ε, bound and true gap of one factor over a run, a column per policy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    heights = {"height_ratios": (1, 2)}
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.6), sharex=True, sharey="row", gridspec_kw=heights)
    for column, (policy, found) in enumerate(runs.items()):
        above, below = axes[:, column]
        name, value = STEERS[policy]
        steps = [moment.step for moment in found.moments]
        above.step(steps, [moment.epsilon for moment in found.moments], where="post", color=GREEN)
        above.set_title(f"{policy}\n", fontweight="bold")
        above.text(0.5, 1.04, f"steers by: {name}", transform=above.transAxes, ha="center", fontsize=8.5)
        above.set_yscale("log")
        below.plot(steps, [moment.gap for moment in found.moments], color=BLUE, lw=1, label="true gap after every step")
        kept = [check for check in found.drawn if not check.refreshed]
        at = [check.step for check in kept]
        below.plot(at, [check.left for check in kept], "o", color=BLUE, ms=3.5, label="true gap after a check")
        below.plot(at, [value(check) for check in kept], "^", color=ORANGE, ms=5, label="what the policy steers by")
        refreshed = [moment.step for moment in found.moments if moment.refreshed]
        style = {"color": "black", "ms": 11, "mew": 1.4, "transform": below.get_xaxis_transform()}
        below.plot(refreshed, [0.03] * len(refreshed), "|", label="eigendecomposition", **style)
        below.axhline(found.tau, color=GREY, lw=1, ls="--", label=f"τ = {found.tau:g}")
        below.set(yscale="log", ylim=(1e-2, 5), xlabel="step")
    axes[0, 0].set_ylabel("damping ε in use")
    axes[1, 0].set_ylabel("relative error of the inverse root")
    figure.align_ylabels()
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="lower center", ncol=5, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, help="of every run; default: the task's own, 200 or 300")
    arguments.add_argument("--task", action="append", choices=TASKS, help="may be given again; default: all three")
    arguments.add_argument("--plot", type=Path, default=ROOT / "docs" / "bounds.png", help="where the picture goes")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    runs = {}
    for name in chosen.task or TASKS:
        for policy in POLICIES:
            follow = (DRAWN[1], 0, DRAWN[2]) if name == DRAWN[0] else None
            runs[name, policy] = run(name, policy, chosen.steps, follow)
    print("\n".join([*table(runs), "", *summary(runs)]))
    if DRAWN[0] in (chosen.task or TASKS):
        draw({policy: runs[DRAWN[0], policy] for policy in POLICIES}, chosen.plot)
        print(f"picture: {chosen.plot}")


if __name__ == "__main__":
    main()
