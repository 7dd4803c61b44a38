"""Views of other people's arrays: nothing is copied, nothing is imported.

An array is taken, in this order, as a PyTorch tensor, by ``__array_interface__`` (NumPy), by ``__dlpack__`` (JAX,
CuPy and others; capsules of DLPack 0.x and 1.x), by ``__cuda_array_interface__``, or by the buffer protocol. Element
types are float32, float64, float16 and bfloat16 (PyTorch's, JAX's, ml_dtypes'). Whatever cannot be used as it lies is
refused with the parameter's name and what was expected; a silent copy would cut the tie to the caller's array.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from typing import Any, Iterable, List, NamedTuple, NoReturn, Optional, Tuple, Type

from . import _structs
from ._dlpack import borrow
from .errors import FoamError, InvalidArgumentError, UnsupportedError

__all__ = ["Owner", "View", "view", "written"]

#: The element types that are served, as DLPack's code and bits.
DTYPES = {
    "float32": (_structs.DTYPE_FLOAT, 32),
    "float64": (_structs.DTYPE_FLOAT, 64),
    "float16": (_structs.DTYPE_FLOAT, 16),
    "bfloat16": (_structs.DTYPE_BFLOAT, 16),
}
_EXPECTED_DTYPE = "expected float32, float64, float16 or bfloat16"

_KINDS = {"i": "int", "u": "uint", "f": "float", "c": "complex"}
_FORMATS = {"e": "float16", "f": "float32", "d": "float64"}
#: DLPack's type codes.
_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}

_HOST = (_structs.DEVICE_CPU, _structs.DEVICE_CUDA_HOST)
_CUDA = (_structs.DEVICE_CUDA, _structs.DEVICE_CUDA_MANAGED)

_ADVICE_NUMPY = "numpy.ascontiguousarray(array) makes a contiguous copy"
_ADVICE_TORCH = "tensor.contiguous() makes a contiguous copy (of a parameter: p.data = p.data.contiguous())"


class Owner(NamedTuple):
    """Whose array it is: what an error has to name."""

    name: str
    place: int
    is_gradient: bool = False

    def refuse(self, kind: Type[FoamError], problem: str) -> NoReturn:
        """Raises ``kind``, naming the parameter."""
        role = "gradient of parameter" if self.is_gradient else "parameter"
        raise kind(f"{role} '{self.name}': {problem}", param_index=self.place)


class View:
    """Where an array lies, and what keeps it there."""

    __slots__ = ("data", "device", "dtype", "form", "shape", "stream", "keep")

    def __init__(
        self,
        data: int,
        dtype: str,
        shape: Tuple[int, ...],
        keep: Any,
        device: Tuple[int, int] = (_structs.DEVICE_CPU, 0),
        stream: Optional[int] = None,
    ) -> None:
        #: Address of the first element.
        self.data = data
        #: DLPack's device type and number.
        self.device = device
        #: A key of ``DTYPES``.
        self.dtype = dtype
        self.shape = shape
        #: The framework's current CUDA stream; None on the CPU.
        self.stream = stream
        #: Objects that must live as long as the view.
        self.keep = keep
        #: All but the address.
        self.form = (shape, dtype, device)

    def like(self, data: int, keep: Any) -> View:
        """A view of the same form elsewhere."""
        made = View.__new__(View)
        made.data, made.keep, made.form = data, keep, self.form
        made.device, made.dtype, made.shape, made.stream = self.device, self.dtype, self.shape, self.stream
        return made

    def fill(self, tensor: _structs.Tensor) -> Any:
        """Writes the view into a ``foam_tensor``; the view, and what is returned, must outlive it."""
        sizes = (ctypes.c_int64 * max(len(self.shape), 1))(*self.shape)
        tensor.data = self.data
        tensor.device.device_type, tensor.device.device_id = self.device
        tensor.ndim = len(self.shape)
        code, bits = DTYPES[self.dtype]
        tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes = code, bits, 1
        tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        return sizes

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * DTYPES[self.dtype][1] // 8

    @property
    def device_text(self) -> str:
        """The device as the option ``device`` has it."""
        kind, number = self.device
        return "cpu" if kind in _HOST else f"cuda:{number}"


def view(array: Any, owner: Owner, stream: Optional[int] = None) -> View:
    """A view of ``array``; as a parameter it has to be writable. It will be used on the CUDA stream ``stream``.

    Raises:
        UnsupportedError: the element type, the device or the memory layout is not served, or it is no array.
        InvalidArgumentError: a parameter's memory is read-only.
    """
    seen = _seen(array, owner, stream)
    # The library takes address 0 for "takes no part", whatever the shape. It has its own words for empty parameters.
    if not seen.data and (owner.is_gradient or 0 not in seen.shape):
        owner.refuse(
            UnsupportedError,
            f"no memory: {type(array).__name__} of shape {seen.shape} has address 0, expected an array with memory of "
            "its own" + (" (None for a parameter that takes no part)" if owner.is_gradient else ""),
        )
    return seen


def _seen(array: Any, owner: Owner, stream: Optional[int]) -> View:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return _from_torch(torch, array, owner)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.generic):
        if not owner.is_gradient:
            owner.refuse(
                InvalidArgumentError,
                f"a NumPy scalar ({array.dtype}) is immutable: expected an array (numpy.array(x) makes one)",
            )
        # A scalar lends its memory for the moment only; the copy has its own.
        array = numpy.array(array)
    if hasattr(array, "__array_interface__"):
        return _from_array_interface(array, owner)
    if hasattr(array, "__dlpack__") or type(array).__name__ == "PyCapsule":
        return _from_dlpack(array, owner, stream)
    if hasattr(array, "__cuda_array_interface__"):
        return _from_cuda_array_interface(array, owner)
    return _from_buffer(array, owner)


def written(arrays: Iterable[Any]) -> None:
    """Tells autograd that tensors' memory changed, so that a backward pass through their old values is refused."""
    torch = sys.modules.get("torch")
    increment = getattr(torch.autograd.graph, "increment_version", None) if torch is not None else None
    if increment is None:
        return
    changed = [array for array in arrays if isinstance(array, torch.Tensor)]
    if any(map(torch.Tensor.is_inference, changed)):
        changed = [tensor for tensor in changed if not tensor.is_inference()]
    try:
        increment(changed)
    except (TypeError, AttributeError):
        # Releases that take one tensor at a time.
        for tensor in changed:
            increment(tensor)


