"""A small reader of safetensors files, for NumPy."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO, Dict, Tuple

from .errors import BadCheckpointError

__all__ = ["read", "read_shapes"]

_DTYPES = {
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "I8": "<i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "BOOL": "?",
}


#: Element types that a parameter can have, by their names in a file.
_FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}


def read(path: Any) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """The tensors of a file as NumPy arrays, and its metadata.

    Raises:
        OSError: the file cannot be read.
        BadCheckpointError: it is no safetensors file; the message says why.
    """
    import numpy

    with open(path, "rb") as file:
        header = _header(file, path)
        body = memoryview(file.read())
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, about in header.items():
        try:
            dtype, shape = numpy.dtype(_DTYPES[about["dtype"]]), tuple(about["shape"])
            start, end = about["data_offsets"]
            if not 0 <= start <= end <= len(body):
                raise ValueError(f"offsets {start}..{end} lie outside the file")
            tensors[name] = numpy.frombuffer(body[start:end], dtype).reshape(shape)
        except (KeyError, TypeError, ValueError) as cause:
            raise _refusal(path, f"tensor '{name}': {cause}") from None
    return tensors, metadata


def read_shapes(path: Any) -> Dict[str, Tuple[Tuple[int, ...], str]]:
    """Shape and type of every tensor of floating type, from the header alone. Raises as :func:`read` does."""
    with open(path, "rb") as file:
        header = _header(file, path)
    header.pop("__metadata__", None)
    try:
        found = {name: (tuple(about["shape"]), about["dtype"]) for name, about in header.items()}
    except (KeyError, TypeError) as cause:
        raise _refusal(path, f"a tensor has no {cause}") from None
    return {name: (shape, _FLOATS[dtype]) for name, (shape, dtype) in found.items() if dtype in _FLOATS}


def _header(file: BinaryIO, path: Any) -> Dict[str, Any]:
    """The header of an open file, whose position is then where the tensors start."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise _refusal(path, f"the header's length {length} is more than the file has")
    try:
        header = json.loads(file.read(length))
    except ValueError as cause:
        raise _refusal(path, f"the header is not JSON ({cause})") from None
    if not isinstance(header, dict):
        raise _refusal(path, "the header is not an object")
    return header


def _refusal(path: Any, why: str) -> BadCheckpointError:
    return BadCheckpointError(f"{os.fspath(path)}: not safetensors: {why}")
