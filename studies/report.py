"""Tables and pictures of the study, from the CSV files alone, written into docs/study.md, docs/study/ and the README.

    python studies/report.py [--results studies/results] [--page docs/study.md] [--readme README.md]

A part whose file is not there is left as it is. Needs matplotlib for the pictures; without it the tables are written.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[1]
Row = Dict[str, str]

#: Two-sided 95 % quantiles of Student's t by degrees of freedom.
STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
BASE = "adamw"


def numbers(text: str) -> List[float]:
    return [float(word) for word in text.split()]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean; 0 for a single value."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return 0.0
    centre = mean(values)
    spread = math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1))
    return STUDENT.get(len(values) - 1, 1.96) * spread / math.sqrt(len(values))


def spread(values: Sequence[float]) -> float:
    """Half of the range: for few values, of which an interval would say nothing."""
    return (max(values) - min(values)) / 2


def shown(value: float, digits: int = 3) -> str:
    """So many digits, or all in front of the point; a power of ten only where a number is huge."""
    if not math.isfinite(value):
        return "—"
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e5 else f"{value:.{digits}g}"


# ---- the headline


class Cell:
    """The seeds of one method on one task, against the target."""

    def __init__(self, rows: List[Row], target: float) -> None:
        self.rows = rows
        self.final = [float(row["final_loss"]) for row in rows]
        self.steps, self.seconds = [], []
        for row in rows:
            reached = (i for i, loss in enumerate(numbers(row["losses"])) if loss <= target)
            at = next(reached, None) if row["status"] == "done" else None
            self.steps.append(math.inf if at is None else numbers(row["points"])[at])
            self.seconds.append(math.inf if at is None else numbers(row["seconds_at"])[at])

    @property
    def reached(self) -> int:
        return sum(map(math.isfinite, self.steps))

    def typical(self, what: str) -> float:
        """The median over the seeds; a run that never gets there counts as infinitely long. Of AdamW, whose own seeds
        scatter around the target, it is where its mean curve is there.
        """
        if self.rows[0]["method"] == BASE:
            good = [row for row in self.rows if row["status"] == "done"]
            losses = curve(good)[1]
            at = losses.index(min(losses))
            if what == "steps":
                return numbers(good[0]["points"])[at]
            return mean([numbers(row["seconds_at"])[at] for row in good])
        return median(getattr(self, what))

    def text(self, what: str) -> str:
        values = getattr(self, what)
        middle = median(values)
        if not math.isfinite(middle):
            return "not reached"
        highest = max(values)
        return f"{shown(middle)} [{shown(min(values))}, {shown(highest) if math.isfinite(highest) else '∞'}]"

    def differences(self, other: Cell) -> List[float]:
        """Of the final losses, for every seed that both have."""
        seeds = {row["seed"]: float(row["final_loss"]) for row in other.rows}
        return [float(row["final_loss"]) - seeds[row["seed"]] for row in self.rows if row["seed"] in seeds]

    def column(self, name: str) -> List[float]:
        return [float(row[name]) for row in self.rows if row[name] not in ("", "nan")]


def curve(rows: Sequence[Row]) -> Tuple[List[float], List[float]]:
    """The points and the mean loss there, of the runs that did not diverge."""
    good = [numbers(row["losses"]) for row in rows if row["status"] == "done"]
    if not good:
        return [], []
    return numbers(rows[0]["points"]), [mean(at) for at in zip(*good)]


def cells(rows: Sequence[Row]) -> Tuple[Dict[str, Dict[str, Cell]], Dict[str, float]]:
    """By task and method, and the target of each task: the least value of AdamW's mean curve."""
    finals: Dict[str, Dict[str, List[Row]]] = {}
    for row in rows:
        if row["stage"] == "final":
            finals.setdefault(row["task"], {}).setdefault(row["method"], []).append(row)
    found, targets = {}, {}
    for task, by_method in finals.items():
        losses = curve(by_method.get(BASE, []))[1]
        if losses:
            targets[task] = min(losses)
            found[task] = {method: Cell(some, targets[task]) for method, some in by_method.items()}
    return found, targets


