"""Training on real data, alone and with two processes."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from conftest import ROOT
from foam.torch import FOAM

OPTIONS = {"preset": "reference", "lr": 3e-3, "check_period": 5, "epsilon": 1e-4, "epsilon_max": 1e-2, "num_threads": 1}


def digits():
    """The format is described in examples/data/README.md."""
    data = torch.frombuffer(bytearray((ROOT / "examples/data/digits.bin").read_bytes()), dtype=torch.uint8).reshape(
        -1, 41
    )
    bits = (data[:, 1:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    pixels = (bits.reshape(-1, 64, 5) * (1 << torch.arange(5))).sum(dim=2)
    return pixels.float() / 16, data[:, 0].long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


class Cast(nn.Module):
    """Takes and gives float32 whatever the model inside is."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x.to(next(self.inside.parameters()).dtype)).float()


def losses(model, optimizer, epochs, seed=0):
    images, labels = digits()
    generator, curve = torch.Generator().manual_seed(seed), []
    for _ in range(epochs):
        total = 0.0
        for chosen in torch.randperm(1437, generator=generator).split(96):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen) / 1437
        curve.append(total)
    return curve


def test_the_digits_are_read_as_documented():
    images, labels = digits()
    assert images.shape == (1797, 64) and labels.bincount().tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]
    assert images.min() == 0 and images.max() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_falls_on_real_data(dtype):
    model = Cast(network().to(dtype))
    optimizer = FOAM(model.named_parameters(), **OPTIONS)
    curve = losses(model, optimizer, 12)
    images, labels = digits()
    accuracy = (model(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
    assert curve[-1] < 0.1 * curve[0], curve
    assert accuracy > 0.88
    stats = optimizer.stats()
    assert 0 < stats["evd_calls"] < stats["checks"] and stats["failed_evds"] == 0


def test_a_run_on_real_data_resumes_bit_for_bit(tmp_path):
    whole, half = network(), network()
    optimizer = FOAM(whole.named_parameters(), **OPTIONS)
    losses(whole, optimizer, 3, seed=1)
    losses(whole, optimizer, 3, seed=2)
    optimizer = FOAM(half.named_parameters(), **OPTIONS)
    losses(half, optimizer, 3, seed=1)
    torch.save({"model": half.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    read = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed = network()
    resumed.load_state_dict(read["model"])
    optimizer = FOAM(resumed.named_parameters(), **OPTIONS)
    optimizer.load_state_dict(read["optimizer"])
    losses(resumed, optimizer, 3, seed=2)
    assert all(torch.equal(p, q) for p, q in zip(whole.parameters(), resumed.parameters()))


def test_two_processes_with_ddp_have_equal_weights_and_match_one_process(tmp_path):
    """Each rank takes half of every batch; gloo averages the gradients."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "bindings" / "python"),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    worker = [sys.executable, str(ROOT / "tests/python/ddp_worker.py"), str(tmp_path)]
    ranks = [subprocess.Popen([*worker, str(rank)], env=environment) for rank in (0, 1)]
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    single = torch.load(tmp_path / "single.pt", weights_only=True)
    assert first["steps"] == second["steps"] == 30
    for name, weight in single["model"].items():
        assert torch.equal(first["model"][name], second["model"][name]), name
        # The order of the sum over the batch differs, so the last bits may.
        moved = (weight - single["start"][name]).norm()
        assert (first["model"][name] - weight).norm() < 2e-3 * moved and moved > 0, name
    for ours, theirs in zip(first["foam"], second["foam"]):
        assert torch.equal(ours, theirs)
