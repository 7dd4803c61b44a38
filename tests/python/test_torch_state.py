"""The state of `foam.torch.FOAM`: a resumed run continues bit for bit, by whatever way the state travelled."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import foam
from foam.torch import FOAM
from models import OPTIONS, bits, network, split_groups, train


def saved_and_read(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


TRANSPORTS = {"as it is": lambda state: state, "deepcopy": copy.deepcopy, "torch.save": saved_and_read}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("groups", [lambda m: m.parameters(), lambda m: m.named_parameters(), split_groups])
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(groups, transport):
    whole, first = network(), network()
    train(whole, FOAM(groups(whole), **OPTIONS), range(11))
    optimizer = FOAM(groups(first), **OPTIONS)
    train(first, optimizer, range(5))
    state = TRANSPORTS[transport](optimizer.state_dict())
    second = network()
    second.load_state_dict(first.state_dict())
    # Before its first step, and with another rate, which the state replaces.
    resumed = FOAM(groups(second), **{**OPTIONS, "lr": 9.0})
    resumed.load_state_dict(state)
    assert resumed.stats()["steps"] == 5
    train(second, resumed, range(5, 11))
    assert bits(second) == bits(whole)
    ours, theirs = resumed.state_dict(), optimizer.state_dict()
    assert not torch.equal(ours["param_groups"][0]["foam_state"], theirs["param_groups"][0]["foam_state"])


def test_the_state_round_trip_is_bit_exact():
    model = network()
    optimizer = FOAM(split_groups(model), **OPTIONS)
    train(model, optimizer, range(7))
    state = saved_and_read(optimizer.state_dict())
    other = FOAM(split_groups(network()), **OPTIONS)
    other.load_state_dict(state)
    for ours, theirs in zip(other.state_dict()["param_groups"], state["param_groups"]):
        assert ours["foam_state"].dtype == torch.uint8
        assert torch.equal(ours.pop("foam_state"), theirs.pop("foam_state"))
        assert ours == theirs


def test_named_state_finds_its_parameters_in_any_order():
    model = network()
    optimizer = FOAM(model.named_parameters(), **OPTIONS)
    train(model, optimizer, range(4))
    turned = FOAM(reversed(list(model.named_parameters())), **OPTIONS)
    turned.load_state_dict(optimizer.state_dict())
    whole = copy.deepcopy(model)
    train(model, turned, range(4, 9))
    continued = FOAM(whole.named_parameters(), **OPTIONS)
    continued.load_state_dict(optimizer.state_dict())
    train(whole, continued, range(4, 9))
    assert bits(model) == bits(whole)
    assert turned.param_groups[0]["param_names"] == ["2.bias", "2.weight", "0.bias", "0.weight"]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_the_optimizer_itself_may_be_copied_and_pickled(duplicate):
    model = network()
    optimizer = FOAM(model.parameters(), **OPTIONS)
    train(model, optimizer, range(4))
    other, copied = duplicate((model, optimizer))
    assert other[0].weight.data_ptr() != model[0].weight.data_ptr()
    train(model, optimizer, range(4, 8))
    assert bits(other) != bits(model)
    train(other, copied, range(4, 8))
    assert bits(other) == bits(model)


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing():
    model = network()
    optimizer = FOAM(model.parameters(), **OPTIONS)
    train(model, optimizer, range(3))
    before = optimizer.state_dict()["param_groups"][0]["foam_state"]
    adam = torch.optim.AdamW(network().parameters()).state_dict()
    with pytest.raises(foam.InvalidArgumentError, match=r"param_groups\[0\] of the state dict has no 'foam_state'"):
        optimizer.load_state_dict(adam)
    wider = FOAM(nn.Sequential(nn.Linear(13, 16), nn.Tanh(), nn.Linear(16, 3)).parameters(), **OPTIONS).state_dict()
    with pytest.raises(foam.BadCheckpointError, match="group_0.param_0"):
        optimizer.load_state_dict(wider)
    damaged = optimizer.state_dict()
    damaged["param_groups"][0]["foam_state"] = damaged["param_groups"][0]["foam_state"][:-9]
    damaged["param_groups"][0]["lr"] = 77.0
    with pytest.raises(foam.BadCheckpointError):
        optimizer.load_state_dict(damaged)
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert torch.equal(optimizer.state_dict()["param_groups"][0]["foam_state"], before)
    train(model, optimizer, [3])
