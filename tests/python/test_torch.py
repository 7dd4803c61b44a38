"""`foam.torch.FOAM` is a torch optimizer in everything that a training script does with one."""

import logging
import tempfile

import pytest
import torch
from torch import nn

import foam
from foam._safetensors import read
from foam.torch import FOAM
from models import OPTIONS, bits, loss_of, network, split_groups, train
from test_life import Interrupting

# ---- it is the same optimizer


def test_the_same_bits_as_the_plain_optimizer():
    model, other = network(), network()
    train(model, FOAM(model.parameters(), **OPTIONS), range(10))
    with foam.Optimizer(list(other.parameters()), **OPTIONS) as optimizer:
        for step in range(10):
            other.zero_grad()
            loss_of(other, step).backward()
            optimizer.step([p.grad for p in other.parameters()])
    assert bits(model) == bits(other) != bits(network())


def test_memory_is_updated_in_place_and_autograd_is_told():
    model = network()
    optimizer = FOAM(model.parameters(), **OPTIONS)
    addresses = [p.data_ptr() for p in model.parameters()]
    versions = [p._version for p in model.parameters()]
    held = loss_of(model, 0)
    loss_of(model, 0).backward()
    optimizer.step()
    assert [p.data_ptr() for p in model.parameters()] == addresses
    assert all(p._version > version for p, version in zip(model.parameters(), versions))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        held.backward()


def test_it_is_an_optimizer_with_the_librarys_defaults():
    optimizer = FOAM(network().parameters())
    assert isinstance(optimizer, torch.optim.Optimizer)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (2e-3, float(foam.defaults()["weight_decay"]))
    assert "Parameter Group 0" in repr(optimizer)


# ---- groups, schedules, closures


def test_groups_have_their_own_lr_decay_and_options():
    model = network()
    groups = split_groups(model)
    groups[1].update(policy="grafting_only", name="biases")
    optimizer = FOAM(groups, **OPTIONS)
    train(model, optimizer, range(6))
    assert {factor["param"] for factor in optimizer.factor_stats()} == {"0.weight", "2.weight"}
    assert {factor["group"] for factor in optimizer.factor_stats()} == {0}
    assert optimizer.stats()["params"] == 4 and optimizer.stats(1)["params"] == 2
    assert optimizer.stats()["steps"] == 6
    # Each group is what an optimizer of its own would have done.
    alone = network()
    weights = FOAM([p for p in alone.parameters() if p.ndim > 1], weight_decay=0.1, **OPTIONS)
    biases = FOAM(
        [p for p in alone.parameters() if p.ndim == 1],
        **{**OPTIONS, "lr": 0.003},
        weight_decay=0.0,
        policy="grafting_only",
    )
    for step in range(6):
        alone.zero_grad()
        loss_of(alone, step).backward()
        weights.step()
        biases.step()
    assert bits(alone) == bits(model)


def test_a_group_may_be_added_later():
    model = network()
    optimizer = FOAM(model[0].parameters(), **OPTIONS)
    train(model, optimizer, range(2))
    assert bits(model)[2:] == bits(network())[2:]
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.1, "tau": 0.5})
    train(model, optimizer, range(2, 4))
    assert bits(model)[2] != bits(network())[2]
    assert optimizer.stats(0)["steps"] == 4 and optimizer.stats(1)["steps"] == 2
    with pytest.raises(foam.InvalidArgumentError, match="unknown option 'taw'"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "taw": 1})
    assert len(optimizer.param_groups) == 2
    train(model, optimizer, [4])


