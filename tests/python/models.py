"""The small model that the tests of the torch optimizer train."""

import torch
from torch import nn

OPTIONS = {"preset": "reference", "lr": 0.01, "check_period": 3, "epsilon": 1e-4, "epsilon_max": 1e-2}


def network(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def batch(step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 12, generator=generator).to(dtype), torch.randn(8, 3, generator=generator).to(dtype)


def loss_of(model, step):
    x, y = batch(step, next(model.parameters()).dtype)
    return ((model(x) - y) ** 2).mean()


def train(model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def bits(model):
    return [p.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for p in model.parameters()]


def split_groups(model):
    named = list(model.named_parameters())
    return [
        {"params": [pair for pair in named if pair[1].ndim > 1], "weight_decay": 0.1},
        {"params": [pair for pair in named if pair[1].ndim == 1], "weight_decay": 0.0, "lr": 0.003},
    ]
