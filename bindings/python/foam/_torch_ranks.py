"""Parameters that several ranks hold: what ``foam.torch.FOAM`` reads from a DTensor, and the state of each parameter
as a DTensor of its own.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ._handle import Handle
from .errors import InvalidArgumentError, UnsupportedError
from .tensors import _is_dtensor as is_dtensor

__all__ = ["Part", "common_mesh", "is_dtensor", "local", "mesh_group", "part_of", "read_states", "write_states"]

#: The key of a parameter's native state in ``state``.
PARAM_STATE = "foam"
#: The key of the number of skipped steps there.
SKIPPED = "skipped_steps"


class Part(NamedTuple):
    """What this rank holds of a parameter."""

    #: Sizes of the whole parameter.
    shape: Tuple[int, ...]
    #: Axis, first place and number of places; None for all of it.
    shard: Optional[Tuple[int, int, int]]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that this rank has in its memory."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def part_of(tensor: torch.Tensor, name: str) -> Part:
    """What this rank holds of a parameter, as its placements say."""
    if not is_dtensor(tensor):
        return Part(tuple(tensor.shape), None)
    cut = [placement for placement in tensor.placements if not placement.is_replicate()]
    if any(not placement.is_shard() for placement in cut) or len(cut) > 1:
        raise UnsupportedError(
            f"parameter '{name}' has the placements {tuple(tensor.placements)}: expected Replicate and at most one "
            "Shard (FSDP2, HSDP)"
        )
    if not cut:
        return Part(tuple(tensor.shape), None)
    sizes, offsets = _extent(tensor.shape, tensor.device_mesh, tensor.placements)
    axis = cut[0].dim
    return Part(tuple(tensor.shape), (axis, offsets[axis] if sizes[axis] else 0, sizes[axis]))


def _extent(shape: Sequence[int], mesh: Any, placements: Any) -> Tuple[Sequence[int], Sequence[int]]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(torch.Size(shape), mesh, placements)


def common_mesh(params: Sequence[torch.Tensor], names: Sequence[str]) -> Optional[Any]:
    """The mesh of a group's DTensors; None if there are none."""
    found = None
    for param, name in zip(params, names):
        if is_dtensor(param):
            part_of(param, name)
            if found is not None and param.device_mesh != found[0]:
                raise UnsupportedError(
                    f"parameter '{name}' is on the mesh {param.device_mesh}: expected {found[0]}, that of "
                    f"'{found[1]}' (one group per mesh)"
                )
            found = found or (param.device_mesh, name)
    return found and found[0]


def mesh_group(mesh: Any) -> Any:
    """The process group of all ranks of a mesh. Every rank of the mesh calls it."""
    if mesh.ndim == 1:
        return mesh.get_group()
    # HSDP: replicas share the work too.
    if mesh.size() == torch.distributed.get_world_size():
        return torch.distributed.group.WORLD
    return mesh._flatten().get_group()


# ---- the state of each parameter


def _bounds(param: torch.Tensor, size: int) -> Tuple[int, int]:
    """Which of a state's bytes this rank keeps: a share if the parameter is sharded, else all."""
    if not is_dtensor(param):
        return 0, size
    sizes, offsets = _extent((size,), param.device_mesh, _placements(param))
    return (offsets[0] if sizes[0] else 0), sizes[0]


def _placements(param: torch.Tensor) -> List[Any]:
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate() if placement.is_replicate() else Shard(0) for placement in param.placements]


def read_states(handle: Handle, params: Sequence[torch.Tensor]) -> List[Dict[str, Any]]:
    """The state of every parameter. For a DTensor it is one: uint8, cut as the parameter is, so that torch's
    distributed checkpoints can cut it anew. All ranks call it together.
    """
    counts = handle.stats()
    sizes = [handle.param_state_bytes(index) for index in range(len(params))]
    pieces, parts = [], []
    for param, size in zip(params, sizes):
        offset, count = _bounds(param, size)
        piece = torch.zeros(count, dtype=torch.uint8)
        pieces.append(piece)
        parts.append((offset, count, piece.data_ptr()))
    handle.read_states(parts)
    entries = []
    for param, size, piece in zip(params, sizes, pieces):
        state: Any = piece
        if is_dtensor(param):
            module = sys.modules["torch.distributed.tensor"]
            state = module.DTensor.from_local(
                piece, param.device_mesh, _placements(param), run_check=False, shape=torch.Size([size]), stride=(1,)
            )
        entries.append(
            {
                "step": torch.tensor(float(counts["steps"])),
                SKIPPED: torch.tensor(float(counts["skipped_steps"])),
                PARAM_STATE: state,
            }
        )
    return entries


def write_states(handle: Handle, params: Sequence[torch.Tensor], entries: Sequence[Dict[str, Any]]) -> None:
    """Takes over what :func:`read_states` gave: a DTensor cut in any way, or the whole as a plain tensor."""
    parts, keep = [], []
    for index, (param, entry, name) in enumerate(zip(params, entries, handle.names)):
        state = entry[PARAM_STATE]
        size = handle.param_state_bytes(index)
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8 or tuple(state.shape) != (size,):
            found = f"{state.dtype} {list(state.shape)}" if isinstance(state, torch.Tensor) else type(state).__name__
            raise InvalidArgumentError(
                f"the state of parameter '{name}' is {found}: expected uint8 [{size}], made by FOAM with these options"
            )
        offset = 0
        if is_dtensor(state):
            if not all(p.is_replicate() or p.is_shard() for p in state.placements):
                raise UnsupportedError(f"the state of parameter '{name}' has the placements {state.placements}")
            sizes, offsets = _extent((size,), state.device_mesh, state.placements)
            offset = offsets[0] if sizes[0] else 0
            state = state.to_local()
        state = state.cpu().contiguous()
        keep.append(state)
        parts.append((offset, state.numel(), state.data_ptr()))
    steps = int(float(entries[0].get("step", 0.0))) if entries else 0
    skipped = int(float(entries[0].get(SKIPPED, 0.0))) if entries else 0
    handle.write_states(parts, steps, skipped)
    del keep
