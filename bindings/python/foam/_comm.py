"""How ranks of ``torch.distributed`` reach each other for the library: ``foam_comm`` over a process group."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Any, List, Optional

import torch
import torch.distributed as dist

from . import _structs
from .errors import UnsupportedError

__all__ = ["Communicator"]


class _DeviceMemory:
    """Memory of a CUDA device, as torch reads it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class Communicator:
    """The two collectives that the library wants, on the backend of a process group for the parameters' device. On a
    CUDA device they are put on the library's stream; this has not run on a GPU.

    A collective that raises (a rank died, a time-out) is reported to the library, which says what became of the
    parameters; the exception is the cause of the error that follows.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise UnsupportedError("process_group: expected torch.distributed.init_process_group before")
        self.group, self.device = group, device
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        #: What the last collective raised.
        self.failure: Optional[BaseException] = None
        # The native optimizer calls these as long as it lives.
        self._exchange = _structs.ALL_TO_ALL_FUNCTION(self._all_to_allv)
        self._gather = _structs.ALL_GATHER_FUNCTION(self._all_gatherv)
        self.struct = _structs.Comm(
            ctypes.sizeof(_structs.Comm),
            self.rank,
            self.size,
            _structs.COMM_IN_PLACE,
            None,
            self._exchange,
            self._gather,
        )

    def _bytes(self, address: int, size: int) -> torch.Tensor:
        """Memory of the library as a tensor of uint8."""
        if self.device.type == "cuda":
            return torch.as_tensor(_DeviceMemory(address, size), device=self.device)
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)

    def _ordered(self, stream: Optional[int]) -> Any:
        """What follows is put on the library's stream."""
        if self.device.type == "cuda":
            return torch.cuda.stream(torch.cuda.ExternalStream(stream or 0, device=self.device))
        return contextlib.nullcontext()

    def _all_to_allv(self, _user: Any, send: int, sent: Any, recv: int, received: Any, stream: Any) -> int:
        try:
            out, into = sent[: self.size], received[: self.size]
            with self._ordered(stream):
                dist.all_to_all_single(
                    self._bytes(recv, sum(into)), self._bytes(send, sum(out)), into, out, group=self.group
                )
        except BaseException as cause:  # noqa: BLE001: nothing may cross the library
            self.failure = cause
            return 1
        return 0

    def _all_gatherv(self, _user: Any, send: int, count: int, recv: int, received: Any, stream: Any) -> int:
        try:
            with self._ordered(stream):
                self._gather_bytes(send, count, recv, received[: self.size])
        except BaseException as cause:  # noqa: BLE001
            self.failure = cause
            return 1
        return 0

    def _gather_bytes(self, send: int, count: int, recv: int, sizes: List[int]) -> None:
        whole = self._bytes(recv, sum(sizes))
        parts = whole.split(sizes)
        placed = send == recv + sum(sizes[: self.rank])
        own = parts[self.rank] if placed else self._bytes(send, count)
        # gloo would copy bytes onto themselves, and hands all of them round in twice the time.
        if len(set(sizes)) == 1 and not (placed and self.device.type == "cpu"):
            dist.all_gather_into_tensor(whole, own, group=self.group)
            return
        # Backends gather equal parts only, and padding to the longest would copy everything twice more: each part goes
        # from where it lies to where it belongs.
        if not placed:
            parts[self.rank].copy_(own)
        swaps = []
        for distance in range(1, self.size):
            to, source = (self.rank + distance) % self.size, (self.rank - distance) % self.size
            swaps.append(dist.P2POp(dist.isend, own, self._world_rank(to), self.group))
            swaps.append(dist.P2POp(dist.irecv, parts[source], self._world_rank(source), self.group))
        # One rank has nobody to swap with.
        for work in dist.batch_isend_irecv(swaps) if swaps else ():
            work.wait()

    def _world_rank(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)
