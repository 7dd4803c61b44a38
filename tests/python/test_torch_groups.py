"""A step of `foam.torch.FOAM` with several groups is taken whole or not at all."""

import contextlib
import logging
import pathlib
import re
import sys
import threading
import time

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import foam
from foam.torch import FOAM
from models import OPTIONS, bits, loss_of, network, split_groups, train


def everything(model, optimizer):
    """All that a refused step must leave as it was."""
    return bits(model), [group["foam_state"].numpy().tobytes() for group in optimizer.state_dict()["param_groups"]]


def huge(model):
    model[2].bias.grad.fill_(3e19)  # finite, but its square is more than float32 holds


def not_finite(model):
    model[2].bias.grad[1] = float("inf")


def reshaped(model):
    model[2].bias.data = torch.ones(5)


def rate(value):
    def change(model, optimizer):
        optimizer.param_groups[1]["lr"] = value

    return change


def option(key, value):
    def change(model, optimizer):
        optimizer.param_groups[1][key] = value

    return change


REFUSED = {
    "overflowing gradient": (lambda m, o: huge(m), foam.NotFiniteError, "2.bias"),
    "gradient not finite": (lambda m, o: not_finite(m), foam.NotFiniteError, "2.bias"),
    "another shape": (
        lambda m, o: reshaped(m),
        foam.InvalidArgumentError,
        r"param_groups\[1\]: changed parameter '2\.bias' from float32 \[3\] to float32 \[5\]",
    ),
    "negative rate": (rate(-0.1), foam.InvalidArgumentError, r"param_groups\[1\]: lr = -0\.1: expected a number >= 0"),
    "rate not a number": (rate(float("nan")), foam.InvalidArgumentError, r"param_groups\[1\]: lr = nan"),
    "infinite rate": (rate(float("inf")), foam.InvalidArgumentError, r"param_groups\[1\]: lr = inf"),
    "impossible option": (option("tau", -1.0), foam.InvalidArgumentError, "tau"),
    "sparse gradient": (
        lambda m, o: setattr(m[2].bias, "grad", m[2].bias.grad.to_sparse()),
        foam.UnsupportedError,
        r"'2\.bias': layout torch\.sparse_coo",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refusal_in_a_later_group_changes_nothing_in_an_earlier_one(kind):
    change, error, message = REFUSED[kind]
    model = network()
    optimizer = FOAM(split_groups(model), **OPTIONS)
    train(model, optimizer, range(4))
    before = everything(model, optimizer)
    optimizer.zero_grad()
    loss_of(model, 4).backward()
    change(model, optimizer)
    with pytest.raises(error, match=message):
        optimizer.step()
    after = everything(model, optimizer)
    assert after[0][:3] == before[0][:3], "a parameter of the first group moved"
    assert after[1] == before[1], "a group's state moved"


@pytest.mark.parametrize("nonfinite", ["error", "skip"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_groups_whose_gradients_are_in_doubt_are_undone_together(nonfinite, order):
    """Two groups have huge gradients; the library takes one of them and refuses the other."""
    model = network()
    groups = split_groups(model)
    optimizer = FOAM([groups[order[0]], groups[order[1]]], nonfinite=nonfinite, **OPTIONS)
    train(model, optimizer, range(4))
    before = everything(model, optimizer)
    optimizer.zero_grad()
    loss_of(model, 4).backward()
    model[0].weight.grad.fill_(2e17)  # its norm is near the limit but below: taken
    model[2].bias.grad.fill_(3e19)
    if nonfinite == "error":
        with pytest.raises(foam.NotFiniteError, match="2.bias"):
            optimizer.step()
    else:
        optimizer.step()
        assert optimizer.stats()["skipped_steps"] == 1
    after = everything(model, optimizer)
    assert after[0] == before[0] and optimizer.stats()["steps"] == 4
    if nonfinite == "error":
        assert after[1] == before[1]
    # The gradient in doubt is taken when nothing else stands in the way.
    model[2].bias.grad.fill_(1e-3)
    optimizer.step()
    assert optimizer.stats()["steps"] == 5 and bits(model)[0] != before[0][0]


class Asked(TorchDispatchMode):
    """Counts how often a tensor is asked for its value: on a GPU each time waits for the device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_step_asks_no_tensor_for_its_value_whatever_the_number_of_groups(count):
    model = network()
    params = list(model.named_parameters())
    optimizer = FOAM([{"params": params[place::count]} for place in range(count)], **OPTIONS)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        with Asked() as asked:
            optimizer.step()
        assert asked.count == 0, f"step {step}"
    assert optimizer.stats()["checks"] > 0


def test_groups_of_one_device_are_one_native_call(monkeypatch):
    model = network()
    params = list(model.named_parameters())
    optimizer = FOAM([{"params": params[place::3]} for place in range(3)], **OPTIONS)
    loss_of(model, 0).backward()
    library, called = foam._library.load(), []
    call = library.call
    monkeypatch.setattr(library, "call", lambda name, *arguments: (called.append(name), call(name, *arguments))[1])
    optimizer.step()
    assert [name for name in called if name in ("foam_step", "foam_step_together")] == ["foam_step_together"]


@pytest.mark.parametrize("bad", [0.0, 1.0])
def test_what_grad_scaler_says_comes_with_one_transfer(bad, monkeypatch):
    plain, scaled = network(), network()
    for model in (plain, scaled):
        loss_of(model, 0).backward()
    for param in scaled.parameters():
        param.grad *= 1024
    FOAM(split_groups(plain), **OPTIONS).step()
    optimizer, before = FOAM(split_groups(scaled), **OPTIONS), bits(scaled)
    optimizer.found_inf, optimizer.grad_scale = torch.tensor(bad), torch.tensor([1024.0])
    transfers, tolist = [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: (transfers.append(tensor), tolist(tensor))[1])
    with Asked() as asked:
        optimizer.step()
    assert (len(transfers), asked.count) == (1, 0)
    assert bits(scaled) == (before if bad else bits(plain))


def test_a_gradient_of_another_shape_is_refused_before_the_first_group_steps():
    model = network()
    optimizer = FOAM(split_groups(model), **OPTIONS)
    loss_of(model, 0).backward()
    reshaped(model)
    with pytest.raises(foam.ShapeMismatchError, match=r"'2\.bias': shape \(3,\): expected \(5,\), the parameter's"):
        optimizer.step()
    assert bits(model)[:3] == bits(network())[:3] and optimizer.stats()["steps"] == 0


def test_coupled_weight_decay_counts_where_a_gradient_is_in_doubt():
    model = network()
    groups = split_groups(model)
    groups[1]["weight_decay"] = 1e20
    optimizer = FOAM(groups, decoupled_weight_decay=False, **OPTIONS)
    loss_of(model, 0).backward()
    before = everything(model, optimizer)
    with pytest.raises(foam.NotFiniteError, match="bias"):
        optimizer.step()
    assert everything(model, optimizer) == before


def test_parameters_of_different_groups_may_not_overlap():
    whole = torch.ones(6)
    first, second = nn.Parameter(whole[:4]), nn.Parameter(whole[3:])
    optimizer = FOAM([{"params": [("first", first)]}, {"params": [("second", second)]}], lr=0.1)
    first.grad, second.grad = torch.ones(4), torch.ones(3)
    with pytest.raises(foam.InvalidArgumentError, match="parameter 'first' and parameter 'second' overlap in memory"):
        optimizer.step()
    assert (whole == 1).all() and optimizer.stats()["steps"] == 0


def test_a_gradient_may_not_overlap_a_parameter_of_another_group():
    first, second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer = FOAM([{"params": [("first", first)]}, {"params": [("second", second)]}], lr=0.1)
    first.grad, second.grad = second.detach(), torch.ones(4)
    with pytest.raises(foam.InvalidArgumentError, match="the gradient of parameter 'first'.*overlap in memory"):
        optimizer.step()
    assert (first == 1).all() and (second == 1).all()


def test_a_gradient_shared_by_two_groups_is_only_read_and_fine():
    first, second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer = FOAM([{"params": [first]}, {"params": [second]}], lr=0.1)
    first.grad = second.grad = torch.ones(4)
    optimizer.step()
    assert torch.equal(first, second) and (first < 1).all()


def test_a_poisoned_group_stops_the_others(capfd):
    model = network()
    groups = split_groups(model)
    groups[1]["inject_fault"] = "panic"
    optimizer = FOAM(groups, **OPTIONS)
    loss_of(model, 0).backward()
    with pytest.raises(foam.PanicError):
        optimizer.step()
    weights = bits(model)[0]
    # The step was that of all groups, and they are lost together.
    with pytest.raises(foam.PoisonedError, match=r"param_groups\[0\]"):
        optimizer.step()
    assert bits(model)[0] == weights and optimizer.stats(0)["steps"] == 1
    capfd.readouterr()


def test_an_interrupt_in_a_log_line_waits_for_all_groups():
    class Handler(logging.Handler):
        armed = True

        def emit(self, record):
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt

    model, other = network(), network()
    optimizers = [
        FOAM(split_groups(m), inject_fault="evd_chosen", max_factor_dim=16, **OPTIONS) for m in (model, other)
    ]
    train(other, optimizers[1], range(3))
    logger, handler = logging.getLogger("foam"), Handler()
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizers[0], range(3))
    finally:
        logger.removeHandler(handler)
    assert optimizers[0].stats(0)["steps"] == optimizers[0].stats(1)["steps"] == 3
    assert bits(model) == bits(other)


def test_an_overlapping_call_from_a_log_line_is_busy():
    caught = []

    class Handler(logging.Handler):
        def emit(self, record):
            for call in (optimizer.step, optimizer.stats, optimizer.state_dict, optimizer.factor_stats):
                try:
                    call()
                except foam.FoamError as error:
                    caught.append(type(error))

    model = network()
    optimizer = FOAM(model.parameters(), inject_fault="evd_chosen", max_factor_dim=16, **OPTIONS)
    logger, handler = logging.getLogger("foam"), Handler()
    logger.addHandler(handler)
    try:
        train(model, optimizer, range(3))
    finally:
        logger.removeHandler(handler)
    assert set(caught) == {foam.BusyError} and len(caught) % 4 == 0
    assert optimizer.stats()["steps"] == 3


def test_two_threads_on_one_optimizer_take_whole_steps_or_none():
    model = network()
    optimizer = FOAM(split_groups(model), num_threads=1, **OPTIONS)
    loss_of(model, 0).backward()
    taken, refused, start, interval = [], [], threading.Barrier(2), sys.getswitchinterval()

    def work():
        start.wait()
        for _ in range(150):
            try:
                optimizer.step()
                taken.append(1)
            except foam.BusyError:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(taken) + len(refused) == 300
    assert optimizer.stats(0)["steps"] == optimizer.stats(1)["steps"] == len(taken)


def test_an_option_that_the_state_cannot_follow_is_named():
    model = network()
    optimizer = FOAM(model.named_parameters(), **OPTIONS)
    train(model, optimizer, range(4))
    optimizer.param_groups[0]["max_factor_dim"] = 4
    before = bits(model)
    with pytest.raises(foam.InvalidArgumentError) as caught:
        train(model, optimizer, [4])
    message = str(caught.value)
    assert re.search(r"param_groups\[0\]: changed max_factor_dim from \d+ to 4 after the first step", message), message
    assert "file" not in message and bits(model) == before
    optimizer.param_groups[0].pop("max_factor_dim")
    train(model, optimizer, [4])
    assert optimizer.stats()["steps"] == 5


def test_a_parameter_cast_after_the_first_step_is_named():
    model = network()
    optimizer = FOAM(model.named_parameters(), **OPTIONS)
    train(model, optimizer, range(2))
    model.double()
    with pytest.raises(foam.InvalidArgumentError, match=r"parameter '0\.weight' from float32 \[16, 12\] to float64"):
        train(model, optimizer, [2])


def test_forty_groups_share_one_pool():
    weights = [nn.Parameter(torch.randn(12, 9)) for _ in range(40)]
    optimizer = FOAM([{"params": [weight]} for weight in weights], **dict(OPTIONS, num_threads=19, merge_dims=False))
    for _ in range(3):
        for weight in weights:
            weight.grad = torch.randn(12, 9)
        optimizer.step()

    def names():
        found = []
        for path in pathlib.Path("/proc/self/task").glob("*/comm"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                found.append(path.read_text().strip())
        return found

    # A thread names itself once it runs, which on a busy machine may be after the last step; so might a second one.
    deadline = time.monotonic() + 60
    while "foam-18" not in names() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert names().count("foam-18") == 1, names()
