"""The native state of a group as a tensor, for ``foam.torch.FOAM``."""

from __future__ import annotations

from typing import Any

import torch

from ._handle import Handle
from .errors import InvalidArgumentError

__all__ = ["STATE", "get_state", "put_state"]

#: The key of the native state in a group of the state dict.
STATE = "foam_state"


def get_state(handle: Handle) -> torch.Tensor:
    """The state as a tensor of uint8."""
    state = torch.empty(handle.state_size(), dtype=torch.uint8)
    handle.save_to(state.data_ptr(), state.numel())
    return state


def put_state(handle: Handle, state: Any) -> None:
    """Reads what :func:`get_state` gave."""
    if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
        raise InvalidArgumentError(f"'{STATE}' is {type(state).__name__}: expected a tensor of uint8")
    # torch.load's map_location may have moved it.
    state = state.cpu().contiguous()
    handle.load_from(state.data_ptr(), state.numel())
