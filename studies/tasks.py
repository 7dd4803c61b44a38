"""The tasks of the study: a model, batches, and a loss on held-out data.

A task is a function of a seed and a scale that gives a `Task`. Everything random follows from the seed: the first
weights and the batches. How the data are cut into training, validation and test parts is fixed, and the same for all.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import data

ROOT = Path(__file__).resolve().parents[1]


class Task(NamedTuple):
    """A training problem, ready to run."""

    model: nn.Module
    #: The loss of the next batch.
    batch: Callable[[], torch.Tensor]
    #: The loss on "valid" or "test".
    evaluate: Callable[[str], float]
    steps: int


class Kind(NamedTuple):
    """What is known about a task before it is made."""

    make: Callable[[int, float], Task]
    #: The data sets it needs.
    needs: Tuple[str, ...]
    #: Steps at scale 1, and about how many seconds one of them takes with AdamW on one core.
    steps: int
    step_seconds: float
    what: str


def _rounded(count: float, least: int = 1) -> int:
    return max(least, int(round(count)))


def _parts(count: int, valid: int, test: int) -> Dict[str, torch.Tensor]:
    """Which of `count` examples belong to which part: a fixed shuffle."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(20))
    return {"test": order[:test], "valid": order[test : test + valid], "train": order[test + valid :]}


class Sampler:
    """Batches without replacement: every example once per pass, in an order that follows from the seed."""

    def __init__(self, chosen: torch.Tensor, size: int, seed: int) -> None:
        self.chosen, self.size = chosen, size
        self.generator = torch.Generator().manual_seed(seed)
        self.rest = chosen[:0]

    def __call__(self) -> torch.Tensor:
        if len(self.rest) < self.size:
            order = torch.randperm(len(self.chosen), generator=self.generator)
            self.rest = torch.cat([self.rest, self.chosen[order]])
        batch, self.rest = self.rest[: self.size], self.rest[self.size :]
        return batch


def supervised(
    model: nn.Module,
    parts: Dict[str, torch.Tensor],
    measure: Callable[[torch.Tensor], torch.Tensor],
    steps: int,
    seed: int,
    size: int,
    held_out: int = 1000,
) -> Task:
    """A task on examples with numbers; `measure` is the mean loss of those given."""
    sampler = Sampler(parts["train"], size, seed)

    def evaluate(part: str) -> float:
        chosen = parts[part][:held_out]
        with torch.no_grad():
            pieces = chosen.split(500)
            return sum(float(measure(piece)) * len(piece) for piece in pieces) / len(chosen)

    return Task(model, lambda: measure(sampler()), evaluate, steps)


def layers(*widths: int, activation: Callable[[], nn.Module]) -> nn.Sequential:
    """Linear layers with an activation between. Glorot's first weights: with torch's own, deep ones of tanh stand
    still on a plateau for hundreds of steps of AdamW, and a comparison would be about that.
    """
    made: List[nn.Module] = []
    for a, b in zip(widths, widths[1:]):
        linear = nn.Linear(a, b)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        made += [linear, activation()]
    return nn.Sequential(*made[:-1])


