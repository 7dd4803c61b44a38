"""One run: a task, a method, a learning rate and a seed; what came out, as a row."""

from __future__ import annotations

import math
import time
from typing import Any, Dict, List, Mapping, Sequence

import torch

import methods
import tasks

#: How often a run is measured on held-out data.
EVALUATIONS = 25

COLUMNS: List[str] = [
    # What was run: together they decide everything but times.
    *("stage", "task", "method", "trial", "seed", "scale", "lr", "steps", "options"),
    # What came of it.
    *("status", "part", "final_loss", "best_loss", "train_loss", "points", "losses"),
    *("factors", "checks", "evd_calls", "scheduled", "failed_evds", "state_bytes", "largest_bound"),
    # Times; CPU seconds of the process, evaluation apart.
    *("seconds", "wall_seconds", "seconds_at", "step_p50_ms", "step_p99_ms"),
    *(f"seconds_{verb}" for verb in ("accumulate", "sense", "refresh", "redamp", "apply", "optimizer")),
]
#: The columns that differ from run to run of the same thing.
TIMES = COLUMNS[COLUMNS.index("seconds") :]


def rate(step: int, steps: int) -> float:
    """The schedule of all methods: a linear start over 5 % of the steps, then down to a tenth on a half cosine."""
    start = max(1, steps // 20)
    if step <= start:
        return step / start
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - start) / max(1, steps - start)))


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _state_bytes(optimizers: Sequence[torch.optim.Optimizer]) -> int:
    total = 0
    for optimizer in optimizers:
        if hasattr(optimizer, "stats"):
            total += optimizer.stats()["state_bytes_host"]
            continue
        for state in optimizer.state.values():
            for value in state.values():
                several = value if isinstance(value, (list, tuple)) else [value]
                total += sum(v.numel() * v.element_size() for v in several if torch.is_tensor(v) and v.dim())
    return total


def _number(value: float) -> str:
    return format(value, ".6g")


def train(job: Mapping[str, Any]) -> Dict[str, str]:
    """Runs a job (its keys are the first columns, and `part`, `schedule`) on one thread; a row of the CSV."""
    torch.set_num_threads(1)
    method = methods.find(job["method"])
    task = tasks.make(job["task"], job["seed"], job["scale"])
    optimizers = method.optimizers(task.model, job["lr"], job["schedule"])
    bases = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    every = max(1, task.steps // EVALUATIONS)
    points, losses, seconds_at, steps_taken = [], [], [], []
    used, status, loss, begun = 0.0, "done", None, time.perf_counter()
    largest = math.nan
    for step in range(1, task.steps + 1):
        start = time.process_time()
        for optimizer, base in zip(optimizers, bases):
            for group, lr in zip(optimizer.param_groups, base):
                group["lr"] = lr * rate(step, task.steps)
            optimizer.zero_grad()
        loss = task.batch()
        loss.backward()
        if not bool(torch.isfinite(loss)):
            status = f"diverged at step {step}"
            break
        middle = time.process_time()
        try:
            for optimizer in optimizers:
                optimizer.step()
        except methods.foam.NotFiniteError:
            status = f"diverged at step {step}"
            break
        end = time.process_time()
        used += end - start
        steps_taken.append(end - middle)
        if step % every == 0 or step == task.steps:
            points.append(step)
            losses.append(task.evaluate(job["part"]))
            seconds_at.append(used)
            ours = [f for o in optimizers if hasattr(o, "factor_stats") for f in o.factor_stats()]
            bounds = [f["gap_bound"] for f in ours if not math.isnan(f["gap_bound"])]
            largest = max([*bounds, largest], key=lambda x: -1.0 if math.isnan(x) else x)
    if losses and not math.isfinite(losses[-1]):
        status = "diverged"
    finite = [x for x in losses if math.isfinite(x)]
    row = {
        **{key: str(job[key]) for key in ("stage", "task", "method", "trial", "seed")},
        "scale": _number(job["scale"]),
        "lr": _number(job["lr"]),
        "steps": str(task.steps),
        "options": job["options"],
        "status": status,
        "part": job["part"],
        "final_loss": _number(losses[-1]) if status == "done" else "inf",
        "best_loss": _number(min(finite)) if finite else "inf",
        "train_loss": _number(float(loss.detach())),
        "points": " ".join(map(str, points)),
        "losses": " ".join(map(_number, losses)),
        "state_bytes": str(_state_bytes(optimizers)),
        "largest_bound": _number(largest),
        "seconds": _number(used),
        "wall_seconds": _number(time.perf_counter() - begun),
        "seconds_at": " ".join(map(_number, seconds_at)),
        "step_p50_ms": _number(1e3 * _quantile(steps_taken, 0.5)) if steps_taken else "",
        "step_p99_ms": _number(1e3 * _quantile(steps_taken, 0.99)) if steps_taken else "",
        "seconds_optimizer": _number(sum(steps_taken)),
    }
    if method.make is None:
        stats = optimizers[0].stats()
        row.update((key, str(stats[key])) for key in ("factors", "checks", "evd_calls", "failed_evds"))
        # What a policy that always refreshes would have done at the same checks.
        row["scheduled"] = str(stats["checks"])
        row.update(
            (f"seconds_{verb}", _number(stats[f"seconds_{verb}"]))
            for verb in ("accumulate", "sense", "refresh", "redamp", "apply")
        )
    return {key: row.get(key, "") for key in COLUMNS}
