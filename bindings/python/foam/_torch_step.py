"""One step of all groups of ``foam.torch.FOAM``, or of none.

Each group is stepped by a native optimizer of its own. Those on one device, or of one communicator, are stepped together
by the library: what one refuses all refuse, and on a GPU the device decides, so that a step waits no more often than that
of one group. Only where groups lie on several devices are they validated first, and then stepped.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import torch

from . import _structs
from ._handle import Handle
from ._log import hearing
from ._torch_ranks import local
from .errors import InvalidArgumentError
from .tensors import View, written

__all__ = ["Work", "step_together"]


class Work(NamedTuple):
    """One group's part of a step."""

    handle: Handle
    params: List[torch.Tensor]
    targets: Sequence[View]
    grads: List[Optional[View]]
    #: What the gradients lie in.
    kept: Sequence[Any]
    lr: float


def step_together(works: Sequence[Work], grad_scale: float) -> None:
    """Steps all groups, or none of them if a gradient is refused or skipped."""
    shared = any(work.handle.comm is not None for work in works)
    # Which calls are made must not depend on what one rank sees: there every group is stepped on every rank.
    works = works if shared else [work for work in works if any(grad is not None for grad in work.grads)]
    if len(works) > 1:
        _refuse_overlaps(works)
    clusters = _clusters(works)
    # An interrupt during a log line waits until all groups are done.
    with hearing():
        for cluster in clusters if len(clusters) > 1 else ():
            if (cluster is not clusters[0] or _tells_late(cluster)) and _step(cluster, grad_scale, validate=True):
                return
        for cluster in clusters:
            if _step(cluster, grad_scale):
                return
        for work in works:
            # Other ranks may have had a gradient where this one holds nothing.
            changed = [p for p, grad in zip(work.params, work.grads) if shared or grad is not None]
            written(map(local, changed) if shared else changed)


def _clusters(works: Sequence[Work]) -> List[List[Work]]:
    """The groups that the library steps together: those of one communicator, or alone on one device."""
    found: Dict[Any, List[Work]] = {}
    for work in works:
        comm = work.handle.comm
        place = work.handle.options["device"] if comm is None else id(comm)
        found.setdefault(place, []).append(work)
    return list(found.values())


def _tells_late(cluster: Sequence[Work]) -> bool:
    """Whether a step of these groups does not say by itself that it was not taken."""
    work = cluster[0]
    return work.handle.comm is None and any(view.device[0] != _structs.DEVICE_CPU for view in work.targets)


def _step(cluster: Sequence[Work], grad_scale: float, *, validate: bool = False) -> bool:
    """One step of a cluster; True if it was skipped."""
    first = cluster[0]
    if len(cluster) == 1 and first.handle.comm is None:
        return first.handle.step(first.targets, first.grads, first.lr, grad_scale, validate=validate)
    steps = [(work.handle, work.targets, work.grads, work.lr) for work in cluster]
    return Handle.step_together(steps, grad_scale, validate=validate)


class _Extent(NamedTuple):
    """The bytes of a tensor."""

    start: int
    end: int
    is_written: bool
    label: str


def _refuse_overlaps(works: Sequence[Work]) -> None:
    """Refuses a parameter that shares memory with anything else of any group."""
    extents: List[_Extent] = []
    for work in works:
        for name, target, grad in zip(work.handle.names, work.targets, work.grads):
            extents.append(_extent(target, True, f"parameter '{name}'"))
            if grad is not None:
                extents.append(_extent(grad, False, f"the gradient of parameter '{name}'"))
    extents.sort()
    # The extents that reach furthest so far, of written memory and of any.
    written_so_far: Optional[_Extent] = None
    any_so_far: Optional[_Extent] = None
    for extent in extents:
        against = any_so_far if extent.is_written else written_so_far
        if against is not None and extent.start < against.end:
            raise InvalidArgumentError(
                f"{against.label} and {extent.label} overlap in memory; expected parameters that overlap nothing else"
            )
        any_so_far = _further(any_so_far, extent)
        if extent.is_written:
            written_so_far = _further(written_so_far, extent)


def _further(kept: Optional[_Extent], new: _Extent) -> _Extent:
    return new if kept is None or new.end > kept.end else kept


def _extent(view: View, is_written: bool, label: str) -> _Extent:
    return _Extent(view.data, view.data + view.nbytes, is_written, label)
