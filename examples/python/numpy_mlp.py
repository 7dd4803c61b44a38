"""Trains a small network on the UCI digits with NumPy alone: forward, backward, and FOAM for the update.

    python examples/python/numpy_mlp.py [stats.csv]

Needs NumPy and the package foam (from a checkout: PYTHONPATH=bindings/python). With a file name it records the statistics
of every factor; `python -m foam plot stats.csv` draws them.
"""

import sys
from pathlib import Path

import numpy as np

import foam

DIGITS = Path(__file__).resolve().parents[1] / "data" / "digits.bin"
EPOCHS, BATCH = 20, 64


def digits():
    """Images in [0, 1] and labels; the format is described in examples/data/README.md."""
    records = np.frombuffer(DIGITS.read_bytes(), np.uint8).reshape(-1, 41)
    bits = np.unpackbits(records[:, 1:], axis=1, bitorder="little").reshape(-1, 64, 5)
    pixels = (bits * (1 << np.arange(5))).sum(axis=2)
    return pixels.astype(np.float32) / 16, records[:, 0].astype(int)


def forward(w, x):
    hidden = np.maximum(x @ w["hidden.weight"] + w["hidden.bias"], 0)
    logits = hidden @ w["output.weight"] + w["output.bias"]
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, shifted / shifted.sum(axis=1, keepdims=True)


def gradients(w, x, labels):
    hidden, probability = forward(w, x)
    error = probability.copy()
    error[np.arange(len(labels)), labels] -= 1
    error /= len(labels)
    back = (error @ w["output.weight"].T) * (hidden > 0)
    loss = -np.log(probability[np.arange(len(labels)), labels]).mean()
    return loss, {
        "hidden.weight": x.T @ back,
        "hidden.bias": back.sum(axis=0),
        "output.weight": hidden.T @ error,
        "output.bias": error.sum(axis=0),
    }


def main():
    random = np.random.default_rng(0)
    images, labels = digits()
    train = slice(0, 1437)  # the usual split: the last fifth is held out
    weights = {
        "hidden.weight": random.normal(0, 64**-0.5, (64, 128)).astype(np.float32),
        "hidden.bias": np.zeros(128, np.float32),
        "output.weight": random.normal(0, 128**-0.5, (128, 10)).astype(np.float32),
        "output.bias": np.zeros(10, np.float32),
    }
    options = dict(lr=2e-3)
    with foam.Optimizer(weights, **options) as optimizer:
        print(foam.build_info())
        for epoch in range(1, EPOCHS + 1):
            losses, order = [], random.permutation(1437)
            for start in range(0, 1437 - BATCH + 1, BATCH):
                chosen = order[start : start + BATCH]
                loss, grads = gradients(weights, images[train][chosen], labels[train][chosen])
                optimizer.step(grads)  # updates the arrays in `weights` in place
                losses.append(loss)
            if len(sys.argv) > 1:
                optimizer.to_csv(sys.argv[1])
            if epoch in (1, 2, 5, 10, EPOCHS):
                _, probability = forward(weights, images[1437:])
                accuracy = (probability.argmax(axis=1) == labels[1437:]).mean()
                print(f"epoch {epoch:2}  train loss {np.mean(losses):.4f}  test accuracy {100 * accuracy:.2f} %")
        stats = optimizer.stats()
        print(
            f"{stats['steps']} steps, {stats['evd_calls']} eigendecompositions where stale Shampoo would have done "
            f"{stats['checks']}, {1e3 * stats['seconds_total'] / stats['steps']:.2f} ms per step"
        )
        for factor in optimizer.factor_stats():
            print(
                f"  {factor['param']:13} axis {factor['axis']}  {factor['dim']:4}x{factor['dim']:<4} "
                f"epsilon {factor['epsilon']:.1e}  proxy {factor['proxy']:.2f}  refreshed {factor['evd_calls']} times"
            )


if __name__ == "__main__":
    main()
