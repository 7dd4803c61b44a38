"""What the library says about a stack: its buffers, their first values, its workspace."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from .. import _library, _structs
from .._handle import _config as native_config

__all__ = ["Buffer", "Field", "Shape", "configuration", "described", "ports", "record_fields", "workspace"]

#: The library's element types of state buffers, by DLPack code and bits.
_DTYPES = {
    (_structs.DTYPE_UINT, 32): "uint32",
    (_structs.DTYPE_FLOAT, 32): "float32",
    (_structs.DTYPE_FLOAT, 64): "float64",
}


class Buffer(NamedTuple):
    """One buffer of a stack."""

    name: str
    dtype: str
    #: Its shape for one block.
    shape: Tuple[int, ...]


class Field(NamedTuple):
    """One number of a factor's record."""

    #: Its first word of 32 bits, and their number.
    word: int
    words: int
    #: How NumPy reads them.
    dtype: str


class Shape(NamedTuple):
    """What the library has to know about a block; hashable."""

    dims: Tuple[int, ...]
    #: The precision of its work, "float32" or "float64".
    work: str
    preconditioned: bool

    def stack(self, rows: int) -> Tuple[Any, Any]:
        """The library's struct, and what has to live as long as it."""
        stack = _structs.Stack()
        _library.load().call("foam_stack_init", ctypes.byref(stack), ctypes.sizeof(stack))
        sides = (ctypes.c_int64 * len(self.dims))(*self.dims)
        stack.shape, stack.ndim, stack.count = sides, len(self.dims), rows
        stack.dtype = _structs.Dtype(_structs.DTYPE_FLOAT, 64 if self.work == "float64" else 32, 1)
        stack.flags = 0 if self.preconditioned else _structs.STACK_GRAFTING_ONLY
        return stack, sides


@functools.lru_cache(maxsize=None)
def described(
    preset: str, given: Tuple[Tuple[str, str], ...], shape: Shape
) -> Tuple[Tuple[Buffer, ...], Dict[str, np.ndarray]]:
    """The buffers of a stack in the order of the library's calls, and the first values of one block's."""
    library = _library.load()
    config = native_config(preset, dict(given))
    stack, _keep = shape.stack(1)
    call = (ctypes.byref(config), ctypes.byref(stack))
    items = library.listed("foam_stack_layout", _structs.StackBuffer, *call)
    found: List[Buffer] = []
    values: Dict[str, np.ndarray] = {}
    tensors = (_structs.Tensor * len(items))()
    for item, tensor in zip(items, tensors):
        whole = tuple(item.shape[: item.ndim])
        buffer = Buffer(item.name.decode(), _DTYPES[item.dtype.code, item.dtype.bits], whole[1:])
        found.append(buffer)
        values[buffer.name] = np.zeros(whole, buffer.dtype)
        tensor.data, tensor.ndim, tensor.dtype = values[buffer.name].ctypes.data, item.ndim, item.dtype
        tensor.device = _structs.Device(_structs.DEVICE_CPU, 0)
        tensor.shape = ctypes.cast(item.shape, ctypes.POINTER(ctypes.c_int64))
    library.call("foam_stack_reset", *call, tensors, len(items))
    return tuple(found), {name: value[0] for name, value in values.items()}


def configuration(options: str, **more: str) -> Any:
    """The library's struct for the options as the handlers read them."""
    pairs = dict(pair.split("=", 1) for pair in options.split(";"))
    return native_config(pairs.pop("preset"), {**pairs, **more})


@functools.lru_cache(maxsize=None)
def ports(options: str, shape: Shape, verb: int, with_params: bool) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """The names of what a verb reads and of what it writes, in the order of its handler; without the workspace."""
    library = _library.load()
    config = configuration(options)
    stack, _keep = shape.stack(1)
    call = (ctypes.byref(config), ctypes.byref(stack), verb, int(with_params))
    items = library.listed("foam_stack_ports", _structs.StackPort, *call)
    read = tuple(item.name.decode() for item in items if item.flags == _structs.PORT_READ)
    written = tuple(item.name.decode() for item in items if item.flags == _structs.PORT_WRITTEN)
    return read, tuple(name for name in written if name != "workspace")


@functools.lru_cache(maxsize=None)
def record_fields() -> Dict[str, Field]:
    """What a factor's record holds, by name, in the order of its words: reals first, then whole numbers."""
    items = _library.load().listed("foam_record_fields", _structs.RecordField)
    dtypes = {_structs.RECORD_REAL: "<f8", _structs.RECORD_WHOLE: "<i8"}
    return {item.name.decode(): Field(item.word, item.words, dtypes[item.kind]) for item in items}


@functools.lru_cache(maxsize=None)
def workspace(options: str, shape: Shape, rows: int, device: str) -> int:
    """Bytes that a call on a stack of ``rows`` blocks wants to work in."""
    library, size = _library.load(), ctypes.c_size_t(0)
    config = configuration(options, device=device)
    stack, _keep = shape.stack(rows)
    library.call("foam_stack_workspace", ctypes.byref(config), ctypes.byref(stack), ctypes.byref(size))
    return max(size.value, 1)
