"""`python -m foam report`: one page about a run, with what is wrong first."""

import html
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

import foam
from foam._runs import read_runs
from foam.report import findings

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of steady gradients, and of a parameter whose gradients change their size all the time."""
    path = tmp_path_factory.mktemp("csv") / "stats.csv"
    random = np.random.default_rng(0)
    weights = {"calm": np.ones((12, 9), "f4"), "vector </script>": np.ones(5, "f4"), "wild": np.ones((6, 6), "f4")}
    steady = {name: random.normal(size=weight.shape).astype("f4") for name, weight in weights.items()}
    with foam.Optimizer(weights, preset="reference", merge_dims=False, check_period=2, epsilon=1e-3, epsilon_max=1e-2) as optimizer:
        for step in range(40):
            grads = {name: grad + 0.1 * random.normal(size=grad.shape).astype("f4") for name, grad in steady.items()}
            grads["wild"] = random.normal(size=(6, 6)).astype("f4") * 10.0 ** random.integers(-2, 3)
            optimizer.step(grads)
            if step % 2:
                optimizer.to_csv(path)
    return path


def data_of(page):
    return json.loads(re.search(r"^const data = (.*);$", page.read_text(), re.M)[1].replace("<\\/", "</"))


def test_the_page_holds_the_run(command, recorded, tmp_path):
    done = command("-m", "foam", "report", recorded, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "page.html")]
    data = data_of(tmp_path / "page.html")
    (run,), (read,) = data["runs"], read_runs(recorded)
    assert (data["title"], run["tau"], run["epsilon_max"], run["steps"]) == ("stats.csv", 0.75, 0.01, 40)
    assert len(run["factors"]) == len(read.factors) == 5
    for factor in read.factors:
        (shown,) = [f for f in run["factors"] if (f["param"], f["axis"]) == (factor.param, factor.axis)]
        assert shown["steps"] == factor.steps and shown["dim"] == factor.dim
        assert shown["epsilon"] == pytest.approx(factor.epsilon, rel=1e-5)
        assert shown["rate"] == pytest.approx(factor.rate, rel=1e-5)
    assert set(run["seconds"]) == {"inspect", "accumulate", "sense", "refresh", "redamp", "apply", "total"}
    assert run["seconds"]["total"] > 0


def test_the_page_needs_nothing_else(command, recorded, tmp_path):
    assert command("-m", "foam", "report", recorded, "--out", tmp_path / "page.html").returncode == 0
    text = (tmp_path / "page.html").read_text()
    assert not re.search(r"https?://|\bsrc=|<link|@import|\burl\(", text)
    # A parameter's name cannot leave the script.
    assert text.count("</script>") == 1


def test_factors_that_misbehave_come_first(command, recorded, tmp_path):
    assert command("-m", "foam", "report", recorded, "--out", tmp_path / "page.html").returncode == 0
    (run,) = data_of(tmp_path / "page.html")["runs"]
    flags = [bool(factor["findings"]) for factor in run["factors"]]
    assert flags == sorted(flags, reverse=True) and any(flags) and not all(flags)
    (read,) = read_runs(recorded)
    weights = {(f.param, f.axis): sum(finding.weight for finding in findings(f, read)) for f in read.factors}
    shown = [weights[f["param"], f["axis"]] for f in run["factors"]]
    assert shown == sorted(shown, reverse=True) and shown[0] > shown[-1] == 0


def test_what_is_wrong_with_a_factor_is_said():
    from foam._runs import Factor, Run

    def judged(epsilon=1e-3, bound=0.1, proxy=0.1, rate=20.0, **last):
        factor = Factor("w", 0, 0, 4, [1, 2], [epsilon] * 2, [proxy] * 2, [bound] * 2, [rate] * 2, {})
        factor.last.update({"checks": 9, **last})
        options = {"epsilon": "1e-3", "epsilon_max": "1e-2"}
        return [finding.text for finding in findings(factor, Run("foam", [factor], 0.75, 1e-2, {}, options))]

    assert judged() == []
    assert judged(fallback_stale=2, failed_evds=3) == ["2 eigendecompositions failed and the old basis was kept"]
    assert judged(failed_evds=3) == ["3 eigendecompositions failed at first"]
    assert judged(bound=3.0) == ["the bound is lately 4.0 τ"]
    assert judged(proxy=1.5) == ["the proxy is lately 2.0 τ"]
    # The library's own findings, from the twentieth check on.
    assert judged(noise_floor=1.5) == []
    (noise,) = judged(noise_floor=1.5, checks=20)
    assert noise == "rounding alone makes the proxy 1.50, above tau = 0.75; try statistic_dtype = f64, or epsilon = 0.02"
    (busy,) = judged(evd_calls=19, checks=20)
    assert busy.startswith("19 eigendecompositions at 20 checks, so that nothing is saved; try ")
    (cap,) = judged(evd_calls=15, cap_refreshes=14, checks=20)
    assert cap == "14 of 20 checks wanted more than epsilon_max; try epsilon_max = 0.1, or policy = sandwich"
    (damped,) = judged(eigenvalue_max=1e-4, checks=20)
    assert damped.startswith("epsilon = 1.00e-3 is not below the largest eigenvalue 1.00e-4")
    assert judged(bound=3.0, fallback_stale=1)[0].startswith("1 eigendecompositions failed")


def test_long_runs_are_thinned_and_keep_their_end(tmp_path, command):
    rows = ["step,param,block,axis,epsilon,proxy,evd_calls"]
    rows += [f"{step},w,0,0,1e-6,,{1 + step // 3}" for step in range(1, 3001)]
    (tmp_path / "long.csv").write_text("\n".join(rows) + "\n")
    done = command("-m", "foam", "report", tmp_path / "long.csv", "--tau", "0.5")
    assert done.stdout.split() == [str(tmp_path / "long.html")], done.stderr
    (run,) = data_of(tmp_path / "long.html")["runs"]
    (factor,) = run["factors"]
    assert len(factor["steps"]) <= 501 and factor["steps"][-1] == 3000 and run["tau"] == 0.5
    assert set(factor["proxy"]) == {None} and run["seconds"] == {}


def test_a_file_without_statistics_is_refused(command, tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    done = command("-m", "foam", "report", tmp_path / "other.csv")
    assert done.returncode == 2 and "has no column 'step'" in done.stderr
    assert not (tmp_path / "other.html").exists()


def test_there_is_a_browser_where_everything_is_run():
    if os.environ.get("FOAM_TEST_ALL") == "1":
        assert BROWSER, "no browser was found: install the package chromium"


if BROWSER:

    def browse(page, *arguments):
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--window-size=1280,1100",
            "--virtual-time-budget=3000",
        ]
        words = [BROWSER, *options, f"--user-data-dir={page.parent / 'profile'}", *arguments, page.as_uri()]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout

    def test_a_browser_shows_the_curves_and_the_table(command, recorded, tmp_path):
        from matplotlib.image import imread

        page, picture = tmp_path / "page.html", tmp_path / "page.png"
        assert command("-m", "foam", "report", recorded, "--out", page).returncode == 0
        document = browse(page, "--dump-dom")
        rows = re.findall(r"<tr[^>]*><td>(.*?)</td>", document)
        (run,) = data_of(page)["runs"]
        labels = [f"{f['param']}, block {f['block']}, axis {f['axis']}" for f in run["factors"]]
        assert [html.unescape(row) for row in rows] == labels
        assert "5 of 5 factors, " in document and "Time per step: " in document and "stats.csv: foam" in document
        browse(page, f"--screenshot={picture}")
        pixels = (imread(picture)[..., :3] * 255).round().astype(int).reshape(-1, 3)
        # The first curve's colour is on the page: the charts are not empty.
        assert (abs(pixels - [0x00, 0x72, 0xB2]).sum(axis=1) < 60).sum() > 200

    def test_a_search_and_a_zoom_narrow_what_is_shown(command, recorded, tmp_path):
        page = tmp_path / "page.html"
        assert command("-m", "foam", "report", recorded, "--out", page).returncode == 0
        # What a person does: types a name, then drags over the first chart from a quarter to half of its width.
        acting = """<script>
          const box = byId("search"), canvas = document.querySelector("canvas"), area = canvas.getBoundingClientRect();
          box.value = "WILD"; box.dispatchEvent(new Event("input"));
          canvas.setPointerCapture = () => {};
          const at = (kind, share) => canvas.dispatchEvent(new PointerEvent(kind, {
            clientX: area.left + share * area.width, clientY: area.top + 100, pointerId: 1 }));
          at("pointerdown", 0.25); at("pointermove", 0.4); at("pointerup", 0.5);
          document.title = JSON.stringify(state.range);
        </script>"""
        page.write_text(page.read_text().replace("</body>", acting + "</body>"))
        document = browse(page, "--dump-dom")
        assert re.findall(r"<tr[^>]*><td>(\w+), block", document) == ["wild", "wild"]
        assert "2 of 5 factors" in document and re.search(r'<button id="whole">', document)
        low, high = json.loads(re.search(r"<title>(.*?)</title>", document)[1])
        assert 2 < low < high < 40