def test_schedulers_set_the_rate_of_each_step():
    model, other = network(), network()
    optimizer = FOAM(model.parameters(), **OPTIONS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    for step in range(5):
        train(model, optimizer, [step])
        schedule.step()
    with foam.Optimizer(list(other.parameters()), **OPTIONS) as plain:
        for step in range(5):
            other.zero_grad()
            loss_of(other, step).backward()
            plain.step([p.grad for p in other.parameters()], lr=0.01 * 0.5**step)
    assert bits(model) == bits(other)


def test_a_rate_that_is_a_tensor_is_read():
    model, other = network(), network()
    train(model, FOAM(model.parameters(), **{**OPTIONS, "lr": torch.tensor(0.01, dtype=torch.float64)}), range(3))
    train(other, FOAM(other.parameters(), **OPTIONS), range(3))
    assert bits(model) == bits(other)


def test_a_closure_is_called_with_gradients_and_its_loss_returned():
    model, other = network(), network()
    optimizer = FOAM(model.parameters(), **OPTIONS)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    returned = [optimizer.step(closure).item() for _ in range(4)]
    assert returned == sorted(returned, reverse=True) and len(set(returned)) == 4
    train(other, FOAM(other.parameters(), **OPTIONS), [0, 0, 0, 0])
    assert bits(model) == bits(other)


def test_an_option_changed_between_steps_takes_effect_and_keeps_the_state():
    model, other = network(), network()
    optimizer, unchanged = FOAM(model.parameters(), **OPTIONS), FOAM(other.parameters(), **OPTIONS)
    train(model, optimizer, range(4))
    train(other, unchanged, range(4))
    optimizer.param_groups[0]["weight_decay"] = 0.5
    assert bits(model) == bits(other)
    train(model, optimizer, [4])
    train(other, unchanged, [4])
    assert bits(model) != bits(other) and optimizer.stats()["steps"] == 5
    decayed, plain = (sum(p.square().sum() for p in m.parameters()) for m in (model, other))
    assert decayed < plain


@pytest.mark.parametrize("changed", [{"check_period": 20}, {"start_step": 5}, {"cadence": "paper"}], ids=str)
@pytest.mark.parametrize("grafting", ["adam", "none"])
def test_checks_that_change_between_steps_leave_no_dead_step(grafting, changed):
    """No check was due in the first 30 steps; until the next one of the new options there is no basis."""
    model = network()
    options = {**OPTIONS, "check_period": 100, "beta1": 0.0, "grafting": grafting, "weight_decay": 0.0}
    optimizer = FOAM(model.parameters(), **options)
    train(model, optimizer, range(30))
    assert optimizer.stats()["checks"] == 0
    optimizer.param_groups[0].update(changed)
    for step in range(30, 45):
        before = bits(model)
        train(model, optimizer, [step])
        assert all(old != new for old, new in zip(before, bits(model))), f"step {step + 1}"
    assert optimizer.stats()["steps"] == 45 and optimizer.stats()["evd_calls"] > 0


def test_a_parameter_without_a_gradient_takes_no_part():
    model = network()
    optimizer = FOAM(model.named_parameters(), **OPTIONS)
    optimizer.step()
    assert optimizer.stats()["steps"] == 0 and bits(model) == bits(network())
    model[2].requires_grad_(False)
    train(model, optimizer, range(4))
    assert bits(model)[2:] == bits(network())[2:] and bits(model)[0] != bits(network())[0]
    checked = {factor["param"] for factor in optimizer.factor_stats() if factor["checks"]}
    assert checked == {"0.weight", "0.bias"}


# ---- precisions and loss scaling


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_precisions_train(dtype):
    model = network(dtype)
    optimizer = FOAM(model.parameters(), **OPTIONS)
    first = loss_of(model, 0).item()
    train(model, optimizer, [0] * 40)
    assert loss_of(model, 0).item() < 0.7 * first
    assert all(p.dtype == dtype for p in model.parameters())


def test_bfloat16_models_have_float32_statistics():
    model = network(torch.bfloat16)
    optimizer = FOAM(model.named_parameters(), **OPTIONS)
    train(model, optimizer, range(4))
    with tempfile.NamedTemporaryFile() as file:
        file.write(optimizer.state_dict()["param_groups"][0]["foam_state"].numpy().tobytes())
        file.flush()
        tensors, _ = read(file.name)
    kinds = {str(tensor.dtype) for name, tensor in tensors.items() if name.endswith(("statistic", "basis", "filter"))}
    assert kinds == {"float32"}


def test_a_model_cast_before_the_first_step_is_followed():
    model = network()
    optimizer = FOAM(model.parameters(), **OPTIONS)
    model.bfloat16()
    train(model, optimizer, range(3))
    assert optimizer.stats()["steps"] == 3


def test_grad_scaler_unscales_and_skips():
    plain, scaled = network(), network()
    train(plain, FOAM(plain.parameters(), **OPTIONS), range(4))
    optimizer = FOAM(scaled.parameters(), **OPTIONS)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(scaled, step)).backward()
        scaler.step(optimizer)
        scaler.update()
    # Powers of two scale without rounding: not a bit differs.
    assert bits(plain) == bits(scaled) and scaler.get_scale() == 1024.0
    before = bits(scaled)
    optimizer.zero_grad()
    scaler.scale(loss_of(scaled, 4)).backward()
    scaled[0].weight.grad[0, 0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert bits(scaled) == before and scaler.get_scale() == 512.0 and optimizer.stats()["steps"] == 4


def test_grad_scaler_serves_float16_models_too():
    plain, scaled = network(torch.float16), network(torch.float16)
    train(plain, FOAM(plain.parameters(), **OPTIONS), range(3))
    optimizer = FOAM(scaled.parameters(), **OPTIONS)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(scaled, step)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert bits(plain) == bits(scaled) and optimizer.stats()["steps"] == 3


def test_trainers_may_clip_where_the_scaler_can_unscale():
    # Lightning refuses to clip the gradients of optimizers that say they unscale on their own.
    assert FOAM(network().parameters())._step_supports_amp_scaling is False
    assert FOAM(network(torch.bfloat16).parameters())._step_supports_amp_scaling is False
    assert FOAM(network(torch.float16).parameters())._step_supports_amp_scaling is True


def test_grad_scaler_after_clipping_does_not_unscale_twice():
    plain, scaled = network(), network()
    reference = FOAM(plain.parameters(), **OPTIONS)
    optimizer = FOAM(scaled.parameters(), **OPTIONS)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(3):
        reference.zero_grad()
        loss_of(plain, step).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        reference.step()
        optimizer.zero_grad()
        scaler.scale(loss_of(scaled, step)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(scaled.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    assert bits(plain) == bits(scaled)


@pytest.mark.parametrize("nonfinite", ["error", "skip"])
def test_a_gradient_that_is_not_finite_stops_all_groups(nonfinite):
    model = network()
    optimizer = FOAM(split_groups(model), nonfinite=nonfinite, **OPTIONS)
    loss_of(model, 0).backward()
    model[2].bias.grad[1] = float("nan")
    if nonfinite == "error":
        with pytest.raises(foam.NotFiniteError, match="2.bias"):
            optimizer.step()
    else:
        optimizer.step()
        assert optimizer.stats()["skipped_steps"] == 1
    assert bits(model) == bits(network()) and optimizer.stats()["steps"] == 0
    train(model, optimizer, range(2))
    assert optimizer.stats()["steps"] == 2


# ---- refused by name


def test_gradients_that_are_not_contiguous_are_copied():
    model, other = network(), network()
    optimizer, plain = FOAM(model.parameters(), **OPTIONS), FOAM(other.parameters(), **OPTIONS)
    for step in range(4):
        for m in (model, other):
            m.zero_grad()
            loss_of(m, step).backward()
        model[0].weight.grad = model[0].weight.grad.t().contiguous().t()
        assert not model[0].weight.grad.is_contiguous()
        optimizer.step()
        plain.step()
    assert bits(model) == bits(other)


def test_sparse_gradients_are_refused_by_name():
    table = nn.Embedding(10, 4, sparse=True)
    optimizer = FOAM(table.named_parameters(), **OPTIONS)
    table(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(foam.UnsupportedError, match="gradient of parameter 'weight': layout torch.sparse_coo"):
        optimizer.step()
    assert optimizer.stats()["steps"] == 0


@pytest.mark.parametrize(
    "parameter, message",
    [
        (nn.Parameter(torch.ones(3, dtype=torch.cfloat)), "dtype complex64"),
        (nn.Parameter(torch.ones(4, 3)[:, ::2]), r"not contiguous.*p\.data = p\.data\.contiguous\(\)"),
        (nn.Parameter(torch.ones(1, 3).expand(4, 3)), "not contiguous"),
        (nn.Parameter(torch.ones(3, device="meta")), "device 'meta': expected cpu or cuda"),
        (nn.Parameter(torch.ones(3, dtype=torch.int32), requires_grad=False), "dtype int32"),
    ],
    ids=["complex", "strided", "expanded", "meta", "integer"],
)
def test_parameters_that_cannot_be_used_are_refused_by_name(parameter, message):
    with pytest.raises(foam.UnsupportedError, match=f"parameter 'bad.weight': {message}"):
        FOAM([("fine", nn.Parameter(torch.ones(2))), ("bad.weight", parameter)])
    with pytest.raises(foam.UnsupportedError, match=f"parameter 'group_0.param_0': {message}"):
        FOAM([parameter])


@pytest.mark.parametrize("switch", ["foreach", "fused", "capturable", "differentiable", "maximize"])
def test_switches_without_a_meaning_here_are_refused(switch):
    with pytest.raises(foam.UnsupportedError, match=f"{switch}=True is not supported by FOAM: "):
        FOAM(network().parameters(), **{switch: True})
    with pytest.raises(foam.UnsupportedError, match=f"{switch}=True is not supported by FOAM: "):
        FOAM([{"params": network().parameters(), switch: True}])
    assert switch not in FOAM(network().parameters(), **{switch: False}).param_groups[0]


def test_options_of_other_optimizers_get_a_hint():
    with pytest.raises(foam.InvalidArgumentError, match="unknown option 'eps'.*instead of 'eps': grafting_epsilon"):
        FOAM(network().parameters(), eps=1e-8)
    with pytest.raises(foam.InvalidArgumentError, match="beta1"):
        FOAM(network().parameters(), beta1=1.5)


def test_statistics_go_to_a_csv(tmp_path):
    model = network()
    optimizer = FOAM(split_groups(model), **OPTIONS)
    for step in range(6):
        train(model, optimizer, [step])
        optimizer.to_csv(tmp_path / "stats.csv")
    rows = (tmp_path / "stats.csv").read_text().splitlines()
    assert len(rows) == 1 + 6 * len(optimizer.factor_stats())


def test_autograd_hears_of_a_step_that_an_interrupt_ended():
    weight = torch.ones(12, 9)
    logger, handler = logging.getLogger("foam"), Interrupting(KeyboardInterrupt())
    logger.addHandler(handler)
    try:
        with foam.Optimizer({"w": weight}, merge_dims=False, inject_fault="evd_chosen", check_period=1) as optimizer:
            with pytest.raises(KeyboardInterrupt):
                optimizer.step({"w": torch.randn(12, 9)})
    finally:
        logger.removeHandler(handler)
    assert weight._version == 1 and not (weight == 1).all()
