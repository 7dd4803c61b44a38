"""A small reader of safetensors files, for NumPy."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Tuple

from .errors import BadCheckpointError

__all__ = ["read"]

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


def read(path: Any) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """The tensors of a file as NumPy arrays, and its metadata.

    Raises:
        OSError: the file cannot be read.
        BadCheckpointError: it is no safetensors file; the message says why.
    """
    import numpy

    with open(path, "rb") as file:
        data = file.read()

    def refuse(why: str) -> BadCheckpointError:
        return BadCheckpointError(f"{os.fspath(path)}: not safetensors: {why}")

    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise refuse(f"the header's length {length} is more than the file has")
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError as cause:
        raise refuse(f"the header is not JSON ({cause})") from None
    if not isinstance(header, dict):
        raise refuse("the header is not an object")
    metadata = header.pop("__metadata__", {})
    body = memoryview(data)[8 + length :]
    tensors = {}
    for name, about in header.items():
        try:
            dtype, shape = numpy.dtype(_DTYPES[about["dtype"]]), tuple(about["shape"])
            start, end = about["data_offsets"]
            if not 0 <= start <= end <= len(body):
                raise ValueError(f"offsets {start}..{end} lie outside the file")
            tensors[name] = numpy.frombuffer(body[start:end], dtype).reshape(shape)
        except (KeyError, TypeError, ValueError) as cause:
            raise refuse(f"tensor '{name}': {cause}") from None
    return tensors, metadata
