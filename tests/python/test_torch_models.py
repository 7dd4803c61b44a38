"""Whole models given to `foam.torch.FOAM`: what is preconditioned, memory formats, names, schedules, tools of torch."""

import io
import logging
from collections import OrderedDict

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import foam
from foam.torch import FOAM, param_groups
from models import OPTIONS, batch, bits, network, train


class Language(nn.Module):
    """What language models are made of, with the output tied to the input."""

    def __init__(self, tied=True):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(30, 8)
        self.positions = nn.Parameter(torch.randn(6, 8))
        self.mix = nn.Linear(8, 8)
        self.norm = nn.LayerNorm((6, 8))
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(8, 30, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, words):
        return self.head(self.scale * self.norm(self.mix(self.tokens(words) + self.positions)))


def names(groups):
    return {group["name"]: group["param_names"] for group in groups}


# ---- what goes where


def test_a_models_parameters_are_sorted_by_what_they_are():
    groups = param_groups(Language())
    assert names(groups) == {
        "preconditioned": ["positions", "mix.weight"],
        "embeddings": ["tokens.weight"],
        "vectors": ["scale", "mix.bias", "norm.weight", "norm.bias"],
    }
    settings = {g["name"]: (g.get("grafting_only", False), g.get("weight_decay")) for g in groups}
    assert settings == {"preconditioned": (False, None), "embeddings": (True, None), "vectors": (True, 0.0)}
    assert names(param_groups(Language(tied=False)))["preconditioned"] == ["positions", "mix.weight", "head.weight"]


def test_the_user_may_say_otherwise_by_name_or_pattern():
    groups = names(param_groups(Language(), grafting_only=["positions"], preconditioned="tokens.*"))
    assert groups["embeddings"] == ["positions"]
    assert groups["preconditioned"] == ["tokens.weight", "mix.weight"]
    with pytest.raises(
        foam.InvalidArgumentError, match="no parameter is called 'position': expected one of 'positions'"
    ):
        param_groups(Language(), grafting_only=["position"])


def test_frozen_parameters_are_left_out_and_it_is_said(caplog):
    model = Language()
    model.mix.requires_grad_(False)
    with caplog.at_level(logging.INFO, logger="foam"):
        groups = names(param_groups(model))
    assert groups["preconditioned"] == ["positions"]
    assert "preconditioned (Kronecker factors): positions" in caplog.messages
    assert "embeddings (the grafted method alone): tokens.weight" in caplog.messages
    assert "left out, because requires_grad is False: 2 parameters" in caplog.messages
    model.requires_grad_(False)
    with pytest.raises(foam.InvalidArgumentError, match="Language has no parameter with requires_grad=True"):
        FOAM(model)


def test_a_model_is_taken_as_its_groups():
    words = torch.randint(30, (4, 6), generator=torch.Generator().manual_seed(1))
    models = Language(), Language()
    options = {**OPTIONS, "weight_decay": 0.1}
    for model, optimizer in zip(models, (FOAM(models[0], **options), FOAM(param_groups(models[1]), **options))):
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
            optimizer.step()
        assert {factor["param"] for factor in optimizer.factor_stats()} == {"positions", "mix.weight"}
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.1, 0.0]
    assert bits(models[0]) == bits(models[1]) != bits(Language())


def test_grafting_only_groups_take_the_grafted_methods_step_and_travel():
    model, other = network(), network()
    optimizer = FOAM([{"params": list(model.named_parameters()), "grafting_only": True}], **OPTIONS)
    train(model, optimizer, range(5))
    train(other, FOAM(other.parameters(), policy="grafting_only", **OPTIONS), range(5))
    assert bits(model) == bits(other) and optimizer.factor_stats() == []
    resumed = FOAM(model.named_parameters(), **OPTIONS)
    resumed.load_state_dict(optimizer.state_dict())
    assert resumed.param_groups[0]["grafting_only"] is True and resumed.factor_stats() == []
    optimizer.param_groups[0]["grafting_only"] = False
    with pytest.raises(
        foam.InvalidArgumentError, match="changed grafting_only from True to False after the first step"
    ):
        train(model, optimizer, [5])


# ---- memory formats


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return self.second(self.first(x).relu())


def pictures(step):
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(step))


