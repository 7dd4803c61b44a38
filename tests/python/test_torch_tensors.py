"""PyTorch tensors are used where they lie, and those that cannot be are refused by name."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import foam
from foam.tensors import view
from test_tensors import (
    DTYPE,
    NOT_CONTIGUOUS,
    PARAMETER,
    DLPackOnly,
    refused_as_a_gradient_before_anything_is_written,
    refused_as_a_parameter,
    refused_without_memory,
    updated_where_it_lies,
)

SOURCES = {
    "torch": lambda a: (torch.from_numpy(a), a.ctypes.data),
    "torch parameter": lambda a: (torch.nn.Parameter(torch.from_numpy(a)), a.ctypes.data),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_parameter_is_updated_where_it_lies(source):
    updated_where_it_lies(SOURCES[source])


def test_the_address_of_the_memory_does_not_change_over_steps():
    weight = torch.nn.Parameter(torch.ones(6, 5))
    address = weight.data_ptr()
    with foam.Optimizer({"w": weight}, check_period=2) as optimizer:
        for _ in range(5):
            optimizer.step({"w": torch.full((6, 5), 0.5)})
    assert weight.data_ptr() == address and (weight < 1).all()


def test_offsets_into_an_allocation_are_followed():
    base = np.zeros((5, 3), np.float32)
    assert view(torch.from_numpy(base)[2:], PARAMETER).data == base.ctypes.data + 2 * 3 * 4


@pytest.mark.parametrize(
    "given, dtype",
    [
        (torch.ones(2, dtype=torch.bfloat16), "bfloat16"),
        (torch.ones(2, dtype=torch.float16), "float16"),
        (DLPackOnly(torch.ones(2, dtype=torch.bfloat16)), "bfloat16"),
    ],
    ids=str,
)
def test_element_types_are_recognised(given, dtype):
    assert view(given, PARAMETER).dtype == dtype


def test_bfloat16_of_every_framework_gives_the_same_bits():
    start = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)
    grads = np.cos(np.arange(24, dtype=np.float32)).reshape(6, 4)
    ours = start.astype(ml_dtypes.bfloat16)
    theirs = torch.from_numpy(start.copy()).bfloat16()
    for weight, gradient in ((ours, jnp.asarray(grads, jnp.bfloat16)), (theirs, torch.from_numpy(grads).bfloat16())):
        with foam.Optimizer([weight], lr=0.05, check_period=2) as optimizer:
            for _ in range(6):
                optimizer.step([gradient])
    assert ours.tobytes() == theirs.view(torch.int16).numpy().tobytes()
    assert not np.array_equal(ours.astype(np.float32), start.astype(ml_dtypes.bfloat16).astype(np.float32))


REFUSED = {
    "torch meta": (lambda: torch.ones(3, device="meta"), foam.UnsupportedError, "device 'meta': expected cpu or cuda"),
    "torch strided": (lambda: torch.ones(4, 3).t(), foam.UnsupportedError, NOT_CONTIGUOUS),
    "torch complex": (lambda: torch.ones(3, dtype=torch.cfloat), foam.UnsupportedError, "dtype complex64" + DTYPE),
    "torch integer": (lambda: torch.ones(3, dtype=torch.int32), foam.UnsupportedError, "dtype int32" + DTYPE),
    "bool": (lambda: torch.ones(3, dtype=torch.bool), foam.UnsupportedError, "dtype bool" + DTYPE),
    "sparse": (lambda: torch.eye(3).to_sparse(), foam.UnsupportedError, "layout torch.sparse_coo: expected a dense"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_as_a_parameter_by_name(kind):
    refused_as_a_parameter(*REFUSED[kind])


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_as_a_gradient_by_name_before_anything_is_written(kind):
    refused_as_a_gradient_before_anything_is_written(*REFUSED[kind])


class Nowhere(torch.Tensor):
    """A tensor subclass without memory, as wrappers of other tensors are."""

    @staticmethod
    def __new__(cls, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        raise NotImplementedError(str(function))


WITHOUT_MEMORY = {
    "torch wrapper": lambda: Nowhere((3, 4)),
    "torch empty": lambda: torch.ones(0, 4),
    "dlpack empty": lambda: DLPackOnly(torch.ones(0, 4)),
}


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_a_gradient_without_memory_is_refused_instead_of_taking_no_part(kind):
    refused_without_memory(WITHOUT_MEMORY[kind])
