"""A long run: is memory flat, how does the rate of decompositions change, and how far is f32 from f64?

    PYTHONPATH=bindings/python FOAM_LIBRARY=target/release/libfoam.so python studies/long.py [--task digits5k]

Three runs of the default preset for 20 times the task's steps: in f32, in f64 (model, data and statistics) from the
same first weights on the same batches, and in f32 from another seed, which says how far apart runs are anyway. A row
per interval goes to studies/results/long.csv; finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from pathlib import Path
from typing import Dict, List

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch  # noqa: E402

import foam.torch  # noqa: E402
import run  # noqa: E402
import tasks  # noqa: E402
import training  # noqa: E402

COLUMNS = ["run", "task", "step", "loss", "resident_mb", "checks", "evd_calls", "largest_bound", "seconds"]
POINTS = 100
RUNS = {"f32": (0, False), "f64": (0, True), "f32, another seed": (1, False)}


def resident_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def one(name: str, task_name: str, lr: float, scale: float) -> List[Dict[str, str]]:
    """The rows of a run."""
    seed, double = RUNS[name]
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    task = tasks.make(task_name, seed, scale)
    if double:
        # The first weights are drawn in f32, so that they are the same.
        task.model.double()
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    optimizer = foam.torch.FOAM(task.model, lr=lr, num_threads=1)
    every = max(1, task.steps // POINTS)
    rows, begun = [], time.process_time()
    for step in range(1, task.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = lr * training.rate(step, task.steps)
        optimizer.zero_grad()
        task.batch().backward()
        optimizer.step()
        if step % every == 0:
            stats = optimizer.stats()
            bounds = [f["gap_bound"] for f in optimizer.factor_stats() if f["gap_bound"] == f["gap_bound"]]
            values = {
                **{"run": name, "task": task_name, "step": step, "loss": f"{task.evaluate('valid'):.6g}"},
                **{"resident_mb": f"{resident_mb():.1f}", "checks": stats["checks"], "evd_calls": stats["evd_calls"]},
                "largest_bound": f"{max(bounds, default=0.0):.4g}",
                "seconds": f"{time.process_time() - begun:.1f}",
            }
            rows.append({key: str(value) for key, value in values.items()})
            if len(rows) % 10 == 0:
                left = (time.process_time() - begun) / step * (task.steps - step)
                said = f"{name}: step {step} of {task.steps}, loss {values['loss']}"
                print(f"{said}, {run.duration(left)} left", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="digits5k", choices=("digits5k", "digits", "teacher"))
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--scale", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=run.RESULTS / "long.csv")
    given = parser.parse_args()
    there: List[Dict[str, str]] = []
    if given.out.exists():
        with open(given.out, newline="", encoding="utf-8") as file:
            there = list(csv.DictReader(file))
    for name in RUNS:
        if any(row["run"] == name for row in there):
            continue
        there += one(name, given.task, given.lr, given.scale)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        # Whole runs only: the file is replaced at once.
        part = given.out.with_suffix(".part")
        with open(part, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(there)
        part.replace(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
