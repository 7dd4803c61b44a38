"""The study: tasks × methods × learning rates × seeds, one row per run in a CSV.

    cargo build --release
    PYTHONPATH=bindings/python FOAM_LIBRARY=target/release/libfoam.so python studies/run.py

Start it again after an interruption: what the CSV has is not run again, and a last line that was cut off is removed.
``--tasks autoencoder,pinn --methods adamw,sandwich --seeds 5 --jobs 2`` choose; ``--scale 3`` makes every run three
times as long; ``--ablations`` runs the default preset with one option changed instead; ``--list`` says what there is
and how long it would take. ``studies/report.py`` makes the tables and pictures.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import csv
import io
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import data  # noqa: E402
import methods  # noqa: E402
import schedules  # noqa: E402
import tasks  # noqa: E402
import training  # noqa: E402
import workers  # noqa: E402
from schedules import Schedule  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "studies" / "results"
TUNING_SEED = 100

Key = Tuple[str, str, str, int, int]
Row = Dict[str, str]


# ---- the CSV


class Table:
    """The rows of a CSV file that survives being killed: a row is one line, written by one call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: List[Row] = []
        if path.exists() and path.stat().st_size:
            self._repair()
        if path.exists() and path.stat().st_size:
            self.rows = read(path)

    def _repair(self) -> None:
        """Cuts off a last line without its end."""
        raw = self.path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole < len(raw):
            print(f"{self.path.name}: the last line was cut off and is removed", flush=True)
            with open(self.path, "r+b") as file:
                file.truncate(whole)

    def _write(self, values: Iterable[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(values)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, line.getvalue().encode())
            os.fsync(handle)
        finally:
            os.close(handle)

    def append(self, row: Row) -> None:
        if not self.path.exists() or not self.path.stat().st_size:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._write(training.COLUMNS)
        self._write(row[column] for column in training.COLUMNS)
        self.rows.append(row)


def read(path: Path) -> List[Row]:
    """The rows of a CSV; the columns must be this version's."""
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames != training.COLUMNS:
            raise SystemExit(f"{path}: other columns than this version writes; choose another file with --out")
        return list(reader)


def key_of(row: Mapping[str, Any]) -> Key:
    return (row["stage"], row["task"], row["method"], int(row["trial"]), int(row["seed"]))


# ---- what is to be run


def job(stage: str, task: str, method: str, trial: int, seed: int, scale: float, schedule: Optional[Schedule]) -> Dict:
    how = methods.find(method)
    said = [schedules.told(how.options or {}), schedule.text() if schedule else ""]
    return {
        **{"stage": stage, "task": task, "method": method, "trial": trial, "seed": seed},
        "scale": scale,
        "lr": how.centre * methods.FACTORS[trial],
        "options": " ".join(words for words in said if words),
        "schedule": schedule,
        "part": "test" if stage == "final" else "valid",
    }


def best(rows: Sequence[Row], stage: str, task: str, method: str) -> Optional[Row]:
    """The run of the tuning with the least loss, of those that did not diverge."""
    tried = [r for r in rows if (r["stage"], r["task"], r["method"]) == (stage, task, method)]
    good = [r for r in tried if r["status"] == "done"]
    return min(good, key=lambda r: float(r["final_loss"])) if good else None


class Study:
    """The headline: tuning on validation data, then seeds on test data."""

    def __init__(self, names: Sequence[str], ways: Sequence[str], seeds: int, trials: Sequence[int], scale: float):
        self.names, self.ways, self.seeds, self.trials, self.scale = names, ways, seeds, trials, scale
        #: Where methods are run that are not run everywhere.
        self.controls = list(names)

    def pairs(self) -> Iterator[Tuple[str, str]]:
        """Task and method, in the order in which they are run: what is run everywhere first."""
        everywhere = [method for method in self.ways if methods.find(method).everywhere]
        for task in self.names:
            yield from ((task, method) for method in everywhere)
        for task in self.names:
            if task in self.controls:
                yield from ((task, method) for method in self.ways if method not in everywhere)

    def count(self) -> Iterator[Tuple[str, str, int]]:
        """Task, method and number of runs, of everything."""
        for task, method in self.pairs():
            yield task, method, len(self.trials) + self.seeds

    def schedule(self, rows: Sequence[Row], task: str, method: str) -> Optional[Schedule]:
        """The schedule of a control: as many refreshes as its rule has on average over the seeds; None while that is
        not known.
        """
        how = methods.find(method)
        ruled = [
            r for r in rows
            if (r["stage"], r["task"], r["method"]) == ("final", task, how.as_many_as) and int(r["seed"]) < self.seeds
        ]
        done = [r for r in ruled if r["status"] == "done"]
        if len(ruled) < self.seeds or not done:
            return None
        evds = round(sum(int(r["evd_calls"]) for r in done) / len(done))
        return schedules.matched(how.schedule, how.options, int(done[0]["steps"]), evds, int(done[0]["factors"]))

    def ready(self, rows: Sequence[Row]) -> List[Dict]:
        """The jobs that can be run now, in order; those that depend on others follow once these are there."""
        found: List[Dict] = []
        done = {key_of(row) for row in rows}
        for task, method in self.pairs():
            schedule = self.schedule(rows, task, method)
            if schedule is None and methods.find(method).as_many_as is not None:
                continue
            tune = [job("tune", task, method, t, TUNING_SEED, self.scale, schedule) for t in self.trials]
            found += tune
            chosen = best(rows, "tune", task, method) if all(key_of(one) in done for one in tune) else None
            if chosen is not None:
                trial = int(chosen["trial"])
                found += [job("final", task, method, trial, seed, self.scale, schedule) for seed in range(self.seeds)]
        return found


class Ablations(Study):
    """The default preset with one option changed: all learning rates and seeds on validation data."""

    def pairs(self) -> Iterator[Tuple[str, str]]:
        """Options that lay out blocks on the tasks for these, all others on the rest; nothing changed on all."""
        for task, method in super().pairs():
            if method == "default" or methods.find(method).layout == (task in tasks.LAYOUT):
                yield task, method

    def count(self) -> Iterator[Tuple[str, str, int]]:
        for task, method in self.pairs():
            yield task, method, len(self.trials) * self.seeds

    def ready(self, rows: Sequence[Row]) -> List[Dict]:
        return [
            job("ablation", task, method, trial, seed, self.scale, None)
            for task, method in self.pairs()
            for trial in self.trials
            for seed in range(self.seeds)
        ]


# ---- time


class Clock:
    """How long runs take: at first from the tasks' and methods' own estimates, then from the runs that were seen."""

    def __init__(self, rows: Sequence[Row], scale: float) -> None:
        self.scale = scale
        self.seen: Dict[Tuple[str, str], List[float]] = collections.defaultdict(list)
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        if row["status"] == "done":
            self.seen[row["task"], row["method"]].append(float(row["wall_seconds"]))

    def guess(self, task: str, method: str) -> float:
        kind = tasks.KINDS[task]
        # An evaluation costs about as much as five steps.
        steps = kind.steps * self.scale * methods.find(method).cost + 5 * training.EVALUATIONS
        return kind.step_seconds * steps

    def expected(self, task: str, method: str) -> float:
        seen = self.seen.get((task, method))
        if seen:
            return sum(seen) / len(seen)
        # How far the guesses are off on what was seen.
        pairs = [(sum(times) / len(times), self.guess(*what)) for what, times in self.seen.items()]
        return self.guess(task, method) * (sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else 1.0)


def duration(seconds: float) -> str:
    minutes = int(round(seconds / 60))
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


# ---- running


def run(study: Study, table: Table, jobs: int, limit: Optional[int]) -> None:
    """Runs what is missing, on `jobs` processes; the rows come in the order in which runs end."""
    refuse_others(study, table)
    clock = Clock(table.rows, study.scale)
    total = sum(count for _, _, count in study.count())
    began, at_start, given = time.monotonic(), len(wanted_done(study, table)), 0
    running: Dict[concurrent.futures.Future, Dict] = {}
    with workers.pool(jobs) as pool:
        while True:
            done = {key_of(row) for row in table.rows}
            busy = {key_of(one) for one in running.values()}
            for one in study.ready(table.rows):
                if len(running) >= jobs or (limit is not None and given >= limit):
                    break
                if key_of(one) not in done | busy:
                    running[pool.submit(training.train, one)] = one
                    busy.add(key_of(one))
                    given += 1
            if not running:
                break
            ended, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                running.pop(future)
                row = future.result()
                table.append(row)
                clock.add(row)
                progress(study, table, clock, total, row, jobs)
    done_now = len(wanted_done(study, table)) - at_start
    print(f"{done_now} runs in {duration(time.monotonic() - began)}; {table.path}", flush=True)


def wanted_done(study: Study, table: Table) -> List[Row]:
    """The rows of this study; the file may have more tasks, methods, rates and seeds."""
    ours = {"ablation"} if isinstance(study, Ablations) else {"tune", "final"}
    pairs = set(study.pairs())
    seeds = {*range(study.seeds), TUNING_SEED}
    return [
        r for r in table.rows
        if r["stage"] in ours and (r["task"], r["method"]) in pairs
        and int(r["seed"]) in seeds and int(r["trial"]) in study.trials
    ]


def refuse_others(study: Study, table: Table) -> None:
    """Rows of the same name that were made differently would be mixed with the new ones."""
    wanted = {key_of(one): one for one in study.ready(table.rows)}
    for row in table.rows:
        one = wanted.get(key_of(row))
        if one is None:
            continue
        for column, value in (("scale", format(one["scale"], ".6g")), ("options", one["options"])):
            if row[column] != value:
                raise SystemExit(
                    f"{table.path}: {row['task']}, {row['method']} was run with {column} '{row[column]}', now it is "
                    f"'{value}': choose another file with --out, or remove these rows"
                )


def remaining(study: Study, table: Table, clock: Clock) -> float:
    """Seconds of one process for what is missing."""
    done = collections.Counter((row["task"], row["method"]) for row in wanted_done(study, table))
    return sum(
        max(0, count - done[task, method]) * clock.expected(task, method) for task, method, count in study.count()
    )


def progress(study: Study, table: Table, clock: Clock, total: int, row: Row, jobs: int) -> None:
    done = len(wanted_done(study, table))
    filled = 20 * done // max(1, total)
    left = duration(remaining(study, table, clock) / jobs)
    print(
        f"[{'#' * filled}{'.' * (20 - filled)}] {done}/{total}, {left} left  "
        f"{row['stage']} {row['task']} {row['method']} lr {row['lr']} seed {row['seed']}: "
        f"{row['final_loss'] if row['status'] == 'done' else row['status']} ({float(row['wall_seconds']):.1f} s)",
        flush=True,
    )


# ---- arguments


def chosen(given: Optional[str], known: Sequence[str], what: str) -> List[str]:
    if given is None:
        return list(known)
    names = given.split(",")
    for name in names:
        if name not in known:
            raise SystemExit(f"{what} '{name}': expected some of {', '.join(known)}")
    return names


def parse(arguments: Optional[Sequence[str]] = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", help="names, separated by commas")
    parser.add_argument("--methods", help="names, separated by commas; with --ablations options, or option=value")
    parser.add_argument("--seeds", type=int, help="runs of the chosen learning rate (5; with --ablations 2)")
    parser.add_argument("--trials", type=int, choices=range(1, 6), help="learning rates (5; with --ablations 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the steps of every run")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each on one thread")
    parser.add_argument("--limit", type=int, help="stop after so many runs")
    parser.add_argument("--ablations", action="store_true", help="options of the default preset, one at a time")
    parser.add_argument("--out", type=Path, help="the CSV (studies/results/runs.csv or ablations.csv)")
    parser.add_argument("--list", action="store_true", help="say what would be run, and stop")
    given = parser.parse_args(arguments)
    if given.scale <= 0 or given.jobs < 1 or (given.seeds is not None and given.seeds < 1):
        parser.error("--scale must be above 0, --jobs and --seeds at least 1")
    return given


def middle(count: int) -> List[int]:
    """The places of `count` learning rates around the centre."""
    places = sorted(range(5), key=lambda place: (abs(place - 2), place))
    return sorted(places[:count])


def study_of(given: argparse.Namespace) -> Study:
    if given.ablations:
        knobs = methods.ablations()
        known = [name for variants in knobs.values() for name in variants]
        asked = []
        for name in (given.methods or ",".join(knobs)).split(","):
            asked += list(knobs[name]) if name in knobs else chosen(name, known, "option")
        names = chosen(given.tasks, list(tasks.KINDS), "task") if given.tasks else [*tasks.ABLATION, *tasks.LAYOUT]
        return Ablations(names, list(dict.fromkeys(asked)), given.seeds or 2, middle(given.trials or 3), given.scale)
    names = chosen(given.tasks, list(tasks.KINDS), "task") if given.tasks else tasks.HEADLINE
    ways = chosen(given.methods, methods.known(), "method")
    for method in ways:
        needed = methods.find(method).as_many_as
        if needed is not None and needed not in ways:
            raise SystemExit(f"method '{method}' has as many refreshes as '{needed}': expected it among --methods")
    study = Study(names, ways, given.seeds or 5, middle(given.trials or 5), given.scale)
    if given.tasks is None:
        study.controls = tasks.CONTROLS
    return study


def main(arguments: Optional[Sequence[str]] = None) -> int:
    given = parse(arguments)
    study = study_of(given)
    needs = sorted({need for name in study.names for need in tasks.KINDS[name].needs})
    missing = data.available(needs)
    for name in list(study.names):
        absent = [missing[need] for need in tasks.KINDS[name].needs if need in missing]
        if absent:
            print(f"left out: {name}, for want of the {absent[0]}", flush=True)
            study.names = [other for other in study.names if other != name]
    table = Table(given.out or RESULTS / ("ablations.csv" if given.ablations else "runs.csv"))
    clock = Clock(table.rows, study.scale)
    total = sum(count for _, _, count in study.count())
    left = remaining(study, table, clock)
    print(
        f"{len(study.names)} tasks, {len(study.ways)} methods, {total} runs, {len(wanted_done(study, table))} done; "
        f"about {duration(left / given.jobs)} on {given.jobs} process{'es' if given.jobs > 1 else ''}",
        flush=True,
    )
    if given.list:
        for name in study.names:
            kind = tasks.KINDS[name]
            seconds = clock.expected(name, "adamw") if not given.ablations else clock.expected(name, study.ways[0])
            print(f"  {name:12} {kind.what}; {round(kind.steps * given.scale)} steps, {seconds:.0f} s")
        for name in study.ways:
            print(f"  {name:20} {methods.find(name).what}")
        return 0
    run(study, table, given.jobs, given.limit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