def headline(rows: Sequence[Row]) -> str:
    found, targets = cells(rows)
    if not found:
        return "No task has runs of AdamW yet.\n"
    return "\n".join([*ratios(found), *by_task(found, targets), "", *controls(found), *losers(found), *verbs(found)]) + "\n"


def longer(rows: Sequence[Row]) -> str:
    """The same of the longer runs, which have fewer methods."""
    found, targets = cells(rows)
    if not found:
        return "No task has runs of AdamW yet.\n"
    others = {"sandwich": [*PEERS["sandwich"], *CONTROLS["sandwich"]]}
    out = [*ratios(found), "", *paired("### Beside the default preset, in longer runs"), *beside(found, others)]
    return "\n".join([*out, *by_task(found, targets, " in longer runs"), "", *losers(found, " in longer runs")]) + "\n"


def ratios(found: Dict[str, Dict[str, Cell]]) -> List[str]:
    """A table of steps and seconds to the target, in units of AdamW's."""
    names = list(dict.fromkeys(method for by_method in found.values() for method in by_method))
    out = ["Steps to AdamW's best mean loss on test data, as a share of AdamW's own steps (median over seeds; CPU",
           "seconds likewise behind the slash). Below 1 is faster than AdamW; — did not get there.", ""]
    out += ["| method | " + " | ".join(found) + " |", "| --- |" + " --- |" * len(found)]
    for method in names:
        line = []
        for by_method in found.values():
            if method not in by_method:
                line.append("")
                continue
            pair = [by_method[method].typical(w) / by_method[BASE].typical(w) for w in ("steps", "seconds")]
            line.append(" / ".join(f"{r:.2f}" if math.isfinite(r) else "—" for r in pair))
        out.append(f"| `{method}` | " + " | ".join(line) + " |")
    return out


