"""The statistics of a run in TensorBoard, Weights & Biases and Lightning, in one line each:

    foam.watch.tensorboard(writer, optimizer)                 # every so often, in the training loop
    foam.watch.wandb(optimizer)
    Trainer(callbacks=[foam.watch.lightning_callback()])

The optimizer is a ``foam.Optimizer``, a ``foam.torch.FOAM``, or what ``foam.jax.foam_stats(state)`` gave. Nothing is
imported before it is used. Files for ``python -m foam plot`` and ``report`` come from ``optimizer.to_csv``.
"""

from __future__ import annotations

import math
import statistics
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .errors import InvalidArgumentError

__all__ = ["lightning_callback", "scalars", "tensorboard", "wandb"]

#: Counters of the whole optimizer that a person watches.
_COUNTS = (
    "steps",
    "skipped_steps",
    "checks",
    "evd_calls",
    "evd_rate",
    "cap_refreshes",
    "failed_evds",
    "fallback_double",
    "fallback_svd",
    "fallback_stale",
)
#: Values of a factor that a person watches.
_VALUES = ("epsilon", "proxy", "gap_bound", "evd_rate")


def scalars(optimizer: Any, *, per_factor: bool = False) -> Dict[str, float]:
    """The statistics as named numbers, for whatever else draws curves.

    Args:
        optimizer: see the module.
        per_factor: also ``foam/<parameter>/<block>/<axis>/epsilon`` and so on for every factor; default False, the
            largest and the median of all.

    Returns:
        A dict: counters (``foam/evd_rate`` first of all), seconds per step by phase (``foam/seconds/refresh``), and
        ``foam/epsilon/largest``, ``foam/gap_bound/median`` and so on. Values that do not exist yet are left out.
    """
    stats, factors = _read(optimizer)
    found = {f"foam/{key}": float(stats[key]) for key in _COUNTS if key in stats}
    found["foam/findings"] = float(len(stats.get("findings", ())))
    for key in stats:
        if key.startswith("seconds_"):
            found[f"foam/seconds/{key[8:]}"] = stats[key] / max(stats["steps"], 1)
    for key in _VALUES:
        values = [factor[key] for factor in factors if math.isfinite(factor[key])]
        if values:
            found[f"foam/{key}/largest"] = float(max(values))
            found[f"foam/{key}/median"] = float(statistics.median(values))
    if per_factor:
        for factor in factors:
            place = f"foam/{factor['param']}/{factor['block']}/{factor['axis']}"
            found.update((f"{place}/{key}", float(factor[key])) for key in _VALUES if math.isfinite(factor[key]))
    return found


def tensorboard(writer: Any, optimizer: Any, step: Optional[int] = None, *, per_factor: bool = False) -> None:
    """Writes :func:`scalars` to a ``SummaryWriter`` (torch's, tensorboardX's or any with ``add_scalar``).

    Args:
        writer: the writer.
        optimizer: see the module.
        step: the place on the axis; default: the optimizer's steps.
        per_factor: as for :func:`scalars`.
    """
    found = scalars(optimizer, per_factor=per_factor)
    place = int(found["foam/steps"]) if step is None else step
    for name, value in found.items():
        writer.add_scalar(name, value, place)


def wandb(optimizer: Any, step: Optional[int] = None, *, run: Any = None, per_factor: bool = False) -> None:
    """Logs :func:`scalars` to a run of Weights & Biases.

    Args:
        optimizer: see the module.
        step: passed on to ``run.log``; default: none, the run counts on its own (``foam/steps`` is among the values).
        run: the run; default: the active one, ``wandb.run``.
        per_factor: as for :func:`scalars`.
    """
    if run is None:
        try:
            from wandb import run
        except ImportError as cause:
            raise InvalidArgumentError("Weights & Biases is not installed: pip install wandb, or pass run=") from cause
    if run is None:
        raise InvalidArgumentError("no run of Weights & Biases is active: expected wandb.init() before, or run=")
    run.log(scalars(optimizer, per_factor=per_factor), **({} if step is None else {"step": step}))


def lightning_callback(every: int = 100, *, per_factor: bool = False) -> Any:
    """A callback for Lightning's ``Trainer`` that logs :func:`scalars` of its FOAM optimizers to all its loggers.

    Args:
        every: steps between two logs; default 100.
        per_factor: as for :func:`scalars`.
    """
    if every < 1:
        raise InvalidArgumentError(f"every = {every}: expected at least 1")
    from .torch import FOAM

    class Statistics(_lightning().Callback):
        """Logs the statistics of FOAM."""

        def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
            """Called by the trainer."""
            if trainer.global_step % every:
                return
            for optimizer in trainer.optimizers:
                if isinstance(optimizer, FOAM):
                    found = scalars(optimizer, per_factor=per_factor)
                    for logger in trainer.loggers:
                        logger.log_metrics(found, step=trainer.global_step)

    return Statistics()


def _lightning() -> Any:
    try:
        import lightning.pytorch as package
    except ImportError:
        try:
            import pytorch_lightning as package
        except ImportError as cause:
            raise InvalidArgumentError("Lightning is not installed: pip install lightning") from cause
    return package


def _read(optimizer: Any) -> Tuple[Mapping[str, Any], List[Mapping[str, Any]]]:
    if isinstance(optimizer, Mapping) and "factors" in optimizer:
        return optimizer, optimizer["factors"]
    if hasattr(optimizer, "stats") and hasattr(optimizer, "factor_stats"):
        return optimizer.stats(), optimizer.factor_stats()
    raise InvalidArgumentError(
        f"a {type(optimizer).__name__}: expected a foam.Optimizer, a foam.torch.FOAM, or foam.jax.foam_stats(state)"
    )
