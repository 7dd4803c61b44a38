"""The C side of a comparison: runs `trajectory` on NumPy arrays."""

from __future__ import annotations

import subprocess

import numpy as np

from foam._handle import option_text


def trajectory(
    program, folder, names, weights, gradients, preset="reference", options=(), roots=None, load=None, save=None
):
    """The weights after the C functions were given all `gradients` (a list of steps of a list of arrays)."""
    options = dict(options)
    lines = [f"preset {options.pop('preset', preset)}"]
    lines += [f"option {key} {option_text(value)}" for key, value in options.items()]
    roots = roots or [0.0] * len(weights)
    for name, weight, root in zip(names, weights, roots):
        lines.append(" ".join(map(str, ["param", name, root, *weight.shape])))
    lines += [f"bits {weights[0].itemsize * 8}", f"steps {len(gradients)}"]
    lines += [f"{word} {path}" for word, path in (("load", load), ("save", save)) if path]
    script, result = folder / "script", folder / "result"
    with open(script, "wb") as file:
        file.write(("\n".join(lines) + "\ndata\n").encode())
        for arrays in [weights, *gradients]:
            for array in arrays:
                file.write(np.ascontiguousarray(array).tobytes())
    done = subprocess.run([program, script, result], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    flat, out = np.fromfile(result, weights[0].dtype), []
    for weight in weights:
        out.append(flat[: weight.size].reshape(weight.shape))
        flat = flat[weight.size :]
    assert flat.size == 0
    return out
