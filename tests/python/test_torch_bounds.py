"""The study of the bounds, with few steps: no true gap is above a proven bound, and NumPy agrees with the library."""

import math
import sys

import pytest

from conftest import ROOT

numpy = pytest.importorskip("numpy")

sys.path.insert(0, str(ROOT / "studies"))
import bounds  # noqa: E402

#: What rounding may do to single precision statistics.
ALLOWANCE = 1e-5


@pytest.mark.parametrize("name", ["digits", "autoencoder"])
@pytest.mark.parametrize("policy", bounds.POLICIES)
def test_no_gap_is_above_a_proven_bound(name, policy):
    follow = ("2.weight", 0, 0)
    found = bounds.run(name, policy, 50, follow)
    # Checks at steps 1, 10, 20, ..., 50, of which the first has no earlier basis.
    factors = {"digits": 6, "autoencoder": 12}[name]
    assert len(found.checks) == 5 * factors and len(found.drawn) == 5 and len(found.moments) == 50
    for check in found.checks:
        assert check.gap > 0 and check.gap <= check.scaled * (1 + ALLOWANCE), check
        assert check.gap <= check.sandwich * (1 + ALLOWANCE), check
        assert abs(check.left - check.exact) <= 1e-9, check
        if math.isfinite(check.bound):
            assert check.gap <= check.bound + ALLOWANCE, check
        if math.isfinite(check.proxy):
            assert abs(check.proxy - check.h) <= 1e-3 * check.h, check
        if policy in bounds.CERTIFIED:
            assert check.left <= found.tau + ALLOWANCE, check
    reported = [check for check in found.checks if math.isfinite(check.bound)]
    if policy == "sandwich":
        # A refresh leaves no bound of the basis before it; the bound of some checks is the sandwich itself.
        assert len(reported) == sum(not check.refreshed for check in found.checks) > factors
        assert any(abs(check.bound - check.sandwich) <= 1e-3 * check.sandwich for check in reported)
    else:
        assert len(reported) == len(found.checks)
        assert all(abs(check.bound - check.scaled) <= 1e-3 * check.scaled for check in reported)


@pytest.mark.parametrize("root", range(1, 9))
def test_the_equations_hold_for_drift_of_every_kind(root):
    draw = numpy.random.default_rng(root)
    for side in (1, 2, 7, 20):
        for loss in (0.0, 0.3, 0.9):
            spectrum = numpy.exp(3 * draw.standard_normal(side))
            basis = numpy.linalg.qr(draw.standard_normal((side, side)))[0]
            b = draw.standard_normal((side, side))
            # At least the share 1 − loss is kept, so that m = loss holds.
            statistic = (1 - loss) * (basis * spectrum) @ basis.T + draw.uniform(0, 2) * b @ b.T
            used = bounds.Operator(basis, spectrum, 1e-3 * spectrum.max())
            true = bounds.gap(statistic, used, 1 / root)
            h, scaled, sandwich = bounds.bounds(statistic, used, 1 / root, loss)
            assert h <= scaled and true <= scaled * (1 + 1e-9) and true <= sandwich * (1 + 1e-9)
            # To first order in the drift, gap and sandwich are the same.
            near = (basis * spectrum) @ basis.T + 1e-6 * spectrum.min() * (b + b.T)
            true = bounds.gap(near, used, 1 / root)
            assert abs(bounds.bounds(near, used, 1 / root, 0.0)[2] / true - 1) < 1e-2


def test_the_command_prints_the_table_and_draws(command, tmp_path):
    picture = tmp_path / "bounds.png"
    done = command(ROOT / "studies/bounds.py", "--task", "autoencoder", "--steps", "40", "--plot", picture)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if line.startswith("| autoencoder")]
    assert [row[1].strip(" `") for row in rows] == 2 * list(bounds.POLICIES)
    over, under = rows[:3], rows[3:]
    assert [int(row[2]) for row in over] == [48] * 3
    # h, the first, is no bound; the other three are.
    assert all(0 < float(share) <= 1 for row in under for share in row[3:])
    assert picture.read_bytes()[:4] == b"\x89PNG" and picture.stat().st_size < 150_000
