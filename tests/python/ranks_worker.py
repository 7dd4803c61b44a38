"""One rank of ``test_torch_ranks.py``: ``ranks_worker.py SCENARIO RANK SIZE FOLDER``. What it asserts, it asserts on
every rank; the reference is the same optimizer alone in the same process.
"""

import copy
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

import foam
from foam._handle import ParamSpec
from foam.scaling import scaling
from foam.torch import FOAM
from models import loss_of, network

OPTIONS = {"preset": "reference", "lr": 0.01, "check_period": 3, "epsilon": 1e-4, "epsilon_max": 1e-2, "max_factor_dim": 8, "num_threads": 1}


class Odd(nn.Module):
    """Sizes that no number of ranks divides, two types, one parameter without gradients."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(11, 17)
        self.narrow = nn.Linear(17, 3)
        self.low = nn.Linear(5, 7).to(torch.bfloat16)
        self.unused = nn.Parameter(torch.randn(6, 5))
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.one = nn.Parameter(torch.randn(1, 3))


def grads_of(model, step, missing=("unused",)):
    """The same whole gradients on every rank, whatever the parameters are."""
    generator = torch.Generator().manual_seed(step)
    for name, param in model.named_parameters():
        whole = torch.randn(param.shape, generator=generator).to(param.dtype)
        if name in missing or not param.requires_grad or (name == "one" and step % 3 == 2):
            param.grad = None
        elif isinstance(param, DTensor):
            param.grad = distribute_tensor(whole, param.device_mesh, param.placements)
        else:
            param.grad = whole


def train(model, optimizer, steps):
    for step in steps:
        grads_of(model, step)
        optimizer.step()


def bits(model):
    whole = [p.detach().full_tensor() if isinstance(p, DTensor) else p.detach() for p in model.parameters()]
    return [p.reshape(-1).view(torch.uint8).numpy().tobytes() for p in whole]


def reference(steps):
    model = Odd()
    optimizer = FOAM(model, **OPTIONS)
    train(model, optimizer, range(steps))
    return bits(model), optimizer


def sharded(size, replicas=1):
    shape = (size,) if replicas == 1 else (replicas, size // replicas)
    names = ("shard",) if replicas == 1 else ("replicate", "shard")
    model = Odd()
    # FSDP wants one type per module.
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for child in (model.first, model.narrow, model.low):
        fully_shard(child, mesh=mesh)
    fully_shard(model, mesh=mesh)
    assert all(isinstance(p, DTensor) for p in model.parameters())
    return model


def bytes_of_state(optimizer):
    return optimizer.stats()["state_bytes_host"]


def fsdp(rank, size, folder, replicas=1):
    """The bits of one process; a share of the state; as few collectives as there are."""
    expected, alone = reference(11)
    model = sharded(size, replicas)
    optimizer = FOAM(model, **OPTIONS)
    train(model, optimizer, range(10))
    before = optimizer.stats()
    train(model, optimizer, [10])
    after = optimizer.stats()
    assert bits(model) == expected
    assert after["steps"] == alone.stats()["steps"] == 11
    # Four, however many groups there are.
    collectives = after["collectives"] - before["collectives"]
    assert collectives == (4 if size > 1 else 2), collectives
    if size > 1:
        assert bytes_of_state(optimizer) < 0.8 * bytes_of_state(alone)
    # Torch's clipping sees the same norm.
    grads_of(model, 3)
    norm = nn.utils.clip_grad_norm_([p for p in model.parameters() if p.dtype == torch.float32], 1.0)
    assert torch.isfinite(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def hsdp(rank, size, folder):
    """Two replicas of every part."""
    fsdp(rank, size, folder, replicas=2)


def groups(rank, size, folder):
    """Groups with options of their own take a step with the collectives of one, and all or none of them."""

    def split(model):
        named = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
        return [
            {"params": named[:2], "weight_decay": 0.1},
            {"params": named[2:4], "lr": 0.003, "beta2": 0.9},
            {"params": named[4:]},
        ]

    alone = Odd()
    single = FOAM(split(alone), **OPTIONS)
    train(alone, single, range(7))
    replicated = Odd()
    shared = FOAM(split(replicated), process_group=dist.group.WORLD, **OPTIONS)
    model = sharded(size)
    optimizer = FOAM(split(model), **OPTIONS)
    for own, step_of, expected in ((replicated, shared, 2), (model, optimizer, 4 if size > 1 else 2)):
        for step in range(7):
            before = step_of.stats()["collectives"]
            train(own, step_of, [step])
            assert step_of.stats()["collectives"] - before == expected, (expected, step)
        assert bits(own) == bits(alone)
        kept, steps = bits(own), step_of.stats()["steps"]
        grads_of(own, 7)
        bad = own.low.bias.grad
        (bad.to_local() if isinstance(bad, DTensor) else bad).fill_(float("inf"))
        try:
            step_of.step()
            raise AssertionError("a gradient that is not finite was taken")
        except foam.NotFiniteError as error:
            assert "low.bias" in str(error), error
        assert bits(own) == kept and step_of.stats()["steps"] == steps


DIGITS = {"preset": "reference", "lr": 1e-2, "check_period": 5, "epsilon": 1e-4, "epsilon_max": 1e-2}
DIGITS = {**DIGITS, "max_factor_dim": 32, "num_threads": 1}


def digits_run(model, optimizer, rank, size, epochs=3):
    """Three epochs of the digits; every rank has its part of each batch. The losses of this rank's parts, and the
    accuracy on the rest of the data.
    """
    from test_torch_training import digits as read

    images, labels = read()
    generator, curve = torch.Generator().manual_seed(0), []
    for _ in range(epochs):
        for chosen in torch.randperm(1437, generator=generator)[:1392].split(96):
            mine = chosen.chunk(size)[rank]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
    with torch.no_grad():
        accuracy = (model(images[1437:]).argmax(1) == labels[1437:]).double().mean().item()
    return curve, accuracy


def digits_network():
    from test_torch_training import network as made

    return made()


def wrap(kind, size):
    """The digits' network on the ranks, and its optimizer."""
    model = digits_network()
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
        return model, FOAM(model, process_group=dist.group.WORLD, **DIGITS)
    shape, names = ((size,), ("shard",)) if kind == "fsdp" else ((2, size // 2), ("replicate", "shard"))
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    return model, FOAM(model, **DIGITS)


def digits(rank, size, folder):
    """DDP, FSDP2 and HSDP on real data against one process.

    If every rank has the whole batch, the mean of equal gradients is each of them (two ranks: their sum and the half
    of it are exact), and the bits are those of one process. If each has its own part of the batch, the mean over the
    parts is rounded otherwise than the mean over the batch, by about 1e-7 of a gradient, and the runs drift apart from
    there: they are compared to 2 % of the loss, and to 2 % of the accuracy.
    """
    alone = digits_network()
    expected, accuracy = digits_run(alone, FOAM(alone, **DIGITS), 0, 1)
    assert accuracy > 0.85 and sum(expected[-14:]) < 0.5 * sum(expected[:14]), (accuracy, expected)
    for kind in ("ddp", "fsdp", "hsdp") if size == 2 else ("hsdp",):
        model, optimizer = wrap(kind, size)
        curve, reached = digits_run(model, optimizer, 0, 1)
        assert curve == expected and reached == accuracy, (kind, curve, expected)
        assert bits(model) == bits(alone), kind
        model, optimizer = wrap(kind, size)
        curve, reached = digits_run(model, optimizer, rank, size)
        means = torch.tensor(curve, dtype=torch.float64)
        dist.all_reduce(means)
        means /= size
        apart = ((means - torch.tensor(expected, dtype=torch.float64)).abs() / means).max().item()
        assert apart < 0.02 and abs(reached - accuracy) < 0.02, (kind, apart, reached, accuracy)
        # All ranks have the same parameters, bit for bit.
        own = torch.tensor([hash_of(model)], dtype=torch.int64)
        everywhere = [torch.zeros_like(own) for _ in range(size)]
        dist.all_gather(everywhere, own)
        assert all(torch.equal(own, other) for other in everywhere), kind


def hash_of(model):
    import zlib

    return zlib.crc32(b"".join(bits(model)))


def training(rank, size, folder):
    """A real backward pass through fully_shard. Both ranks see the same batch: the mean is exact."""
    alone, model = network(), network()
    single = FOAM(alone, **{**OPTIONS, "max_factor_dim": 1024})
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer = FOAM(model, **{**OPTIONS, "max_factor_dim": 1024})
    for step in range(8):
        for net, opt in ((alone, single), (model, optimizer)):
            opt.zero_grad()
            x = torch.randn(8, 12, generator=torch.Generator().manual_seed(step))
            ((net(x) - 1) ** 2).mean().backward()
            opt.step()
    assert bits(model) == bits(alone)


def ddp(rank, size, folder):
    """process_group= shares the work of replicated parameters; the state dict is the plain one."""
    expected, alone = reference(11)
    model = Odd()
    optimizer = FOAM(model, process_group=dist.group.WORLD, **OPTIONS)
    train(model, optimizer, range(5))
    state = optimizer.state_dict()
    other = Odd()
    other.load_state_dict(model.state_dict())
    resumed = FOAM(other, **OPTIONS)
    resumed.load_state_dict(copy.deepcopy(state))
    train(other, resumed, range(5, 11))
    train(model, optimizer, range(5, 11))
    assert bits(model) == bits(other) == expected
    modelled(rank, size)
    if size > 1:
        assert bytes_of_state(optimizer) < 0.8 * bytes_of_state(alone)
    wrapped = nn.parallel.DistributedDataParallel(network())
    shared = FOAM(wrapped, process_group=dist.group.WORLD, **OPTIONS)
    for step in range(4):
        shared.zero_grad()
        loss_of(wrapped.module, step).backward()
        shared.step()
    everywhere = [torch.empty_like(p) for p in wrapped.parameters()]
    for place, param in zip(everywhere, wrapped.parameters()):
        place.copy_(param.detach())
        dist.broadcast(place, 0)
        assert torch.equal(place, param)


def modelled(rank, size):
    """``python -m foam scaling`` says what is measured: bytes, collectives, state."""
    torch.manual_seed(0)
    params = [("a", nn.Parameter(torch.randn(40, 24))), ("b", nn.Parameter(torch.randn(9)))]
    optimizer = FOAM([{"params": params}], process_group=dist.group.WORLD, **OPTIONS)
    specs = [ParamSpec(name, tuple(param.shape), "float32") for name, param in params]
    options = {key: value for key, value in OPTIONS.items() if key not in ("lr", "preset")}
    expected = scaling(specs, size, preset=OPTIONS["preset"], options=options)
    for _, param in params:
        param.grad = torch.ones_like(param)
    before = optimizer.stats()
    optimizer.step()
    after = optimizer.stats()
    assert after["collectives"] - before["collectives"] == expected.collectives
    sent = torch.tensor([after["bytes_sent"] - before["bytes_sent"], after["state_bytes_host"]])
    dist.all_reduce(sent, op=dist.ReduceOp.MAX)
    assert sent[0] == expected.sent, (sent, expected)
    # Arrays begin at multiples of 256 bytes.
    assert expected.state_bytes <= sent[1] < expected.state_bytes + 256 * 40, (sent, expected)


def save(rank, size, folder):
    """Torch's own tools read the state, three times, and change nothing."""
    model = sharded(size)
    optimizer = FOAM(model, **OPTIONS)
    train(model, optimizer, range(5))
    first = get_optimizer_state_dict(model, optimizer)
    steps = optimizer.stats()["steps"]
    for _ in range(3):
        again = get_optimizer_state_dict(model, optimizer)
    assert optimizer.stats()["steps"] == steps == 5
    for name, entry in first["state"].items():
        kept, seen = entry["foam"], again["state"][name]["foam"]
        assert isinstance(kept, DTensor) and torch.equal(kept.to_local(), seen.to_local()), name
    dcp.save({"model": get_model_state_dict(model), "optim": again}, checkpoint_id=folder / "dcp")
    whole = get_optimizer_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        assert not any(isinstance(entry["foam"], DTensor) for entry in whole["state"].values())
    train(model, optimizer, range(5, 11))
    assert bits(model) == reference(11)[0]
    # The plain state dict goes back in, too.
    model = sharded(size)
    optimizer = FOAM(model, **OPTIONS)
    train(model, optimizer, range(5))
    state = optimizer.state_dict()
    train(model, optimizer, range(7))
    model = sharded(size)
    train(model, FOAM(model, **OPTIONS), range(5))
    resumed = FOAM(model, **OPTIONS)
    resumed.load_state_dict(state)
    train(model, resumed, range(5, 11))
    assert bits(model) == reference(11)[0]


def load(rank, size, folder):
    """What two ranks saved, any number reads, and goes on bit for bit."""
    model = sharded(size)
    optimizer = FOAM(model, **OPTIONS)
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=folder / "dcp")
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optim"])
    assert optimizer.stats()["steps"] == 5
    train(model, optimizer, range(5, 11))
    assert bits(model) == reference(11)[0]


def faults(rank, size, folder):
    """What ranks disagree about is an error on all of them; a rank that dies is one on the others."""
    model = sharded(size)
    optimizer = FOAM(model, **OPTIONS)
    train(model, optimizer, range(2))
    before = bits(model)
    grads_of(model, 2)
    if rank == 1:
        model.first.weight.grad = None
    try:
        optimizer.step()
        raise AssertionError("a gradient on some ranks only was taken")
    except foam.InvalidArgumentError as error:
        assert "first.weight" in str(error) and "absent on rank 1" in str(error), error
    assert bits(model) == before
    grads_of(model, 2)
    if rank == 1:
        model.first.weight.grad.to_local()[0] = float("nan")
    try:
        optimizer.step()
        raise AssertionError("NaN was taken")
    except foam.NotFiniteError as error:
        assert "first.weight" in str(error), error
    assert bits(model) == before
    try:
        FOAM(sharded(size), **{**OPTIONS, "tau": 0.5 + rank / 4})
        raise AssertionError("ranks with other options were taken")
    except foam.InvalidArgumentError as error:
        assert "tau = 0.5" in str(error) and "tau = 0.75" in str(error), error
    grads_of(model, 2)
    local = [p.to_local().clone() for p in model.parameters()]
    dist.barrier()
    if rank == 1:
        os._exit(0)
    try:
        optimizer.step()
        raise AssertionError("a dead rank was not noticed")
    except foam.CollectiveError as error:
        assert "no parameter of this rank was written" in str(error), error
        assert error.__cause__ is not None
    assert all(torch.equal(p.to_local(), kept) for p, kept in zip(model.parameters(), local))
    try:
        optimizer.step()
        raise AssertionError("went on without the others")
    except foam.PoisonedError:
        pass
    os._exit(0)


if __name__ == "__main__":
    scenario, rank, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"{scenario}-{size}-store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=60))
    globals()[scenario](rank, size, folder)
    dist.barrier()
    dist.destroy_process_group()
