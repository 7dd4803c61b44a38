"""Trains a small convolutional network on the UCI digits with PyTorch, once with AdamW and once with FOAM.

    python examples/torch/digits.py

Needs torch and the package foam (from a checkout: PYTHONPATH=bindings/python). One learning rate for both, a cosine
schedule, no decay for biases and norms (FOAM sees to it on its own), and a checkpoint in the middle that the run
resumes from: the same things a training script has.
"""

import io
import time
from pathlib import Path

import torch
from torch import nn

import foam
import foam.torch

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits.bin"
EPOCHS, BATCH, LR = 8, 64, 3e-3


def digits():
    """Images in [0, 1] and labels; the format is described in examples/data/README.md."""
    data = torch.frombuffer(bytearray(DIGITS.read_bytes()), dtype=torch.uint8).reshape(-1, 41)
    bits = (data[:, 1:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    pixels = (bits.reshape(-1, 64, 5) * (1 << torch.arange(5))).sum(dim=2)
    return pixels.reshape(-1, 1, 8, 8).float() / 16, data[:, 0].long()


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def groups(model):
    named = list(model.named_parameters())
    return [
        {"params": [(name, p) for name, p in named if p.ndim > 1], "weight_decay": 1e-2},
        {"params": [(name, p) for name, p in named if p.ndim <= 1], "weight_decay": 0.0},
    ]


def train(label, make_optimizer):
    torch.manual_seed(0)
    model = network()
    optimizer = make_optimizer(model)
    steps = EPOCHS * (1437 // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    images, labels = digits()
    began, curve = time.perf_counter(), []
    for epoch in range(EPOCHS):
        if epoch == EPOCHS // 2:
            # A restart: everything goes through a file and comes back bit for bit.
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            optimizer.load_state_dict(torch.load(file, weights_only=True))
        model.train()
        losses = []
        for chosen in torch.randperm(1437).split(BATCH)[: 1437 // BATCH]:
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        curve.append(sum(losses) / len(losses))
    model.eval()
    with torch.no_grad():
        accuracy = (model(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
    shown = " ".join(f"{loss:.3f}" for loss in curve)
    print(f"{label:6} loss by epoch {shown}  test {100 * accuracy:.2f} %  {time.perf_counter() - began:.1f} s")
    return optimizer


def main():
    torch.set_num_threads(1)  # the network is small: more would only wait for each other
    print(foam.build_info())
    train("AdamW", lambda model: torch.optim.AdamW(groups(model), lr=LR, betas=(0.95, 0.995)))
    # Damping is in units of the squared gradient, and these gradients are large; kernels keep their four axes.
    options = dict(check_period=5)
    optimizer = train("FOAM", lambda model: foam.torch.FOAM(model, lr=LR, weight_decay=1e-2, **options))
    stats = optimizer.stats()
    print(
        f"FOAM: {stats['steps']} steps, {stats['evd_calls']} eigendecompositions where stale Shampoo would have done "
        f"{stats['checks']}, {1e3 * stats['seconds_total'] / stats['steps']:.2f} ms per step"
    )
    sizes = optimizer.memory()["params"]
    largest = max(sizes, key=sizes.get)
    print(f"FOAM: {sum(sizes.values()) / 1e6:.1f} MB of state, {sizes[largest] / 1e6:.1f} MB of them for {largest}")
    for factor in optimizer.factor_stats():
        if factor["dim"] >= 32:
            print(
                f"  {factor['param']:9} axis {factor['axis']}  {factor['dim']:4}x{factor['dim']:<4} "
                f"epsilon {factor['epsilon']:.1e}  proxy {factor['proxy']:.2f}  refreshed {factor['evd_calls']} times"
            )


if __name__ == "__main__":
    main()
