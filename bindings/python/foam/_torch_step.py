"""One step of all groups of ``foam.torch.FOAM``, or of none.

Each group is stepped by a native optimizer of its own, which refuses whole. What can be refused is looked for in all
groups before the first is stepped; the one thing that only the library knows for certain, whether a gradient's square
overflows the statistics, is in doubt for huge gradients alone. Groups in doubt go first and can be undone.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

import torch

from ._handle import Handle
from ._log import hearing
from ._torch_ranks import local
from ._torch_state import get_state, put_state
from .errors import InvalidArgumentError
from .tensors import View, written

__all__ = ["Work", "step_together"]

#: Gradients whose norm is below this are taken: their squares are far below float32's largest number.
_CERTAIN = math.sqrt(torch.finfo(torch.float32).max / 64)


class Work(NamedTuple):
    """One group's part of a step."""

    handle: Handle
    params: List[torch.Tensor]
    targets: List[View]
    grads: List[Optional[View]]
    lr: float


def step_together(works: Sequence[Work], grad_scale: float) -> None:
    """Steps all groups, or none of them if a gradient is refused or skipped."""
    if any(work.handle.comm is not None for work in works):
        return _step_ranks(works, grad_scale)
    works = [work for work in works if any(grad is not None for grad in work.grads)]
    doubtful: List[Work] = []
    if len(works) > 1:
        _refuse_overlaps(works)
        certain = [_is_certain(work, grad_scale) for work in works]
        doubtful = [work for work, sure in zip(works, certain) if not sure]
        works = doubtful + [work for work, sure in zip(works, certain) if sure]
    undo: List[Callable[[], None]] = []
    # An interrupt during a log line waits until all groups are done.
    with hearing():
        for place, work in enumerate(works):
            if place < len(doubtful) - 1:
                undo.append(_undo(work))
            try:
                skipped = work.handle.step(work.targets, work.grads, work.lr, grad_scale)
            except Exception:
                _run(undo[:place])
                raise
            if skipped:
                _run(undo[:place])
                return
        for work in works:
            for param, grad in zip(work.params, work.grads):
                if grad is not None:
                    written(param)


def _step_ranks(works: Sequence[Work], grad_scale: float) -> None:
    """The same for groups that ranks share. Which calls are made must not depend on what one rank sees: every group is
    stepped on every rank. The groups of one communicator share its collectives; if there are several communicators,
    all but the first are validated before.
    """
    _refuse_overlaps(works)
    sharing: Dict[int, List[Work]] = {}
    for work in works:
        sharing.setdefault(id(work.handle.comm), []).append(work)
    clusters = list(sharing.values())
    with hearing():
        for cluster in clusters[1:]:
            if _step_cluster(cluster, grad_scale, validate=True):
                return
        for cluster in clusters:
            if _step_cluster(cluster, grad_scale):
                return
        for work in works:
            # Other ranks may have had a gradient where this one holds nothing.
            for param in work.params:
                written(local(param))


def _step_cluster(cluster: Sequence[Work], grad_scale: float, *, validate: bool = False) -> bool:
    """One step of groups with one communicator, or without one."""
    if cluster[0].handle.comm is not None:
        steps = [(work.handle, work.targets, work.grads, work.lr) for work in cluster]
        return Handle.step_together(steps, grad_scale, validate=validate)
    return any(
        work.handle.step(work.targets, work.grads, work.lr, grad_scale, validate=validate) for work in cluster
    )


def _run(undo: Sequence[Callable[[], None]]) -> None:
    for each in undo:
        each()


def _undo(work: Work) -> Callable[[], None]:
    """What takes a group back to where it is now."""
    state = get_state(work.handle)
    held = [(param, param.detach().clone()) for param, grad in zip(work.params, work.grads) if grad is not None]

    def restore() -> None:
        for param, values in held:
            param.detach().copy_(values)
        put_state(work.handle, state)

    return restore


def _is_certain(work: Work, grad_scale: float) -> bool:
    """Whether no gradient of the group can be refused for its values."""
    options = work.handle.options
    coupled = options["decoupled_weight_decay"] == "false"
    decay = float(options["weight_decay"]) if coupled else 0.0
    bounds = []
    for param, grad in zip(work.params, work.grads):
        if grad is None:
            continue
        bound = abs(grad_scale) * _norm(param.grad)
        bounds.append(bound + decay * _norm(param) if decay else bound)
    # One answer for the whole group: on a GPU each would wait for the device. NaN compares as False.
    return bool((torch.stack(bounds) < _CERTAIN).all())


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return torch.linalg.vector_norm(tensor.detach(), dtype=wide).double()


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
