"""The native state of a group as a tensor, for ``foam.torch.FOAM``."""

from __future__ import annotations

from typing import Any

import torch

from ._handle import Handle
from .errors import InvalidArgumentError

__all__ = ["STATE", "get_state", "padded_state", "put_state"]

#: The end of a padded state: this mark, then the number of bytes before the padding.
_MARK = b"foam_end"
_END = len(_MARK) + 8
#: What a state may grow by as its counters do.
_ROOM = 256

#: The key of the native state in a group of the state dict.
STATE = "foam_state"


def get_state(handle: Handle) -> torch.Tensor:
    """The state as a tensor of uint8."""
    return padded_state(handle, 0)


def padded_state(handle: Handle, empty_size: int) -> torch.Tensor:
    """The state as a tensor of uint8 whose size does not depend on the steps, as torch's distributed checkpoints want
    it, which are read in place.

    Args:
        handle: the native optimizer.
        empty_size: bytes of its state before the first step; 0 for no padding.
    """
    size = handle.state_size()
    if not empty_size:
        state = torch.empty(size, dtype=torch.uint8)
        handle.save_to(state.data_ptr(), size)
        return state
    state = torch.zeros(max(size, empty_size + _ROOM) + _END, dtype=torch.uint8)
    handle.save_to(state.data_ptr(), size)
    state[-_END:] = torch.tensor(list(_MARK + size.to_bytes(8, "little")), dtype=torch.uint8)
    return state


def put_state(handle: Handle, state: Any) -> None:
    """Reads what :func:`get_state` or :func:`padded_state` gave."""
    if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
        raise InvalidArgumentError(f"'{STATE}' is {type(state).__name__}: expected a tensor of uint8")
    # torch.load's map_location may have moved it.
    state = state.cpu().contiguous()
    size = state.numel()
    end = bytes(state[-_END:].tolist())
    if end.startswith(_MARK):
        size = min(size, int.from_bytes(end[len(_MARK) :], "little"))
    handle.load_from(state.data_ptr(), size)