def _from_torch(torch: Any, tensor: Any, owner: Owner) -> View:
    if _is_dtensor(tensor):
        owner.refuse(
            UnsupportedError,
            "a DTensor (fully_shard, tensor parallelism), of which this process holds a part: expected whole tensors, "
            "as with DistributedDataParallel, or leave the parameter out of sharding (fully_shard's ignored_params)",
        )
    if tensor.layout != torch.strided:
        owner.refuse(UnsupportedError, f"layout {tensor.layout}: expected a dense (strided) tensor")
    dtype = _served(_torch_name(tensor.dtype), owner)
    kind = "cpu" if tensor.is_cpu else tensor.device.type
    if kind not in ("cpu", "cuda"):
        # A meta tensor has no memory; other devices have memory that the library cannot reach.
        owner.refuse(UnsupportedError, f"device '{tensor.device}': expected cpu or cuda")
    if not tensor.is_contiguous():
        _refuse_strides(tuple(tensor.shape), tuple(tensor.stride()), owner, _ADVICE_TORCH)
    if tensor.is_neg():
        owner.refuse(UnsupportedError, "a lazily negated tensor: expected tensor.resolve_neg()")
    device, stream = (_structs.DEVICE_CPU, 0), None
    if kind == "cuda":
        device = (_structs.DEVICE_CUDA, tensor.device.index)
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
    return View(_torch_address(tensor), dtype, tuple(tensor.shape), tensor, device, stream)


@functools.lru_cache(maxsize=None)
def _torch_name(dtype: Any) -> str:
    return str(dtype).replace("torch.", "")


def _is_dtensor(tensor: Any) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and _is_derived(type(tensor), module.DTensor)


# A step asks it of every tensor several times; asking the classes takes longer.
@functools.lru_cache(maxsize=64)
def _is_derived(kind: type, parent: type) -> bool:
    return issubclass(kind, parent)


def _torch_address(tensor: Any) -> int:
    """Where a tensor's memory starts; 0 for one without."""
    try:
        return tensor.data_ptr()
    except RuntimeError:
        # Fake tensors and some wrappers refuse to say.
        return 0


def _from_array_interface(array: Any, owner: Owner) -> View:
    about = array.__array_interface__
    shape = tuple(about["shape"])
    if not isinstance(about.get("data"), tuple):
        owner.refuse(UnsupportedError, "its __array_interface__ gives no address: expected memory of its own")
    address, read_only = about["data"]
    # ml_dtypes' bfloat16 has no letter of its own, only a name.
    named = getattr(getattr(array, "dtype", None), "name", "")
    dtype = named if named == "bfloat16" else _typestr_name(about["typestr"], owner)
    _served(dtype, owner)
    if read_only and not owner.is_gradient:
        owner.refuse(InvalidArgumentError, "the array is read-only: expected one that can be updated in place")
    _check_strides(shape, about.get("strides"), DTYPES[dtype][1] // 8, owner, _ADVICE_NUMPY)
    # The dict may itself hold the memory.
    return View(address, dtype, shape, (array, about))


def _from_dlpack(array: Any, owner: Owner, wanted: Optional[int]) -> View:
    immutable = type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
    if immutable and not owner.is_gradient:
        owner.refuse(
            InvalidArgumentError,
            "JAX arrays are immutable and cannot be updated in place: expected a NumPy array or a PyTorch "
            "tensor (numpy.array(x) makes a writable copy; JAX arrays are fine as gradients)",
        )
    try:
        tensor, read_only, copied, stream, keep = borrow(array, wanted)
    except (BufferError, TypeError, ValueError, RuntimeError) as cause:
        owner.refuse(UnsupportedError, f"{type(array).__name__} gave no DLPack view: {cause}")
    if tensor.dtype.lanes != 1:
        owner.refuse(UnsupportedError, f"vectors of {tensor.dtype.lanes} lanes: {_EXPECTED_DTYPE}")
    code, bits = tensor.dtype.code, tensor.dtype.bits
    name = _CODES.get(code, f"DLPack type {code} of bits ")
    dtype = _served("bool" if name == "bool" else f"{name}{bits}", owner)
    if tensor.device.device_type not in _HOST + _CUDA:
        kind = tensor.device.device_type
        owner.refuse(UnsupportedError, f"DLPack device type {kind}: expected 1 (CPU) or 2 (CUDA)")
    if not owner.is_gradient and (read_only or copied):
        what = "read-only" if read_only else "a copy that its framework made for the export"
        owner.refuse(InvalidArgumentError, f"the array is {what}: expected one that can be updated in place")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim))
        _check_strides(shape, strides, 1, owner, "make a contiguous copy")
    address = (tensor.data or 0) + tensor.byte_offset
    device = (tensor.device.device_type, tensor.device.device_id)
    return View(address, dtype, shape, keep, device, stream)


