"""The statistics of all factors as rows of a CSV file, one snapshot per call."""

from __future__ import annotations

import csv
import math
import os
from typing import Any, Mapping

from ._handle import Handle, defaults
from .errors import InvalidArgumentError

__all__ = ["COLUMNS", "append_snapshot"]

#: The columns; those of the train example's ``stats.csv`` are among them, under the same names.
COLUMNS = (
    "policy",
    "step",
    "param",
    "block",
    "axis",
    "dim",
    "root",
    "tau",
    "epsilon_base",
    "epsilon_max",
    "epsilon",
    "proxy",
    "max_proxy",
    "relative_change",
    "alpha",
    "gap_bound",
    "residual",
    "noise_floor",
    "eigenvalue_min",
    "eigenvalue_max",
    "last_refresh",
    "last_check",
    "checks",
    "evd_calls",
    "reuse_calls",
    "proxy_calls",
    "epsilon_updates",
    "cap_refreshes",
    "residual_calls",
    "failed_evds",
    "fallback_double",
    "fallback_svd",
    "fallback_stale",
    "kappa",
    "branch",
    "bound_exceeded",
    "bound_average",
    "bound_spectral",
    "bound_sandwich",
    "orthogonality",
    "qr_steps",
    "qr_refreshes",
    "qr_fallbacks",
    "qr_tracked",
    "delayed_checks",
    "findings",
    # Of the whole group, the same in all its rows.
    "group",
    "options",
    "seconds_inspect",
    "seconds_accumulate",
    "seconds_sense",
    "seconds_refresh",
    "seconds_redamp",
    "seconds_apply",
    "seconds_total",
)


def append_snapshot(path: Any, handle: Handle, group: int = 0) -> None:
    """Appends a row for every factor; the file gets a header if it is new."""
    stats = handle.stats()
    shared = {key: handle.options[key] for key in ("policy", "tau", "epsilon_max")}
    if handle.options["epsilon_mode"] == "relative":
        # In units of each factor's largest eigenvalue: not a limit of the column epsilon.
        shared["epsilon_max"] = ""
    shared.update((key, value) for key, value in stats.items() if key.startswith("seconds_"))
    shared.update(group=group, step=stats["steps"], options=_options(handle.options))
    new = not os.path.exists(path) or os.path.getsize(path) == 0
    if not new:
        with open(path, newline="", encoding="utf-8") as file:
            found = next(csv.reader(file), [])
        if tuple(found) != COLUMNS:
            raise InvalidArgumentError(
                f"'{os.fspath(path)}' has other columns: expected a new file, or one that to_csv wrote"
            )
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
        for factor in handle.factor_stats():
            row = {**factor, **shared, "findings": " ".join(factor["findings"])}
            # A state of foam.jax knows of no seconds.
            writer.writerow([_cell(row.get(column, "")) for column in COLUMNS])


def _options(options: Mapping[str, str]) -> str:
    """The options that are not those of the preset ``reference``, as ``KEY=VALUE``: the diagnosis needs them."""
    usual = defaults("reference")
    return " ".join(f"{key}={value}" for key, value in options.items() if value != usual.get(key))


def _cell(value: Any) -> Any:
    """Values that do not exist are empty cells."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    return value
