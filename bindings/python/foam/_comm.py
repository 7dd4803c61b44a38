"""How ranks of ``torch.distributed`` reach each other for the library: ``foam_comm`` over a process group."""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional

import torch
import torch.distributed as dist

from . import _structs
from .errors import UnsupportedError

__all__ = ["Communicator"]


def _bytes(address: int, size: int) -> torch.Tensor:
    """Memory of the library as a tensor of uint8."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


class Communicator:
    """The two collectives that the library wants, on the CPU backend of a process group.

    A collective that raises (a rank died, a time-out) is reported to the library, which says what became of the
    parameters; the exception is the cause of the error that follows.
    """

    def __init__(self, group: Any) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise UnsupportedError("process_group: expected torch.distributed.init_process_group before")
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        #: What the last collective raised.
        self.failure: Optional[BaseException] = None
        # The native optimizer calls these as long as it lives.
        self._exchange = _structs.ALL_TO_ALL_FUNCTION(self._all_to_allv)
        self._gather = _structs.ALL_GATHER_FUNCTION(self._all_gatherv)
        self.struct = _structs.Comm(
            ctypes.sizeof(_structs.Comm), self.rank, self.size, 0, None, self._exchange, self._gather
        )

    def _all_to_allv(self, _user: Any, send: int, sent: Any, recv: int, received: Any, _stream: Any) -> int:
        try:
            out, into = sent[: self.size], received[: self.size]
            dist.all_to_all_single(
                _bytes(recv, sum(into)), _bytes(send, sum(out)), into, out, group=self.group
            )
        except BaseException as cause:  # noqa: BLE001: nothing may cross the library
            self.failure = cause
            return 1
        return 0

    def _all_gatherv(self, _user: Any, send: int, count: int, recv: int, received: Any, _stream: Any) -> int:
        try:
            sizes: List[int] = received[: self.size]
            own, whole = _bytes(send, count), _bytes(recv, sum(sizes))
            if len(set(sizes)) == 1:
                dist.all_gather_into_tensor(whole, own, group=self.group)
                return 0
            # Backends gather equal parts only: all are as long as the longest.
            longest = max(sizes)
            padded = torch.zeros(longest, dtype=torch.uint8)
            padded[:count] = own
            parts = torch.empty(self.size * longest, dtype=torch.uint8)
            dist.all_gather_into_tensor(parts, padded, group=self.group)
            for rank, (piece, size) in enumerate(zip(whole.split(sizes), sizes)):
                piece.copy_(parts[rank * longest : rank * longest + size])
        except BaseException as cause:  # noqa: BLE001
            self.failure = cause
            return 1
        return 0