def _from_cuda_array_interface(array: Any, owner: Owner) -> View:
    about = array.__cuda_array_interface__
    dtype = _served(_typestr_name(about["typestr"], owner), owner)
    address, read_only = about["data"]
    if read_only and not owner.is_gradient:
        owner.refuse(InvalidArgumentError, "the array is read-only: expected one that can be updated in place")
    if about.get("mask") is not None:
        owner.refuse(UnsupportedError, "a masked array: expected one without a mask")
    shape = tuple(about["shape"])
    _check_strides(shape, about.get("strides"), DTYPES[dtype][1] // 8, owner, "make a contiguous copy")
    # The protocol does not say which device; whoever has several says so in the option `device`.
    number = getattr(getattr(array, "device", None), "id", 0)
    return View(address, dtype, shape, array, (_structs.DEVICE_CUDA, number), about.get("stream"))


def _from_buffer(array: Any, owner: Owner) -> View:
    try:
        exported = memoryview(array)
    except TypeError:
        owner.refuse(
            UnsupportedError,
            f"a {type(array).__name__}: expected an array with __array_interface__, __dlpack__, "
            "__cuda_array_interface__ or the buffer protocol",
        )
    letter = exported.format.lstrip("@=")
    if letter in _FORMATS:
        dtype = _FORMATS[letter]
    else:
        integer = len(letter) == 1 and letter in "bBhHiIlLqQnNcP?"
        what = "integers" if integer else "elements"
        owner.refuse(UnsupportedError, f"{what} of buffer format '{exported.format}': {_EXPECTED_DTYPE}")
    if exported.readonly and not owner.is_gradient:
        owner.refuse(InvalidArgumentError, "the buffer is read-only: expected one that can be updated in place")
    _check_strides(exported.shape, exported.strides, exported.itemsize, owner, "make a contiguous copy")
    return View(_address(exported), dtype, tuple(exported.shape or ()), exported)


class _Buffer(ctypes.Structure):
    """Python's ``Py_buffer``."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


def _address(exported: memoryview) -> int:
    """Where the memory of a memoryview starts; the memoryview keeps it there."""
    record = _Buffer()
    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    full_read_only = 0x011C
    if get(ctypes.py_object(exported), ctypes.byref(record), full_read_only) != 0:
        raise BufferError("the buffer cannot be exported")
    try:
        return record.buf or 0
    finally:
        release(ctypes.byref(record))


def _typestr_name(typestr: str, owner: Owner) -> str:
    """The name of an element type of the array interface: '<f4' is float32."""
    order, kind, size = typestr[0], typestr[1], typestr[2:]
    if kind == "b":
        return "bool"
    name = f"{_KINDS[kind]}{int(size) * 8}" if kind in _KINDS else f"type '{typestr}'"
    if order == ">":
        owner.refuse(UnsupportedError, f"dtype {name} in big-endian order: expected the machine's own order")
    return name


def _served(dtype: str, owner: Owner) -> str:
    if dtype not in DTYPES:
        owner.refuse(UnsupportedError, f"dtype {dtype}: {_EXPECTED_DTYPE}")
    return dtype


def _check_strides(shape: Any, strides: Any, unit: int, owner: Owner, advice: str) -> None:
    """Refuses strides (in units of ``unit``) that are not row-major contiguous; sides of 1 may have any."""
    if strides is None or 0 in shape:
        return
    expected = unit
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size > 1 and stride != expected:
            _refuse_strides(tuple(shape), tuple(stride // unit for stride in strides), owner, advice)
        expected *= size


def _refuse_strides(shape: Tuple, strides: Tuple, owner: Owner, advice: str) -> NoReturn:
    wanted: List[int] = []
    step = 1
    for size in reversed(shape):
        wanted.insert(0, step)
        step *= size
    owner.refuse(
        UnsupportedError,
        f"not contiguous: shape {shape} has strides {strides} in elements, expected {tuple(wanted)} "
        f"(row-major); {advice}",
    )
