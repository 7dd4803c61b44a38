"""Trains a small vision transformer on the UCI digits with JAX, once with optax.adamw and once with FOAM.

    python examples/jax/digits.py [FOLDER]      default: target/jax-digits of the checkout

Needs jax, optax and the package foam (from a checkout: PYTHONPATH=bindings/python). Writes to the folder the loss
curves (loss.csv), the statistics of every factor (stats.csv) and, with matplotlib, the plots of both. One learning rate
and one cosine schedule for both, no decay for vectors, an epoch is one compiled scan with everything donated.
"""

import csv
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import foam as package
from foam.jax import foam, foam_stats, foam_stats_csv

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "data" / "digits.bin"
EPOCHS, BATCH, LR, DECAY = 20, 64, 3e-3, 1e-2
WIDTH, HEADS, LAYERS, TRAIN = 32, 2, 2, 1437


def digits():
    """Images as 16 patches of 2x2 pixels in [0, 1], and labels; examples/data/README.md describes the format."""
    records = np.frombuffer(DIGITS.read_bytes(), np.uint8).reshape(-1, 41)
    bits = np.unpackbits(records[:, 1:], axis=1, bitorder="little").reshape(-1, 64, 5)
    pixels = (bits * (1 << np.arange(5))).sum(axis=2).reshape(-1, 4, 2, 4, 2) / 16
    return pixels.transpose(0, 1, 3, 2, 4).reshape(-1, 16, 4).astype(np.float32), records[:, 0].astype(np.int32)


def init(key):
    """The weights, as nested dicts and a list of layers."""
    keys = iter(jax.random.split(key, 64))

    def matrix(rows, columns):
        return jax.random.normal(next(keys), (rows, columns)) * rows**-0.5

    def layer():
        return {
            "norm": jnp.ones(WIDTH),
            "qkv": matrix(WIDTH, 3 * WIDTH),
            "out": matrix(WIDTH, WIDTH),
            "norm_mlp": jnp.ones(WIDTH),
            "up": {"w": matrix(WIDTH, 4 * WIDTH), "b": jnp.zeros(4 * WIDTH)},
            "down": {"w": matrix(4 * WIDTH, WIDTH), "b": jnp.zeros(WIDTH)},
        }

    return {
        "embed": matrix(4, WIDTH),
        "position": 0.1 * jax.random.normal(next(keys), (16, WIDTH)),
        "layers": [layer() for _ in range(LAYERS)],
        "head": {"w": matrix(WIDTH, 10), "b": jnp.zeros(10)},
    }


def forward(params, patches):
    x = patches @ params["embed"] + params["position"]
    for layer in params["layers"]:
        heads = (normed(x) * layer["norm"]) @ layer["qkv"]
        q, k, v = jnp.split(heads.reshape(*x.shape[:2], HEADS, -1), 3, axis=-1)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape) @ layer["out"]
        hidden = jax.nn.gelu((normed(x) * layer["norm_mlp"]) @ layer["up"]["w"] + layer["up"]["b"])
        x = x + hidden @ layer["down"]["w"] + layer["down"]["b"]
    return normed(x).mean(axis=1) @ params["head"]["w"] + params["head"]["b"]


def normed(x):
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def loss_of(params, patches, labels):
    return optax.softmax_cross_entropy_with_integer_labels(forward(params, patches), labels).mean()


def train(label, optimizer, after_epoch=lambda state: None):
    """Trains one model; the losses of all steps and what there is to print."""
    patches, labels = digits()
    params = init(jax.random.key(0))
    state, random = optimizer.init(params), np.random.default_rng(0)

    def step(carry, batch):
        params, state = carry
        loss, grads = jax.value_and_grad(loss_of)(params, *batch)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), loss

    epoch = jax.jit(lambda carry, batches: jax.lax.scan(step, carry, batches), donate_argnums=0)
    curve, began = [], time.perf_counter()
    for _ in range(EPOCHS):
        order = random.permutation(TRAIN)[: TRAIN // BATCH * BATCH].reshape(-1, BATCH)
        (params, state), losses = epoch((params, state), (patches[order], labels[order]))
        curve += np.asarray(losses).tolist()
        after_epoch(state)
    took = time.perf_counter() - began
    accuracy = float((forward(params, patches[TRAIN:]).argmax(1) == labels[TRAIN:]).mean())
    by_epoch = np.mean(np.reshape(curve, (EPOCHS, -1)), axis=1)
    shown = " ".join(f"{by_epoch[number - 1]:.4f}" for number in (1, 2, 5, 10, EPOCHS))
    print(f"{label:6} train loss after epochs 1 2 5 10 {EPOCHS}: {shown}  test {100 * accuracy:.2f} %  {took:.1f} s")
    return curve, state


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "target" / "jax-digits"
    folder.mkdir(parents=True, exist_ok=True)
    stats = folder / "stats.csv"
    stats.unlink(missing_ok=True)
    print(package.build_info(), "| jax", jax.__version__)
    schedule = optax.cosine_decay_schedule(LR, EPOCHS * (TRAIN // BATCH))
    decays = lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
    curves = {}
    curves["adamw"], _ = train("adamw", optax.adamw(schedule, 0.95, 0.995, weight_decay=DECAY, mask=decays))
    options = dict(weight_decay=DECAY, weight_decay_mask=decays)
    optimizer = foam(schedule, merge_dims=False, num_threads=2, **options)
    curves["foam"], state = train("foam", optimizer, lambda state: foam_stats_csv(stats, state))
    statistics = foam_stats(state)
    print(
        f"foam: {statistics['steps']} steps, {statistics['evd_calls']} eigendecompositions where stale Shampoo would have "
        f"done {statistics['checks']} ({100 * statistics['evd_rate']:.1f} %)"
    )
    with open(folder / "loss.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *curves])
        writer.writerows([step, *losses] for step, losses in enumerate(zip(*curves.values()), 1))
    plot(folder, curves)


def plot(folder, curves):
    """Loss curves, and damping, proxy and eigendecompositions of every factor."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print(f"statistics are in {folder}; with matplotlib there would be plots")
    from foam.plot import main as draw

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for label, losses in curves.items():
        smooth = np.convolve(losses, np.ones(11) / 11, mode="valid")
        axes.plot(np.arange(len(smooth)) + 6, smooth, label=label)
    axes.set(xlabel="step", ylabel="training loss (mean of 11 steps)", yscale="log", title="Digits transformer")
    axes.legend(frameon=False)
    axes.grid(True, color="0.9")
    figure.savefig(folder / "loss.png", dpi=144)
    print(folder / "loss.png")
    draw(str(folder / "stats.csv"), None, None, None)


if __name__ == "__main__":
    main()