def by_task(found: Dict[str, Dict[str, Cell]], targets: Dict[str, float], where: str = "") -> List[str]:
    """A table for each task, under its name and `where`."""
    out = []
    for task, by_method in found.items():
        seeds = len(by_method[BASE].rows)
        steps = by_method[BASE].rows[0]["steps"]
        said = f"{steps} steps, {seeds} seeds, target {shown(targets[task], 4)}, which AdamW's mean curve reaches at "
        out += ["", f"### {task}{where}", "", said + f"step {by_method[BASE].typical('steps'):.0f}.", ""]
        out += [
            "| method | rate | final loss ± 95 % | reach | steps to target | CPU s to target | EVDs / checks "
            "| step p50, p99 (ms) | state (MB) |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for method, cell in sorted(by_method.items(), key=lambda pair: mean(pair[1].final)):
            evds = cell.column("evd_calls")
            counts = f"{mean(evds):.0f} / {mean(cell.column('checks')):.0f}" if evds else ""
            loss = f"{shown(mean(cell.final), 4)} ± {shown(interval(cell.final), 2)}"
            out.append(
                f"| `{method}` | {cell.rows[0]['lr']} | {loss} | "
                f"{cell.reached}/{len(cell.rows)} | {cell.text('steps')} | {cell.text('seconds')} | {counts} | "
                f"{shown(mean(cell.column('step_p50_ms')), 2)}, {shown(mean(cell.column('step_p99_ms')), 2)} | "
                f"{mean(cell.column('state_bytes')) / 1e6:.2f} |"
            )
    return out


#: The methods of the README, and what they are called there.
FRONT = {
    "adamw": "AdamW",
    "muon": "Muon",
    "soap_authors": "SOAP, its authors' code",
    "soap_fast": "SOAP, preset `soap`",
    "stale": "Shampoo, policy `stale`",
    "foam": "FOAM, preset `reference`",
    "sandwich": "FOAM, preset `default`",
}


def front(rows: Sequence[Row]) -> str:
    """The table of the README: final losses, and the typical task's steps and seconds to AdamW's loss."""
    found, _ = cells(rows)
    names = [name for name in FRONT if any(name in by_method for by_method in found.values())]
    out = ["| test loss | " + " | ".join(found) + " | steps | CPU time |", "| --- |" + " --- |" * (len(found) + 2)]
    for name in names:
        line = [shown(mean(some[name].final)) if name in some else "" for some in found.values()]
        there = [some for some in found.values() if name in some]
        for what in ("steps", "seconds"):
            ratio = median([some[name].typical(what) / some[BASE].typical(what) for some in there])
            line.append(f"{ratio:.2f}" if math.isfinite(ratio) else "—")
        out.append(f"| {FRONT[name]} | " + " | ".join(line) + " |")
    return "\n".join(out) + "\n"


#: Rules that look at the factors, and the schedules that refresh as often without looking.
CONTROLS = {
    "sandwich": ["stale_front", "stale_geometric", "stale_front_corrected", "stale_geometric_corrected", "stale_uniform"],
    "sandwich_fixed": ["stale_front_fixed", "stale_geometric_fixed"],
    "certified": ["stale_front_certified"],
    "diagonal_residual": ["stale_front_residual"],
    "foam": ["stale_front_foam"],
    "foam_relative": ["stale_front_relative"],
    "fixed_epsilon": ["stale_front_fixed_epsilon"],
    "sandwich_ungrafted": ["stale_front_ungrafted"],
    "soap_kappa": ["soap_front", "soap_geometric"],
}


#: What the default preset is put beside.
PEERS = {"sandwich": ["adamw", "muon", "soap_authors", "soap_fast", "stale", "foam", "sandwich_fixed"]}


def controls(found: Dict[str, Dict[str, Cell]]) -> List[str]:
    """The default preset beside its peers, and each rule beside its controls."""
    out = [*paired("### The default preset beside others"), *beside(found, PEERS)]
    out += ["", "### Rules beside schedules with as many refreshes", ""]
    out += ["Likewise: below each rule are schedules that refresh as often without looking; **bold** differs from the",
            "rule.", ""]
    return [*out, *beside(found, CONTROLS), ""]


def paired(title: str) -> List[str]:
    """The heading of such a table and how it is read."""
    return [title, "",
            "Final test loss, and EVDs per run in brackets. **Bold**: the 95 % interval of the differences from the first",
            "row, seed by seed (first weights and batches are the same), does not contain 0. Of twenty equal methods one",
            "would be bold by chance.", ""]


def beside(found: Dict[str, Dict[str, Cell]], groups: Dict[str, List[str]]) -> List[str]:
    """A table of methods below the one that they are compared with."""
    out = ["| method | " + " | ".join(found) + " |", "| --- |" + " --- |" * len(found)]
    for first, others in groups.items():
        for method in [first, *others]:
            line = []
            for by_method in found.values():
                if method not in by_method or first not in by_method:
                    line.append("")
                    continue
                own = by_method[method]
                evds = own.column("evd_calls")
                text = shown(mean(own.final), 4) + (f" ({mean(evds):.0f})" if evds else "")
                apart = own.differences(by_method[first])
                line.append(f"**{text}**" if abs(mean(apart)) > interval(apart) else text)
            if any(line):
                out.append(f"| {'' if method == first else '– '}`{method}` | " + " | ".join(line) + " |")
    return out


def losers(found: Dict[str, Dict[str, Cell]], where: str = "") -> List[str]:
    """Where a method does worse than AdamW."""
    out = [f"### Where a method loses to AdamW{where}", ""]
    for task, by_method in found.items():
        base = by_method[BASE]
        worse = []
        for method, cell in by_method.items():
            if method == BASE:
                continue
            slack = interval(cell.final) + interval(base.final)
            how = []
            if not mean(cell.final) <= mean(base.final) + slack:
                how.append("final loss")
            if not cell.typical("steps") <= base.typical("steps"):
                how.append("steps")
            if not cell.typical("seconds") <= base.typical("seconds"):
                how.append("seconds")
            if how:
                worse.append(f"`{method}` ({', '.join(how)})")
        out.append(f"- {task}: {', '.join(worse) if worse else 'none'}.")
    return [*out, ""]


def verbs(found: Dict[str, Dict[str, Cell]]) -> List[str]:
    """Seconds of a run by verb. The library measures verbs by the clock, and a run may have shared its core or have been
    paused: the medians over the seeds are scaled to the optimizer's seconds of the processor.
    """
    names = ("accumulate", "sense", "refresh", "redamp", "apply")
    out = ["### Where the time goes", ""]
    out += ["CPU seconds of one run, median over the seeds; `model` is everything but the optimizer.", ""]
    out.append("| task | method | model | optimizer | " + " | ".join(names) + " |")
    out.append("| --- |" + " --- |" * (len(names) + 3))
    for task, by_method in found.items():
        for method, cell in by_method.items():
            own, whole = median(cell.column("seconds_optimizer")), median(cell.column("seconds"))
            parts = [cell.column(f"seconds_{name}") for name in names]
            measured = sum(median(part) for part in parts if part)
            line = [f"{median(part) * own / measured:.2f}" if part and measured else "" for part in parts]
            out.append(f"| {task} | `{method}` | {whole - own:.2f} | {own:.2f} | " + " | ".join(line) + " |")
    return out


# ---- ablations


def ablation(rows: Sequence[Row]) -> Dict[str, Dict[str, Dict[str, List[Row]]]]:
    """By option, variant and task: the seeds at the best learning rate. The runs with nothing changed stand for the
    default of every option that was changed in others of the task.
    """
    runs: Dict[Tuple[str, str], Dict[str, List[Row]]] = {}
    changed = {(row["method"].split("=")[0], row["task"]) for row in rows if row["stage"] == "ablation"}
    for row in rows:
        if row["stage"] == "ablation":
            same = row["method"] == "default"
            for variant in row["options"].split() if same else [row["method"]]:
                if (variant.split("=")[0], row["task"]) not in changed:
                    continue
                runs.setdefault((variant + " (default)" * same, row["task"]), {}).setdefault(row["trial"], []).append(row)
    found: Dict[str, Dict[str, Dict[str, List[Row]]]] = {}
    for (variant, task), trials in sorted(runs.items(), key=lambda pair: in_order(pair[0][0])):
        best = min(trials.values(), key=lambda some: mean([float(row["final_loss"]) for row in some]))
        found.setdefault(variant.split("=")[0], {}).setdefault(variant, {})[task] = best
    return {option: variants for option, variants in found.items() if len(variants) > 1}


def in_order(variant: str) -> Tuple[str, float, str]:
    """By option; numbers by size, words with the default first."""
    option, _, value = variant.partition("=")
    try:
        return option, float(value.replace(" (default)", "")), ""
    except ValueError:
        return option, 0.0, "" if "(default)" in value else value


def ablations(rows: Sequence[Row]) -> str:
    found = ablation(rows)
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    out = ["Loss on validation data at the best learning rate, mean over seeds ± half of their range where there are",
           "several; behind it CPU seconds of a run and the share of checks that decompose.", ""]
    out += ["| variant | " + " | ".join(tasks) + " |", "| --- |" + " --- |" * len(tasks)]
    for variants in found.values():
        for variant, by_task in variants.items():
            line = []
            for task in tasks:
                some = by_task.get(task)
                if not some:
                    line.append("")
                    continue
                losses = [float(row["final_loss"]) for row in some]
                rate = mean([int(row["evd_calls"]) / max(1, int(row["checks"])) for row in some])
                seconds = mean([float(row["seconds"]) for row in some])
                loss = shown(mean(losses), 4)
                if len(losses) > 1:
                    loss += f" ± {shown(spread(losses), 2)}"
                line.append(f"{loss}; {seconds:.1f} s, {100 * rate:.0f} %")
            out.append(f"| `{variant}` | " + " | ".join(line) + " |")
    return "\n".join(out) + "\n"


# ---- long run


def long_run(rows: Sequence[Row]) -> str:
    runs: Dict[str, List[Row]] = {}
    for row in rows:
        runs.setdefault(row["run"], []).append(row)
    out = [
        "| run | steps | final loss | resident MB: at a tenth, at the end | EVDs / checks: first tenth, last tenth |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, some in runs.items():
        tenth = some[max(0, len(some) // 10 - 1)]
        last, before = some[-1], some[min(len(some) - 2, (9 * len(some)) // 10)] if len(some) > 1 else some[0]
        early = int(tenth["evd_calls"]) / max(1, int(tenth["checks"]))
        checks = int(last["checks"]) - int(before["checks"])
        late = (int(last["evd_calls"]) - int(before["evd_calls"])) / max(1, checks)
        out.append(
            f"| {name} | {last['step']} | {last['loss']} | {float(tenth['resident_mb']):.0f}, "
            f"{float(last['resident_mb']):.0f} | {100 * early:.1f} %, {100 * late:.1f} % |"
        )
    if {"f32", "f64", "f32, another seed"} <= set(runs):
        def apart(a: str, b: str) -> float:
            return max(abs(float(x["loss"]) - float(y["loss"])) / float(y["loss"]) for x, y in zip(runs[a], runs[b]))

        said = f"The curves of f32 and f64 are at most {100 * apart('f32', 'f64'):.2g} % apart, those of two seeds "
        out += ["", said + f"{100 * apart('f32, another seed', 'f32'):.2g} %."]
    return "\n".join(out) + "\n"


# ---- pictures


def colours(names: Sequence[str]) -> Dict[str, Any]:
    import matplotlib

    fixed = {BASE: "black", "sandwich": "tab:red"}
    tab = [colour for place, colour in enumerate(matplotlib.colormaps["tab10"].colors) if place != 3]
    free = iter(3 * [*tab, *matplotlib.colormaps["Dark2"].colors, *matplotlib.colormaps["Set2"].colors])
    return {name: fixed[name] if name in fixed else next(free) for name in names}


def style(name: str) -> str:
    if name.startswith("soap"):
        return "--"
    return ":" if name.startswith("stale_") else "-"


#: What the pictures show: the methods of the README and the best of the controls. The tables have them all.
DRAWN = [*FRONT, "stale_geometric"]


def drawn(found: Dict[str, Dict[str, Cell]]) -> List[str]:
    """Those of them that every task has."""
    return [name for name in DRAWN if all(name in some for some in found.values())]


def draw_curves(rows: Sequence[Row], folder: Path, file: str = "curves.png") -> None:
    import matplotlib.pyplot as plt

    found, targets = cells(rows)
    if not found:
        return
    across = min(3, len(found))
    down = -(-len(found) // across)
    figure, axes = plt.subplots(down, across, figsize=(4.6 * across, 3.4 * down + 0.9), squeeze=False)
    names = drawn(found)
    colour = colours(DRAWN)
    for axis, (task, by_method) in zip(axes.flat, found.items()):
        shown_values = []
        for method in names:
            points, losses = curve(by_method[method].rows)
            if points:
                wide = 2.0 if method in (BASE, "sandwich") else 1.2
                axis.plot(points, losses, style(method), color=colour[method], lw=wide)
                shown_values += losses[len(losses) // 6 :]
        axis.axhline(targets[task], color="gray", lw=0.8)
        low, high = min(shown_values), sorted(shown_values)[int(0.95 * (len(shown_values) - 1))]
        if low > 0 and high / low > 10:
            axis.set_yscale("log")
            axis.set_ylim(low / 1.15, high * 1.15)
        else:
            axis.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
        axis.set(title=task, xlabel="step", ylabel="loss on test data")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in list(axes.flat)[len(found) :]:
        axis.axis("off")
    handles = [plt.Line2D([], [], color=colour[name], ls=style(name)) for name in names]
    columns = 4 if across > 1 else 3
    below = -(-len(names) // columns)
    figure.tight_layout(rect=(0, 0.01 + 0.19 * below / (3.4 * down + 0.9), 1, 1))
    figure.legend(handles, names, loc="lower center", ncol=columns, frameon=False, fontsize=8)
    figure.savefig(folder / file, dpi=110)
    plt.close(figure)


def draw_longer(rows: Sequence[Row], folder: Path) -> None:
    draw_curves(rows, folder, "longer.png")


def draw_profile(rows: Sequence[Row], folder: Path) -> None:
    """AlgoPerf's performance profile: the share of tasks whose target a method reaches within r times the best."""
    import matplotlib.pyplot as plt

    found, _ = cells(rows)
    names = drawn(found)
    if not names:
        return
    colour = colours(DRAWN)
    figure, axes = plt.subplots(1, 2, figsize=(10.5, 4.4), sharey=True)
    for axis, what in zip(axes, ("steps", "seconds")):
        times = {name: [by_method[name].typical(what) for by_method in found.values()] for name in names}
        best = [min(times[name][i] for name in names) for i in range(len(found))]
        ratios = {name: sorted(t / b for t, b in zip(times[name], best) if math.isfinite(t)) for name in names}
        most = max([2.0, *(r for some in ratios.values() for r in some)]) * 1.05
        for place, name in enumerate(names):
            x, y = [1.0], [0.0]
            for done, ratio in enumerate(ratios[name], 1):
                x += [ratio, ratio]
                y += [y[-1], done / len(found)]
            # A little apart, so that equal lines can be told from each other.
            y = [value + 0.004 * (place - len(names) / 2) for value in [*y, y[-1]]]
            wide = 2.2 if name in (BASE, "sandwich") else 1.3
            axis.plot([*x, most], y, style(name), color=colour[name], lw=wide, label=name)
        axis.set_xscale("log")
        axis.set(xlabel=f"{what} to the target / the best method's", xlim=(1, most), ylim=(-0.06, 1.06))
        ticks = [tick for tick in (1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100) if tick <= most]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"share of {len(found)} tasks")
    axes[1].legend(frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(folder / "profile.png", dpi=110)
    plt.close(figure)


def draw_ablations(rows: Sequence[Row], folder: Path) -> None:
    import matplotlib.pyplot as plt

    # Two values are told by the table.
    found = {option: variants for option, variants in ablation(rows).items() if len(variants) > 2}
    if not found:
        return
    across = min(3, len(found))
    down = -(-len(found) // across)
    figure, axes = plt.subplots(down, across, figsize=(4.4 * across, 3.1 * down), squeeze=False)
    names = list(dict.fromkeys(row["task"] for row in rows))
    for axis, (option, variants) in zip(axes.flat, found.items()):
        labels = [variant.split("=")[1].replace(" (default)", "*") for variant in variants]
        for task in names:
            losses = [[float(r["final_loss"]) for r in by_task.get(task, [])] for by_task in variants.values()]
            known = [mean(some) for some in losses if some]
            if known:
                least = min(known)
                y = [mean(some) / least if some else math.nan for some in losses]
                bars = [spread(some) / least if some else 0.0 for some in losses]
                axis.errorbar(range(len(labels)), y, yerr=bars, marker="o", ms=4, lw=1.2, capsize=2, label=task)
        axis.set_xticks(range(len(labels)), labels, rotation=25 if max(map(len, labels)) > 6 else 0, fontsize=8)
        axis.set(title=f"{option} (*: the default)", ylabel="loss / the best here")
        axis.spines[["top", "right"]].set_visible(False)
    for axis in list(axes.flat)[len(found) :]:
        axis.axis("off")
    axes.flat[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "ablations.png", dpi=110)
    plt.close(figure)


def draw_long(rows: Sequence[Row], folder: Path) -> None:
    import matplotlib.pyplot as plt
    import matplotlib.ticker

    runs: Dict[str, List[Row]] = {}
    for row in rows:
        runs.setdefault(row["run"], []).append(row)
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 3.6))
    highest = 0.0
    for name, some in runs.items():
        steps, dashes = [int(row["step"]) for row in some], "--" if name == "f64" else "-"
        axes[0].plot(steps, [float(row["loss"]) for row in some], dashes, lw=1.4, label=name)
        memory = [float(row["resident_mb"]) for row in some]
        highest = max([highest, *memory])
        axes[1].plot(steps, memory, dashes, lw=1.4)
        # Over a tenth of the run each.
        tenth = max(1, len(some) // 10)
        ends = [{"checks": "0", "evd_calls": "0", "step": "0"}, *some[tenth - 1 :: tenth]]
        for before, after in zip(ends, ends[1:]):
            done = int(after["evd_calls"]) - int(before["evd_calls"])
            rate = 100 * done / max(1, int(after["checks"]) - int(before["checks"]))
            line = axes[2].plot([int(before["step"]), int(after["step"])], 2 * [rate], dashes, lw=1.6)[0]
            line.set_color(axes[0].lines[-1].get_color())
    for axis, label in zip(axes, ("loss on validation data", "resident memory (MB)", "checks that decompose (%)")):
        axis.set(xlabel="step", ylabel=label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yscale("log")
    for formatter in (axes[0].yaxis.set_major_formatter, axes[0].yaxis.set_minor_formatter):
        formatter(matplotlib.ticker.FormatStrFormatter("%g"))
    axes[1].set_ylim(0, 1.2 * highest)
    axes[2].set_ylim(bottom=0)
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(folder / "long.png", dpi=110)
    plt.close(figure)


# ---- the page


def put(text: str, name: str, content: str) -> str:
    """Replaces what stands between the marks of `name`."""
    begin, end = f"<!-- {name}: written by studies/report.py -->\n", f"<!-- end of {name} -->"
    if begin not in text or end not in text:
        raise SystemExit(f"the page has no marks for '{name}': expected the lines '{begin.strip()}' and '{end}'")
    before, rest = text.split(begin, 1)
    return before + begin + "\n" + content.strip("\n") + "\n\n" + end + rest.split(end, 1)[1]


def load(path: Path) -> Optional[List[Row]]:
    if not path.exists():
        return None
    with open(path, newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if None not in row.values()]


def picture(name: str, what: str, page: Path, folder: Path) -> str:
    there = (folder / name).exists()
    return f"\n![{what}]({(folder / name).relative_to(page.parent)})\n" if there else ""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=ROOT / "studies" / "results")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "study.md")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    given = parser.parse_args(arguments)
    text = given.page.read_text(encoding="utf-8")
    folder = given.page.parent / "study"
    folder.mkdir(exist_ok=True)
    try:
        import matplotlib

        matplotlib.use("Agg")
        pictures = True
    except ImportError:
        print("matplotlib is missing: the pictures stay as they are", file=sys.stderr)
        pictures = False
    parts: List[Tuple[str, str, Callable[[Sequence[Row]], str], Dict[str, Tuple[Callable, str]]]] = [
        (
            "headline",
            "runs.csv",
            headline,
            {
                "profile.png": (draw_profile, "Share of tasks over the ratio to the best method, in steps and seconds"),
                "curves.png": (draw_curves, "Loss on test data over steps, one panel per task"),
            },
        ),
        (
            "longer runs",
            "longer.csv",
            longer,
            {"longer.png": (draw_longer, "Loss on test data over steps in the longer runs, one panel per task")},
        ),
        ("ablations", "ablations.csv", ablations, {"ablations.png": (draw_ablations, "Loss by option, a panel each")}),
        ("long run", "long.csv", long_run, {"long.png": (draw_long, "Loss, memory and refreshes over a long run")}),
    ]
    for name, file, write, drawn in parts:
        rows = load(given.results / file)
        if not rows:
            print(f"{name}: no {file}")
            continue
        content = ""
        for image, (draw, what) in drawn.items():
            if pictures:
                draw(rows, folder)
            content += picture(image, what, given.page, folder)
        text = put(text, name, content + "\n" + write(rows))
        print(f"{name}: {len(rows)} rows")
    appendix = given.results / "appendix_k.json"
    if appendix.exists():
        found = json.loads(appendix.read_text())
        settings = found["settings"]
        trials = ", ".join(f"{count} of `{name}`" for name, count in settings["trials"].items())
        said = f"Sides {', '.join(map(str, settings['sides']))}. Trials per configuration: {trials}, "
        said += f"{settings['corrected_trials']} of them with the corrected bound.\n\n"
        text = put(text, "appendix K", said + found["table"])
        print("appendix K: written")
    given.page.write_text(text, encoding="utf-8")
    rows = load(given.results / "runs.csv")
    if rows:
        readme = put(given.readme.read_text(encoding="utf-8"), "study", front(rows))
        given.readme.write_text(readme, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
