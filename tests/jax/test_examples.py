"""The example trains, compares, and leaves its curves and plots."""

import re

from support import ROOT, python


def test_digits(tmp_path):
    done = python(ROOT / "examples" / "jax" / "digits.py", tmp_path)
    assert done.returncode == 0, done.stderr
    for label in ("adamw", "foam"):
        line = re.search(rf"^{label} +train loss .*: ([\d. ]+)  test ([\d.]+) %", done.stdout, re.M)
        losses = [float(loss) for loss in line[1].split()]
        assert losses[-1] < 0.1 * losses[0] and float(line[2]) > 80, done.stdout
    evds, checks = map(int, re.search(r"(\d+) eigendecompositions where .* done (\d+)", done.stdout).groups())
    assert 0 < evds < checks
    for name in ("loss.csv", "stats.csv", "loss.png", "stats.png"):
        assert (tmp_path / name).stat().st_size > 1000, name
