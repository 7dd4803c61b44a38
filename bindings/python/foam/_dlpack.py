"""DLPack from the consumer's side: borrows the tensor inside a capsule without consuming it.

The capsule stays alive and unrenamed, so its own destructor gives the memory back when the view is dropped.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Optional, Tuple

from . import _structs

__all__ = ["borrow"]

#: The newest DLPack that this file reads; later minor versions only add flags.
MAJOR = 1

_READ_ONLY = 1
_COPIED = 2

#: DLPack's number of CUDA's legacy default stream.
_LEGACY_STREAM = 1


class _Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class _Versioned(ctypes.Structure):
    """``DLManagedTensorVersioned``."""

    _fields_ = [
        ("version", _Version),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", _structs.Tensor),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype = ctypes.c_int
_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]


def borrow(array: Any, wanted: Optional[int] = None) -> Tuple[_structs.Tensor, bool, bool, Optional[int], Any]:
    """The ``DLTensor`` of an array with ``__dlpack__`` (or of a capsule), whether it is read-only, whether its
    producer copied it for the export, the CUDA stream on which it is ready, and what keeps it alive. The producer makes
    it ready on the stream that is ``wanted``, if one is, else on the one that its framework works on.
    """
    stream = None
    capsule = array
    if hasattr(array, "__dlpack__"):
        # JAX computes asynchronously; its gradients may still be on their way.
        wait = getattr(array, "block_until_ready", None)
        if wait is not None:
            wait()
        device_type = int(array.__dlpack_device__()[0])
        if device_type in (_structs.DEVICE_CUDA, _structs.DEVICE_CUDA_MANAGED):
            stream = _current_stream(array) if wanted is None else wanted
        capsule = _export(array, stream)
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_get_pointer(capsule, b"dltensor_versioned"))
        if managed.version.major != MAJOR:
            raise BufferError(f"DLPack version {managed.version.major}: expected {MAJOR}")
        flags = managed.flags
        return managed.dl_tensor, bool(flags & _READ_ONLY), bool(flags & _COPIED), stream, (array, capsule)
    if _is_valid(capsule, b"dltensor"):
        # `DLManagedTensor` starts with its `DLTensor`.
        tensor = _structs.Tensor.from_address(_get_pointer(capsule, b"dltensor"))
        return tensor, False, False, stream, (array, capsule)
    raise BufferError("the capsule is not a DLPack tensor, or another consumer has taken it")


def _export(array: Any, stream: Optional[int]) -> Any:
    # 0 is forbidden by the protocol, it could mean two streams; 1 is the legacy default one.
    on = {} if stream is None else {"stream": stream or _LEGACY_STREAM}
    try:
        return array.__dlpack__(max_version=(MAJOR, 0), **on)
    except TypeError:
        # A producer older than DLPack 1.0 does not know the argument.
        return array.__dlpack__(**on)


def _current_stream(array: Any) -> int:
    """The stream that the array's own framework works on."""
    if type(array).__module__.partition(".")[0] == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return _LEGACY_STREAM