class Attention(nn.Module):
    """Self-attention, with causal mask or without."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*qkv, attn_mask=mask, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer block with its norms before."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.first, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.second = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.down(F.gelu(self.up(self.second(x))))


# ---- images


@functools.lru_cache(maxsize=None)
def _mnist() -> torch.Tensor:
    raw = data.load("mnist")
    both = np.concatenate([raw["train_images"], raw["test_images"]])
    return torch.from_numpy(both).reshape(-1, 784)


def autoencoder(seed: int, scale: float) -> Task:
    images = _mnist()
    parts = _parts(60000, 2000, 0)
    parts["test"] = torch.arange(60000, 70000)
    model = layers(784, 256, 128, 32, 128, 256, 784, activation=nn.Tanh)

    def measure(chosen: torch.Tensor) -> torch.Tensor:
        x = images[chosen].float() / 255
        return F.binary_cross_entropy_with_logits(model(x), x)

    return supervised(model, parts, measure, _rounded(KINDS["autoencoder"].steps * scale), seed, 256)


class ViT(nn.Module):
    """Patches of 7×7, three blocks, mean over the patches."""

    def __init__(self, width: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(49, width), nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(*(Block(width, 4, causal=False) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = x.view(-1, 4, 7, 4, 7).transpose(2, 3).reshape(-1, 16, 49)
        return self.head(self.norm(self.blocks(self.embed(patches) + self.places)).mean(1))


@functools.lru_cache(maxsize=None)
def _fashion() -> Tuple[torch.Tensor, torch.Tensor]:
    raw = data.load("fashion")
    return torch.from_numpy(raw["images"]), torch.from_numpy(raw["labels"]).long()


def vit(seed: int, scale: float) -> Task:
    images, labels = _fashion()
    model = ViT()

    def measure(chosen: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(images[chosen].float() / 255 - 0.3), labels[chosen])

    steps = _rounded(KINDS["vit"].steps * scale)
    return supervised(model, _parts(len(images), 3000, 7000), measure, steps, seed, 64)


# ---- text


class Characters(nn.Module):
    """A causal transformer over symbols."""

    def __init__(self, symbols: int, width: int = 64, blocks: int = 2, length: int = 64) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4, causal=True) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.symbols(x) + self.places(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))


@functools.lru_cache(maxsize=None)
def _symbols(name: str) -> Tuple[torch.Tensor, int]:
    raw = data.load(name)
    return torch.from_numpy(raw["symbols"]), int(raw["count"])


def _text(name: str, source: str, seed: int, scale: float) -> Task:
    text, count = _symbols(source)
    windows = text[: len(text) // 65 * 65].view(-1, 65)
    model = Characters(count)
    # Whole stretches of the text are held out, so that no neighbouring window gives a test window away.
    stretches = torch.arange(len(windows)) // 10
    parts = _parts(int(stretches[-1]) + 1, 40, 40)
    parts = {part: torch.isin(stretches, chosen).nonzero()[:, 0] for part, chosen in parts.items()}
    parts.update((part, parts[part][:: len(parts[part]) // 200]) for part in ("valid", "test"))

    def measure(chosen: torch.Tensor) -> torch.Tensor:
        x = windows[chosen].long()
        return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    return supervised(model, parts, measure, _rounded(KINDS[name].steps * scale), seed, 16, held_out=200)


def characters(seed: int, scale: float) -> Task:
    return _text("characters", "jargon", seed, scale)


def dictionary(seed: int, scale: float) -> Task:
    return _text("dictionary", "gcide", seed, scale)


# ---- tables


@functools.lru_cache(maxsize=None)
def _flights() -> Tuple[torch.Tensor, torch.Tensor]:
    raw = data.load("flights")
    return torch.from_numpy(raw["features"]), torch.from_numpy(raw["delay"])


def flights(seed: int, scale: float) -> Task:
    features, delay = _flights()
    model = layers(features.shape[1], 192, 192, 96, 1, activation=nn.GELU)

    def measure(chosen: torch.Tensor) -> torch.Tensor:
        # In units of 20 minutes; a few flights are a day late, so that squares alone would be about these.
        return F.smooth_l1_loss(model(features[chosen].float())[:, 0], delay[chosen] / 20)

    steps = _rounded(KINDS["flights"].steps * scale)
    return supervised(model, _parts(len(delay), 20000, 20000), measure, steps, seed, 256, held_out=5000)


def cancer(seed: int, scale: float) -> Task:
    raw = data.load("cancer")
    features, labels = torch.from_numpy(raw["features"]), torch.from_numpy(raw["labels"])
    parts = _parts(len(labels), 100, 100)
    known = features[parts["train"]]
    features = (features - known.mean(0)) / known.std(0)
    model = layers(30, 64, 64, 2, activation=nn.Tanh)

    def measure(chosen: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(features[chosen]), labels[chosen])

    return supervised(model, parts, measure, _rounded(KINDS["cancer"].steps * scale), seed, 64)


# ---- physics


def _solution(points: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """u of the Poisson equation −Δu = f on the unit square with u = 0 on its border, and f."""
    x, y = np.pi * points[:, 0], np.pi * points[:, 1]
    terms = [(1.0, 1, 1), (0.5, 2, 3), (0.3, 4, 1)]
    parts = [(w, (i * i + j * j) * np.pi**2, torch.sin(i * x) * torch.sin(j * y)) for w, i, j in terms]
    return sum(w * s for w, _, s in parts), sum(w * k * s for w, k, s in parts)


class Field(nn.Module):
    """A network u(x, y) that is zero on the border, with its Laplacian carried forward layer by layer."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        sizes = [2] + depth * [width] + [1]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, points: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """u and Δu, from (value, derivative, second derivative) along both axes: with z = tanh a,
        z′ = (1 − z²)a′ and z″ = (1 − z²)(a″ − 2z a′²).
        """
        value = 2 * points - 1
        first = torch.stack([torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]])]).expand(2, len(points), 2)
        second = torch.zeros_like(first)
        for place, layer in enumerate(self.layers):
            value, first, second = layer(value), first @ layer.weight.T, second @ layer.weight.T
            if place + 1 < len(self.layers):
                value = torch.tanh(value)
                slope = 1 - value**2
                second = slope * (second - 2 * value * first**2)
                first = slope * first
        # u = b·v with b = 16 x(1−x) y(1−y), so that Δu = bΔv + 2∇b·∇v + vΔb.
        x, y = points[:, 0], points[:, 1]
        v, dv, ddv = value[:, 0], first[..., 0], second[..., 0].sum(0)
        bx, by = x * (1 - x), y * (1 - y)
        cross = (1 - 2 * x) * by * dv[0] + bx * (1 - 2 * y) * dv[1]
        return 16 * bx * by * v, 16 * (bx * by * ddv + 2 * cross - 2 * (bx + by) * v)


def pinn(seed: int, scale: float) -> Task:
    model, draw = Field(), torch.Generator().manual_seed(seed)

    def points(count: int, generator: torch.Generator) -> torch.Tensor:
        return torch.rand(count, 2, generator=generator)

    def batch() -> torch.Tensor:
        chosen = points(512, draw)
        return F.mse_loss(model(chosen)[1] / 100, -_solution(chosen)[1] / 100)

    fixed = {part: points(2000, torch.Generator().manual_seed(at)) for part, at in (("valid", 7), ("test", 8))}

    def evaluate(part: str) -> float:
        """‖u − u*‖/‖u*‖ on points that are never trained on."""
        with torch.no_grad():
            exact = _solution(fixed[part])[0]
            return float((model(fixed[part])[0] - exact).norm() / exact.norm())

    return Task(model, batch, evaluate, _rounded(KINDS["pinn"].steps * scale))


# ---- speech


class Conformer(nn.Module):
    """Fourfold subsampling, two blocks (half a feed-forward, attention, convolution, half a feed-forward), CTC."""

    def __init__(self, bands: int = 40, width: int = 64, blocks: int = 2, letters: int = 29) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 5, stride=2, padding=2)
        self.then = nn.Conv1d(width, width, 5, stride=2, padding=2)
        self.blocks = nn.ModuleList(ConformerBlock(width, 4) for _ in range(blocks))
        self.places = nn.Parameter(0.02 * torch.randn(100, width))
        self.head = nn.Linear(width, letters)

    def forward(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.then(F.silu(self.first(x.transpose(1, 2))))).transpose(1, 2)
        x = x + self.places[: x.shape[1]]
        known = torch.arange(x.shape[1]) < sizes[:, None]
        for block in self.blocks:
            x = block(x, known)
        return self.head(x).log_softmax(-1)


class ConformerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(6))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width)) for _ in range(2)
        )
        self.attention = Attention(width, heads, causal=False)
        self.gate, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.depthwise = nn.Conv1d(width, width, 15, padding=7, groups=width)

    def forward(self, x: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
        x = x + self.feeds[0](self.norms[0](x)) / 2
        x = x + self.attention(self.norms[1](x), known[:, None, None, :])
        mixed = F.glu(self.gate(self.norms[2](x)), -1) * known[..., None]
        mixed = self.depthwise(mixed.transpose(1, 2)).transpose(1, 2)
        x = x + self.out(F.silu(self.norms[3](mixed)))
        x = x + self.feeds[1](self.norms[4](x)) / 2
        return self.norms[5](x)


@functools.lru_cache(maxsize=None)
def _prompts() -> Dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in data.load("prompts").items()}


def conformer(seed: int, scale: float) -> Task:
    raw = _prompts()
    model = Conformer()

    def measure(chosen: torch.Tensor) -> torch.Tensor:
        """CTC's loss per letter."""
        sizes = raw["sizes"][chosen]
        longest = int(sizes.max())
        logits = model(raw["frames"][chosen, :longest], (sizes + 3) // 4)
        lengths = raw["lengths"][chosen]
        losses = F.ctc_loss(
            logits.transpose(0, 1), raw["labels"][chosen], (sizes + 3) // 4, lengths, reduction="none"
        )
        return (losses / lengths).mean()

    steps = _rounded(KINDS["conformer"].steps * scale)
    return supervised(model, _parts(len(raw["sizes"]), 50, 60), measure, steps, seed, 12)


# ---- tasks of the ablations, of the long run and of the tests


def real(x: torch.Tensor) -> torch.Tensor:
    """In torch's default type: the long run also trains in f64."""
    return x.to(torch.get_default_dtype())


def _own_digits() -> Tuple[torch.Tensor, torch.Tensor]:
    """The digits that come with this project; examples/data/README.md describes the format."""
    raw = torch.frombuffer(bytearray((ROOT / "examples/data/digits.bin").read_bytes()), dtype=torch.uint8)
    raw = raw.reshape(-1, 41)
    bits = (raw[:, 1:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
    images = (bits.reshape(-1, 64, 5) * (1 << torch.arange(5))).sum(dim=2).float() / 16
    return images, raw[:, 0].long()


def _classified(name: str, model: nn.Module, seed: int, scale: float) -> Task:
    images, labels = _own_digits()

    def measure(chosen: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(real(images[chosen])), labels[chosen])

    steps = _rounded(KINDS[name].steps * scale)
    return supervised(model, _parts(len(labels), 300, 300), measure, steps, seed, 128)


def digits(seed: int, scale: float) -> Task:
    return _classified("digits", layers(64, 128, 64, 10, activation=nn.ReLU), seed, scale)


def kernels(seed: int, scale: float) -> Task:
    """Kernels of four dimensions, and a side of 1152, which is cut: for the options that lay out blocks."""
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1152, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )
    return _classified("kernels", model, seed, scale)


def digits5k(seed: int, scale: float) -> Task:
    """A wide autoencoder on 5,000 digits: sides up to 784, so that the block size matters."""
    images = torch.from_numpy(data.load("digits5k")["images"]).reshape(-1, 784)
    model = layers(784, 512, 48, 512, 784, activation=nn.Tanh)

    def measure(chosen: torch.Tensor) -> torch.Tensor:
        x = real(images[chosen]) / 255
        return F.binary_cross_entropy_with_logits(model(x), x)

    steps = _rounded(KINDS["digits5k"].steps * scale)
    return supervised(model, _parts(len(images), 700, 700), measure, steps, seed, 128)


def teacher(seed: int, scale: float) -> Task:
    """A small network learns another one. Needs no data: for tests."""
    fixed = torch.Generator().manual_seed(5)
    x = torch.randn(600, 12, generator=fixed)
    y = torch.tanh(x @ torch.randn(12, 8, generator=fixed)) @ torch.randn(8, 3, generator=fixed)
    model = layers(12, 16, 3, activation=nn.Tanh)

    def measure(chosen: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(real(x[chosen])), real(y[chosen]))

    return supervised(model, _parts(600, 100, 100), measure, _rounded(KINDS["teacher"].steps * scale), seed, 32)


#: The headline's tasks, the most telling first.
KINDS: Dict[str, Kind] = {
    "autoencoder": Kind(autoencoder, ("mnist",), 300, 0.016, "784-256-128-32-128-256-784 on MNIST"),
    "characters": Kind(characters, ("jargon",), 300, 0.014, "a transformer on the text of the Jargon File"),
    "vit": Kind(vit, ("fashion",), 250, 0.018, "a ViT on Fashion-MNIST"),
    "flights": Kind(flights, ("flights",), 800, 0.004, "a network on a table: how late does a flight arrive?"),
    "pinn": Kind(pinn, (), 500, 0.008, "a physics-informed network for a Poisson equation"),
    "conformer": Kind(conformer, ("prompts",), 160, 0.045, "a toy: a Conformer with CTC on 409 recorded prompts"),
    # The ablations use these, the headline does not.
    "digits": Kind(digits, (), 400, 0.002, "64-128-64-10 on 1,797 digits"),
    "dictionary": Kind(dictionary, ("gcide",), 200, 0.014, "a transformer on the text of a dictionary"),
    "digits5k": Kind(digits5k, ("digits5k",), 150, 0.018, "784-512-48-512-784 on 5,000 digits"),
    "kernels": Kind(kernels, (), 150, 0.012, "two convolutions, 1152-48-10 on 1,797 digits"),
    "cancer": Kind(cancer, ("cancer",), 300, 0.001, "30-64-64-2 on a table of 569 tumours"),
    "teacher": Kind(teacher, (), 60, 0.001, "synthetic, for tests"),
}

HEADLINE: List[str] = ["autoencoder", "characters", "vit", "flights", "pinn", "conformer"]
#: Where methods are run that are not run everywhere: further controls, and variants of other methods.
CONTROLS: List[str] = ["characters", "pinn"]
ABLATION: List[str] = ["digits", "dictionary", "digits5k"]
#: Where the options are varied that lay out blocks, which change nothing in the others.
LAYOUT: List[str] = ["kernels"]


def make(name: str, seed: int, scale: float) -> Task:
    """A task, its weights drawn from the seed."""
    torch.manual_seed(seed)
    return KINDS[name].make(seed, scale)