def convolve(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        model(pictures(step)).square().mean().backward()
        optimizer.step()


def test_channels_last_parameters_train_and_resume():
    whole, half = (Convolution().to(memory_format=torch.channels_last) for _ in range(2))
    assert not whole.second.weight.is_contiguous()
    convolve(whole, FOAM(whole, **OPTIONS), range(8))
    optimizer = FOAM(half, **OPTIONS)
    address = half.second.weight.data_ptr()
    convolve(half, optimizer, range(4))
    assert half.second.weight.data_ptr() == address
    assert half.second.weight.is_contiguous(memory_format=torch.channels_last)
    resumed = FOAM(half, **OPTIONS)
    resumed.load_state_dict(optimizer.state_dict())
    convolve(half, resumed, range(4, 8))
    assert all(torch.equal(p, q) for p, q in zip(half.parameters(), whole.parameters()))
    # Another memory format is another state: said, not guessed.
    with pytest.raises(foam.BadCheckpointError, match="second.weight|first.weight"):
        FOAM(Convolution(), **OPTIONS).load_state_dict(optimizer.state_dict())


def test_a_permuted_parameter_is_what_its_contiguous_permutation_is():
    start, grads = torch.randn(5, 4, 3), [torch.randn(5, 4, 3) for _ in range(6)]
    lying = nn.Parameter(start.permute(2, 0, 1).contiguous())
    permuted = nn.Parameter(start.permute(2, 0, 1).contiguous().permute(1, 2, 0))
    assert permuted.shape == start.shape and not permuted.is_contiguous()
    optimizers = [FOAM([parameter], **OPTIONS, merge_dims=False) for parameter in (lying, permuted)]
    for grad in grads:
        lying.grad, permuted.grad = grad.permute(2, 0, 1), grad
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(lying, permuted.permute(2, 0, 1)) and not torch.equal(permuted, start)


# ---- names


def test_a_state_travels_between_plain_compiled_and_ddp_models(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrap = {
            "plain": lambda model: model,
            "compiled": lambda model: torch.compile(model, backend="eager"),
            "ddp": nn.parallel.DistributedDataParallel,
            "compiled ddp": lambda m: torch.compile(nn.parallel.DistributedDataParallel(m), backend="eager"),
            "ddp of compiled": lambda m: nn.parallel.DistributedDataParallel(torch.compile(m, backend="eager")),
        }
        whole = network()
        train(whole, FOAM(whole.named_parameters(), **OPTIONS), range(6))
        for saved_as in wrap:
            model = network()
            wrapped = wrap[saved_as](model)
            optimizer = FOAM(wrapped.named_parameters(), **OPTIONS)
            assert {factor["param"] for factor in optimizer.factor_stats()} == {
                "0.weight",
                "0.bias",
                "2.weight",
                "2.bias",
            }
            train(wrapped, optimizer, range(3))
            for loaded_as in wrap:
                other = network()
                other.load_state_dict(model.state_dict())
                wrapped = wrap[loaded_as](other)
                resumed = FOAM(wrapped.named_parameters(), **OPTIONS)
                resumed.load_state_dict(optimizer.state_dict())
                train(wrapped, resumed, range(3, 6))
                assert bits(other) == bits(whole), (saved_as, loaded_as)
    finally:
        dist.destroy_process_group()


def test_names_of_wrappers_are_left_out_only_where_they_are_wrappers():
    plain = foam._torch_groups.plain_names
    assert plain(["module.a", "module.b"]) == ["a", "b"]
    assert plain(["module.a", "head.b"]) == ["module.a", "head.b"]
    assert plain(["module.module.a", "module.head.b"]) == ["module.a", "head.b"]
    assert plain(["module._orig_mod.a.module.w", "module._orig_mod.b"]) == ["a.module.w", "b"]
    assert plain(["layers.0._orig_mod.w", "my_orig_mod.w"]) == ["layers.0.w", "my_orig_mod.w"]
    assert plain(["_orig_mod.a", "a"]) == ["_orig_mod.a", "a"]
    assert plain(["module"]) == ["module"]


# ---- schedules and compilers


def test_one_cycle_with_its_defaults_cycles_beta1(caplog):
    models = [network() for _ in range(3)]
    optimizers = [FOAM(model.parameters(), **OPTIONS) for model in models]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizers[0], max_lr=0.02, total_steps=9)
    constant = torch.optim.lr_scheduler.OneCycleLR(optimizers[2], max_lr=0.02, total_steps=9, cycle_momentum=False)
    seen = []
    for step in range(8):
        group = optimizers[0].param_groups[0]
        seen.append(group["betas"][0])
        # The same values, set by hand.
        optimizers[1].param_groups[0].update(lr=group["lr"], beta1=group["betas"][0])
        for model, optimizer in zip(models, optimizers):
            train(model, optimizer, [step])
        schedule.step()
        constant.step()
    assert seen[0] == 0.95 and min(seen) == pytest.approx(0.85, abs=0.01) and len(set(seen)) > 4
    assert bits(models[0]) == bits(models[1]) != bits(models[2])
    assert optimizers[0].stats()["steps"] == 8
    warnings = [m for m in caplog.messages if "changed at 5 steps in a row" in m]
    assert len(warnings) == 2 and "beta1 from" in warnings[0] and "cycle_momentum=False" in warnings[0]


def test_betas_are_beta1_and_beta2():
    model, other = network(), network()
    first = FOAM(model.parameters(), betas=(0.8, 0.9), **OPTIONS)
    second = FOAM([{"params": other.parameters(), "beta2": 0.9}], beta1=0.8, **OPTIONS)
    train(model, first, range(4))
    train(other, second, range(4))
    assert bits(model) == bits(other)
    assert first.param_groups[0]["betas"] == second.param_groups[0]["betas"] == (0.8, 0.9)
    with pytest.raises(foam.InvalidArgumentError, match="both betas and beta1 are given"):
        FOAM(network().parameters(), betas=(0.8, 0.9), beta1=0.7)
    with pytest.raises(foam.InvalidArgumentError, match=r"betas = 0\.9: expected two numbers"):
        FOAM(network().parameters(), betas=0.9)
    with pytest.raises(foam.InvalidArgumentError, match="beta2"):
        FOAM(network().parameters(), betas=(0.9, 1.5))


def test_a_compiled_training_step_is_an_ordinary_one(recwarn):
    model, other = network(), network()
    optimizer = FOAM(model.parameters(), **OPTIONS)

    @torch.compile(backend="eager")
    def training_step(x, y):
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()

    for step in range(6):
        training_step(*batch(step))
    train(other, FOAM(other.parameters(), **OPTIONS), range(6))
    assert bits(model) == bits(other)
    # Dynamo looked at no code of ours, and had nothing to say about it.
    assert [str(warning.message) for warning in recwarn if "foam" in str(warning.message)] == []
    torch._dynamo.reset()


def test_the_step_says_that_it_is_not_compiled():
    optimizer = FOAM(network().parameters(), **OPTIONS)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"FOAM\.step"):
        torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=True)()
    torch._dynamo.reset()


