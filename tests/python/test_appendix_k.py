"""Appendix K of the paper through the library, at a small size."""

import json
import sys

import pytest

from conftest import ROOT

numpy = pytest.importorskip("numpy")

sys.path.insert(0, str(ROOT / "studies"))
import appendix_k  # noqa: E402


@pytest.mark.parametrize("keep", [1.0, 0.8])
def test_the_library_reports_the_papers_proxy_and_bounds_that_hold(keep):
    side, decay, size, seed = 24, 1.5, 1e-2, (1, 2)
    found = appendix_k.trial(side, decay, size, keep, seed, corrected=True)
    assert numpy.isfinite(found).all()
    true, h, certified, residual, corrected_gap, corrected = numpy.moveaxis(found, -1, 0)
    # The same draws, and h as the paper defines it.
    draw = numpy.random.default_rng(seed)
    basis = numpy.linalg.qr(draw.standard_normal((side, side)))[0]
    spectrum = numpy.arange(1, side + 1) ** -decay
    b = draw.standard_normal((side, side))
    e = b @ b.T
    e *= size * numpy.linalg.norm(spectrum) / numpy.linalg.norm(e)
    drift = (keep - 1) * numpy.diag(spectrum) + basis.T @ e @ basis
    for at_root, root in enumerate(appendix_k.ROOTS):
        for at, epsilon in enumerate(appendix_k.DAMPINGS):
            scale = (spectrum + epsilon) ** -0.5
            powers = (spectrum + epsilon) ** (-1 / root)
            change = numpy.linalg.norm(drift * scale[:, None] * scale)
            expected = change * powers.max() / numpy.linalg.norm(powers) / root
            assert abs(h[at_root, at] - expected) <= 1e-9 * expected
    if keep == 1.0:
        assert (true <= h).all() and numpy.allclose(certified, h, rtol=1e-12)
    assert (true <= certified * (1 + 1e-9)).all() and (corrected_gap <= corrected * (1 + 1e-9)).all()
    assert (corrected > 0).all() and (residual > 0).all()


def test_the_statistics_are_the_usual_ones():
    truth = numpy.arange(10.0)
    assert appendix_k.auc(truth, truth) == 1 and appendix_k.auc(truth, -truth) == 0
    assert appendix_k.auc(truth, 0 * truth) == 0.5
    assert list(appendix_k.ranks(numpy.array([3.0, 1.0, 3.0]))) == [2.5, 1.0, 2.5]


def test_the_command_prints_the_papers_statistics_beside_ours(command, tmp_path):
    out = tmp_path / "appendix_k.json"
    words = ["--sides", "16", "--trials", "2", "--corrected-trials", "1", "--parts", tmp_path / "parts", "--out", out]
    done = command(ROOT / "studies/appendix_k.py", *words)
    assert done.returncode == 0, done.stderr
    assert "h, the paper | 0.9988" in done.stdout and "corrected, libfoam, average" in done.stdout
    results = json.loads(out.read_text())["results"]
    assert results["paper"]["h"]["configurations"] == 50
    assert results["paper"]["h"]["ratio"]["above_1"] == results["average"]["certified"]["ratio"]["above_1"] == 0
    assert results["paper"]["h"]["ratio"]["samples"] == 2500
    again = command(ROOT / "studies/appendix_k.py", *words)
    assert again.returncode == 0 and json.loads(out.read_text())["results"] == results
