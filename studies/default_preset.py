"""Does the default preset reach AdamW's final training loss in fewer steps, with nothing tuned?

Three small tasks, five seeds. AdamW gets the best of four learning rates on a seed of its own; the preset gets the same
learning rate and no other option. Prints a row per run, and a summary.

    FOAM_LIBRARY=target/release/libfoam.so PYTHONPATH=bindings/python python studies/default_preset.py [--seeds N]
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import foam.torch

ROOT = Path(__file__).resolve().parents[1]
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
EVERY = 10


def digits():
    """Images in [0, 1] and labels; examples/data/README.md describes the format."""
    data = torch.frombuffer(bytearray((ROOT / "examples/data/digits.bin").read_bytes()), dtype=torch.uint8)
    data = data.reshape(-1, 41)
    bits = (data[:, 1:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    pixels = (bits.reshape(-1, 64, 5) * (1 << torch.arange(5))).sum(dim=2)
    return pixels.float() / 16, data[:, 0].long()


def characters():
    """The project's own documents, as numbers."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    known = sorted(set(text))
    return torch.tensor([known.index(c) for c in text]), len(known)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, symbols, width=64, blocks=2, length=64):
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, x):
        x = self.symbols(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def layers(*widths, activation):
    pairs = list(zip(widths, widths[1:]))
    made = [layer for a, b in pairs for layer in (nn.Linear(a, b), activation())]
    return nn.Sequential(*made[:-1])


def task(name, seed):
    """A model, the loss of a random batch, the loss that is reported, and the number of steps."""
    torch.manual_seed(seed)
    draw = torch.Generator().manual_seed(seed)
    if name == "characters":
        text, symbols = characters()
        model = Transformer(symbols)

        def windows(count):
            starts = torch.randint(0, len(text) - 65, (count,), generator=draw)
            return torch.stack([text[i : i + 65] for i in starts])

        def loss(x):
            return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

        fixed = windows(64)
        return model, lambda: loss(windows(16)), lambda: loss(fixed), 300
    images, labels = digits()
    if name == "digits":
        model = layers(64, 128, 64, 10, activation=nn.ReLU)
        steps, measure = 200, lambda x, y: F.cross_entropy(model(x), y)
    else:
        model = layers(64, 128, 64, 16, 64, 128, 64, activation=nn.Tanh)
        steps, measure = 300, lambda x, _: F.binary_cross_entropy_with_logits(model(x), x)

    def batch():
        chosen = torch.randint(0, len(images), (128,), generator=draw)
        return measure(images[chosen], labels[chosen])

    return model, batch, lambda: measure(images, labels), steps


def train(name, seed, make):
    """The reported losses, every ten steps; the optimizer; seconds."""
    model, batch, report, steps = task(name, seed)
    optimizer, losses, begun = make(model), [], time.perf_counter()
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        batch().backward()
        optimizer.step()
        if step % EVERY == 0:
            with torch.no_grad():
                losses.append(report().item())
    return losses, optimizer, time.perf_counter() - begun


def adamw(lr):
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--task", action="append", choices=("digits", "autoencoder", "characters"))
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    for name in chosen.task or ("digits", "autoencoder", "characters"):
        final = {lr: train(name, 100, adamw(lr))[0][-1] for lr in RATES}
        lr = min(final, key=final.get)
        wins = 0
        for seed in range(chosen.seeds):
            theirs, _, their_seconds = train(name, seed, adamw(lr))
            ours, optimizer, seconds = train(
                name, seed, lambda model: foam.torch.FOAM(model.parameters(), lr=lr, num_threads=1)
            )
            reached = next((EVERY * (i + 1) for i, loss in enumerate(ours) if loss <= theirs[-1]), None)
            wins += reached is not None and reached < EVERY * len(ours)
            stats, floor = optimizer.stats(), max(f["noise_floor"] for f in optimizer.factor_stats())
            print(
                f"{name:12} seed {seed}  lr {lr:g}  AdamW {theirs[-1]:.4f} ({their_seconds:.1f} s)  "
                f"default {ours[-1]:.4f} ({seconds:.1f} s)  reached at {reached} of {EVERY * len(ours)}  "
                f"{stats['evd_calls']} of {stats['checks']} EVDs ({100 * stats['evd_rate']:.0f} %)  noise floor {floor:.0e}",
                flush=True,
            )
        print(f"{name}: AdamW's final loss in fewer steps on {wins} of {chosen.seeds} seeds\n", flush=True)


if __name__ == "__main__":
    main()
