"""PyTorch tensors are used where they lie, and those that cannot be are refused by name."""

import weakref

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import foam
from foam.tensors import view
from foam.torch import FOAM
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


# ---- from step to step: tensors that did not change are looked at all together


def trained(*params):
    """An optimizer after some steps on gradients that are made anew each time."""
    optimizer = FOAM(params, lr=0.05)
    for _ in range(3):
        for param in params:
            param.grad = param.detach() * 0.5
        optimizer.step()
    return optimizer


def test_gradients_are_not_kept_after_a_step():
    params = [torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Parameter(torch.ones(5))]
    optimizer = trained(*params)
    kept = [weakref.ref(param.grad) for param in params]
    optimizer.zero_grad(set_to_none=True)
    assert [grad() for grad in kept] == [None, None]


def test_some_gradients_may_be_missing_in_some_steps():
    params = [torch.nn.Parameter(torch.ones(*shape)) for shape in ((4, 3), (5,), (2, 2))]
    optimizer = trained(*params)
    for absent in (1, 0, 2):
        before = [param.detach().clone() for param in params]
        for place, param in enumerate(params):
            param.grad = None if place == absent else torch.ones_like(param)
        optimizer.step()
        same = [torch.equal(param, old) for param, old in zip(params, before)]
        assert same == [place == absent for place in range(3)]


CHANGES = {
    "negated": (lambda old: old._neg_view(), "lazily negated"),
    "reshaped": (lambda old: old.view(2, 8), r"from float32 \[4, 4\] to float32 \[2, 8\]"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_parameter_that_changed_at_the_same_address_is_noticed(change):
    make, message = CHANGES[change]
    param = torch.nn.Parameter(torch.ones(4, 4))
    optimizer = trained(param)
    param.grad, param.data = None, make(param.data)
    before = param.detach().clone()
    param.grad = torch.ones_like(before)
    with pytest.raises(foam.FoamError, match=message):
        optimizer.step()
    assert torch.equal(param, before)


FORMS = {
    "transposed": lambda gradient: gradient.t().contiguous().t(),
    "of a subclass": lambda gradient: torch.nn.Buffer(gradient.clone()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_in_another_form_gives_the_same_step(form):
    plain, other = (torch.nn.Parameter(torch.arange(12.0).view(4, 3)) for _ in range(2))
    first, second = trained(plain), trained(other)
    plain.grad = torch.linspace(-1, 1, 12).view(4, 3)
    other.grad = FORMS[form](plain.grad)
    first.step(), second.step()
    assert torch.equal(plain, other)


def test_a_negated_gradient_is_refused_after_plain_ones():
    param = torch.nn.Parameter(torch.ones(4, 3))
    optimizer = trained(param)
    param.grad = torch.ones(4, 3)._neg_view()
    before = param.detach().clone()
    with pytest.raises(foam.UnsupportedError, match="gradient of parameter .*lazily negated"):
        optimizer.step()
    assert torch.equal(param, before)
