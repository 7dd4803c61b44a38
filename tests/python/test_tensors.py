"""Arrays are used where they lie, and those that cannot be are refused by name."""

import array
import ctypes
import gc
import weakref

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import foam
from foam.tensors import Owner, view

PARAMETER = Owner("layer.weight", 3)
GRADIENT = Owner("layer.weight", 3, is_gradient=True)


class DLPackOnly:
    """An array of a framework that knows nothing but DLPack."""

    def __init__(self, array, **options):
        self.array, self.options = array, options

    def __dlpack__(self, **asked):
        return self.array.__dlpack__(**{**asked, **self.options})

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldDLPack(DLPackOnly):
    """The same before DLPack 1.0: no `max_version`."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__(stream=stream)


class OnCuda:
    """What CuPy and Numba show, with an address that is never touched."""

    def __init__(self, **changes):
        self.__cuda_array_interface__ = {
            "shape": (4, 3),
            "typestr": "<f4",
            "data": (0x7F0000000000, False),
            "version": 3,
            "strides": None,
            "stream": 7,
            **changes,
        }


def interface(**about):
    """An array that shows this ``__array_interface__``."""
    return type("Array", (), {"__array_interface__": {"version": 3, **about}})()


# ---- zero-copy


def numpy_array():
    return np.arange(12, dtype=np.float32).reshape(4, 3)


SOURCES = {
    "numpy": lambda a: (a, a.ctypes.data),
    "dlpack 1.x": lambda a: (DLPackOnly(a), a.ctypes.data),
    "dlpack 0.x": lambda a: (OldDLPack(a), a.ctypes.data),
    "capsule": lambda a: (a.__dlpack__(), a.ctypes.data),
    "versioned capsule": lambda a: (a.__dlpack__(max_version=(1, 0)), a.ctypes.data),
    "buffer": lambda a: (memoryview(a), a.ctypes.data),
}


def updated_where_it_lies(source):
    memory = numpy_array()
    before = memory.copy()
    given, address = source(memory)
    seen = view(given, PARAMETER)
    assert (seen.data, seen.shape, seen.dtype) == (address, (4, 3), "float32")
    with foam.Optimizer({"w": given}, lr=0.1) as optimizer:
        optimizer.step({"w": np.ones((4, 3), np.float32)})
    assert (memory < before).all()


@pytest.mark.parametrize("source", SOURCES)
def test_a_parameter_is_updated_where_it_lies(source):
    updated_where_it_lies(SOURCES[source])


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_jax_gradients_are_read_where_they_lie(dtype):
    gradient = jax.grad(lambda w: (w * w).sum())(jnp.ones((4, 3), dtype))
    seen = view(gradient, GRADIENT)
    assert seen.data == gradient.unsafe_buffer_pointer()
    assert seen.dtype == jnp.dtype(dtype).name
    weight = np.ones((4, 3), np.float32)
    with foam.Optimizer([weight], lr=0.1) as optimizer:
        optimizer.step([gradient])
    assert (weight < 1).all() and (np.asarray(gradient, np.float32) == 2).all()


def test_the_address_of_the_memory_does_not_change_over_steps():
    weight = np.ones((6, 5), np.float32)
    address = weight.ctypes.data
    with foam.Optimizer({"w": weight}, check_period=2) as optimizer:
        for _ in range(5):
            optimizer.step({"w": np.full((6, 5), 0.5, np.float32)})
    assert weight.ctypes.data == address and (weight < 1).all()


def test_offsets_into_an_allocation_are_followed():
    base = np.zeros((5, 3), np.float32)
    assert view(base[2:], PARAMETER).data == base.ctypes.data + 2 * 3 * 4
    assert view(DLPackOnly(base[2:]), PARAMETER).data == base.ctypes.data + 2 * 3 * 4


def test_strides_of_sides_of_one_do_not_matter():
    column = np.ones((4, 3), np.float32)[:, :1].T
    assert view(np.ascontiguousarray(column), PARAMETER).shape == (1, 4)
    loose = np.lib.stride_tricks.as_strided(np.ones(4, np.float32), (1, 4), (999, 4))
    assert view(loose, PARAMETER).shape == (1, 4)


def test_a_view_keeps_its_memory_and_gives_it_back():
    class Watched(np.ndarray):
        pass

    memory = np.ones(4, np.float32).view(Watched)
    gone = weakref.ref(memory)
    seen = view(DLPackOnly(memory), PARAMETER)
    del memory
    gc.collect()
    assert (ctypes.c_float * 4).from_address(seen.data)[3] == 1
    assert gone() is not None
    del seen
    gc.collect()
    assert gone() is None


def test_numpy_scalars_are_copied_as_gradients():
    weight, expected = np.array(2.0, np.float32), np.array(2.0, np.float32)
    values = [np.float32(0.5), np.full(3, 0.25, np.float32).sum(), np.float64(1.5), np.float16(-0.5)]
    with foam.Optimizer({"w": weight}, lr=0.1) as optimizer, foam.Optimizer({"w": expected}, lr=0.1) as other:
        for value in values:
            optimizer.step({"w": value})
            other.step({"w": np.array(value)})
            assert weight.tobytes() == expected.tobytes()
    seen = view(np.float32(7), GRADIENT)
    churn = [np.full(1, 9, np.float32) for _ in range(200)]
    assert (ctypes.c_float * 1).from_address(seen.data)[0] == 7 and len(churn) == 200


WITHOUT_MEMORY = {
    "cuda": lambda: OnCuda(shape=(3, 4), data=(0, False)),
    "array interface": lambda: interface(shape=(3, 4), typestr="<f4", data=(0, False)),
}


def refused_without_memory(make):
    weight = np.ones((3, 4), np.float32)
    with foam.Optimizer({"layer.weight": weight}, lr=0.1) as optimizer:
        with pytest.raises(foam.UnsupportedError, match=r"^gradient of parameter 'layer\.weight': no memory"):
            optimizer.step([make()])
        assert optimizer.stats()["steps"] == 0


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_a_gradient_without_memory_is_refused_instead_of_taking_no_part(kind):
    refused_without_memory(WITHOUT_MEMORY[kind])


# ---- element types


@pytest.mark.parametrize(
    "given, dtype",
    [
        (np.ones(2, np.float64), "float64"),
        (np.ones(2, np.float16), "float16"),
        (np.ones(2, ml_dtypes.bfloat16), "bfloat16"),
        (array.array("d", [1, 2]), "float64"),
        (np.ones(()), "float64"),
    ],
    ids=str,
)
def test_element_types_are_recognised(given, dtype):
    assert view(given, PARAMETER).dtype == dtype


# ---- refused by name


def read_only():
    frozen = np.ones(3, np.float32)
    frozen.flags.writeable = False
    return frozen


NOT_CONTIGUOUS = r"not contiguous: shape \(3, 4\) has strides \(1, 3\) in elements, expected \(4, 1\)"
DTYPE = ": expected float32, float64, float16 or bfloat16"

REFUSED = {
    "numpy read-only": (read_only, foam.InvalidArgumentError, "the array is read-only"),
    "dlpack read-only": (lambda: DLPackOnly(read_only()), foam.InvalidArgumentError, "the array is read-only"),
    "dlpack copy": (
        lambda: DLPackOnly(np.ones(3, np.float32), copy=True),
        foam.InvalidArgumentError,
        "a copy that its framework made",
    ),
    "buffer read-only": (
        lambda: memoryview(bytes(12)).cast("f"),
        foam.InvalidArgumentError,
        "the buffer is read-only",
    ),
    "cuda read-only": (lambda: OnCuda(data=(1, True)), foam.InvalidArgumentError, "the array is read-only"),
    "jax": (lambda: jnp.ones(3), foam.InvalidArgumentError, "JAX arrays are immutable"),
    "numpy strided": (lambda: np.ones((4, 3), np.float32).T, foam.UnsupportedError, NOT_CONTIGUOUS),
    "dlpack strided": (lambda: DLPackOnly(np.ones((4, 3), np.float32).T), foam.UnsupportedError, NOT_CONTIGUOUS),
    "cuda strided": (
        lambda: OnCuda(shape=(3, 4), strides=(4, 12)),
        foam.UnsupportedError,
        NOT_CONTIGUOUS,
    ),
    "numpy complex": (lambda: np.ones(3, complex), foam.UnsupportedError, "dtype complex128" + DTYPE),
    "dlpack complex": (lambda: DLPackOnly(np.ones(3, complex)), foam.UnsupportedError, "dtype complex128" + DTYPE),
    "numpy integer": (lambda: np.ones(3, np.int64), foam.UnsupportedError, "dtype int64" + DTYPE),
    "dlpack integer": (lambda: DLPackOnly(np.ones(3, np.uint8)), foam.UnsupportedError, "dtype uint8" + DTYPE),
    "buffer integer": (lambda: bytearray(8), foam.UnsupportedError, "integers of buffer format 'B'" + DTYPE),
    "bool": (lambda: np.ones(3, bool), foam.UnsupportedError, "dtype bool" + DTYPE),
    "big-endian": (lambda: np.ones(3, ">f4"), foam.UnsupportedError, "float32 in big-endian order"),
    "no address": (
        lambda: interface(shape=(3,), typestr="<f4", data=bytes(12)),
        foam.UnsupportedError,
        "its __array_interface__ gives no address",
    ),
    "a list": (lambda: [1.0, 2.0], foam.UnsupportedError, "a list: expected an array"),
}


def refused_as_a_parameter(make, error, message):
    with pytest.raises(error, match=rf"^parameter 'layer\.weight': .*{message}") as caught:
        foam.Optimizer({"fine": np.ones(3, np.float32), "layer.weight": make()})
    assert caught.value.param_index == 1
    assert caught.value.status in ("FOAM_INVALID_ARGUMENT", "FOAM_UNSUPPORTED")


def refused_as_a_gradient_before_anything_is_written(make, error, message):
    first, second = np.ones(3, np.float32), np.ones((3, 4), np.float32)
    with foam.Optimizer({"fine": first, "layer.weight": second}, lr=0.1) as optimizer:
        with pytest.raises(error, match=rf"^gradient of parameter 'layer\.weight': .*{message}"):
            optimizer.step([np.ones(3, np.float32), make()])
        assert optimizer.stats()["steps"] == 0
    assert (first == 1).all() and (second == 1).all()


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_as_a_parameter_by_name(kind):
    refused_as_a_parameter(*REFUSED[kind])


@pytest.mark.parametrize(
    "kind", [kind for kind in REFUSED if "read-only" not in kind and kind not in ("jax", "dlpack copy")]
)
def test_refused_as_a_gradient_by_name_before_anything_is_written(kind):
    refused_as_a_gradient_before_anything_is_written(*REFUSED[kind])


def test_a_numpy_scalar_is_refused_as_a_parameter_by_name():
    with pytest.raises(foam.InvalidArgumentError, match=r"^parameter 'w': a NumPy scalar.*numpy\.array\(x\)"):
        foam.Optimizer({"w": np.float32(1)})
    with foam.Optimizer({"w": np.ones((), np.float32)}) as optimizer:
        with pytest.raises(foam.InvalidArgumentError, match=r"^parameter 'w': a NumPy scalar"):
            optimizer.step([np.float32(1)], params=[np.float32(1)])


def test_read_only_gradients_are_accepted():
    weight = np.ones(3, np.float32)
    with foam.Optimizer([weight], lr=0.1) as optimizer:
        for gradient in (read_only(), DLPackOnly(read_only()), memoryview(read_only())):
            optimizer.step([gradient])
        assert optimizer.stats()["steps"] == 3
    assert (weight < 1).all()


def test_cuda_arrays_are_seen_with_their_device_and_stream():
    seen = view(OnCuda(), PARAMETER)
    assert (seen.data, seen.shape, seen.dtype) == (0x7F0000000000, (4, 3), "float32")
    assert (seen.device_text, seen.stream) == ("cuda:0", 7)


@pytest.mark.parametrize(
    "given, own, others, after",
    [
        (None, [7, 7], [7, None], []),
        (None, [7, 7], [9, 8], [8, 9]),
        (None, [None, None], [9, 9], [9]),
        (None, [7, 5], [7, 7], [5]),
        (3, [7, 7], [7, 3], [7]),
        # Both are the legacy default stream.
        (0, [1, 1], [1, 1], []),
        (None, [1, 1], [2, 1], [2]),
    ],
)
def test_a_step_comes_after_the_streams_that_its_arrays_are_made_on(given, own, others, after):
    """``__cuda_array_interface__`` and DLPack say on which stream an array will be ready."""
    weights = [np.ones((4, 3), np.float32), np.ones((4, 3), np.float32)]
    with foam.Optimizer(weights) as optimizer:
        params = [view(OnCuda(stream=stream), PARAMETER) for stream in own]
        grads = [view(OnCuda(stream=stream), GRADIENT) for stream in others]
        args, _ = optimizer._handle._args(params, grads, 0.1, 1.0, given, 0)
        assert [args.after[place] for place in range(args.after_count)] == after
        assert (args.stream or 0) == (given if given is not None else own[0] or 0)
        args, _ = optimizer._handle._args(params, [None, grads[1]], 0.1, 1.0, given, 0)
        assert others[0] in own or others[0] == others[1] or others[0] not in args.after[: args.after_count]


def test_a_tensor_of_another_device_is_refused_at_the_step():
    weight = np.ones((4, 3), np.float32)
    with foam.Optimizer({"w": weight}) as optimizer:
        with pytest.raises(foam.ShapeMismatchError, match="'w'.*device type 2: expected 1"):
            optimizer.step([OnCuda()])


def test_a_consumed_capsule_is_refused():
    capsule = np.ones(3, np.float32).__dlpack__()
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used = b"used_dltensor"
    rename(capsule, used)
    with pytest.raises(foam.UnsupportedError, match="not a DLPack tensor, or another consumer has taken it"):
        view(capsule, PARAMETER)