# ---- distributed tools


def test_placements_that_are_not_served_are_refused_at_construction(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1, 1))
        param = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)]))
        with pytest.raises(foam.UnsupportedError, match=r"has the placements.*at most one Shard"):
            FOAM([param], **OPTIONS)
        with pytest.raises(foam.UnsupportedError, match="a DTensor"):
            foam.Optimizer([param])
    finally:
        dist.destroy_process_group()


def test_reading_the_state_for_a_distributed_checkpoint_changes_nothing():
    model = network()
    optimizer = FOAM(model, **OPTIONS)
    train(model, optimizer, range(5))
    optimizer.zero_grad()
    before = [group["foam_state"] for group in optimizer.state_dict()["param_groups"]], bits(model)
    for _ in range(3):
        taken = get_optimizer_state_dict(model, optimizer)
    after = [group["foam_state"] for group in optimizer.state_dict()["param_groups"]], bits(model)
    assert all(torch.equal(x, y) for x, y in zip(before[0], after[0])) and before[1] == after[1]
    assert optimizer.stats()["steps"] == 5
    assert {name: int(entry["step"]) for name, entry in taken["state"].items()} == dict.fromkeys(
        ("0.weight", "0.bias", "2.weight", "2.bias"), 5
    )


def test_a_state_of_the_distributed_tools_continues_bit_for_bit():
    whole, half = network(), network()
    train(whole, FOAM(whole, **OPTIONS), range(8))
    optimizer = FOAM(half, **OPTIONS)
    train(half, optimizer, range(4))
    file = io.BytesIO()
    torch.save(get_optimizer_state_dict(half, optimizer), file)
    file.seek(0)
    resumed = FOAM(half, **OPTIONS)
    set_optimizer_state_dict(half, resumed, torch.load(file, weights_only=True))
    assert resumed.stats()["steps"] == 4
    train(half, resumed, range(4, 8))
    assert bits(half) == bits(whole)


@pytest.mark.parametrize("length", range(1, 9))
def test_a_distributed_checkpoint_is_read_into_a_new_optimizer(tmp_path, length):
    """It is read in place: every tensor of the new optimizer's state has to have the size of the one in the file. What
    the library writes may grow with the steps; how the names are long decides whether it does at the tenth.
    """

    def model():
        torch.manual_seed(0)
        return nn.Sequential(OrderedDict({"n" * length: nn.Linear(12, 3)}))

    whole, half = model(), model()
    train(whole, FOAM(whole, **OPTIONS), range(16))
    optimizer = FOAM(half, **OPTIONS)
    train(half, optimizer, range(12))
    checkpoint.save({"optimizer": get_optimizer_state_dict(half, optimizer)}, checkpoint_id=tmp_path)
    resumed = FOAM(half, **OPTIONS)
    state = {"optimizer": get_optimizer_state_dict(half, resumed)}
    checkpoint.load(state, checkpoint_id=tmp_path)
    set_optimizer_state_dict(half, resumed, state["optimizer"])
    assert resumed.stats()["steps"] == 12
    train(half, resumed, range(12, 16))
    assert bits(half) == bits(whole)


def test_a_state_without_padding_is_read_as_well():
    model = network()
    optimizer = FOAM(model.named_parameters(), **OPTIONS)
    train(model, optimizer, range(12))
    state = optimizer.state_dict()
    (group,) = state["param_groups"]
    whole = group["foam_state"]
    group["foam_state"] = whole[: optimizer._natives[0].handle.state_size()].clone()
    assert group["foam_state"].numel() < whole.numel()
    resumed = FOAM(model.named_parameters(), **OPTIONS)
    resumed.load_state_dict(state)
    assert torch.equal(resumed.state_dict()["param_groups"][0]["foam_state"], whole)
