"""The study's runner: killed and started again it gives the same rows, and the page is made from them."""

import csv
import os
import signal
import subprocess
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "studies"))

RUN = [sys.executable, str(ROOT / "studies/run.py")]
SMALL = ["--tasks", "teacher,digits", "--methods", "adamw,sandwich,stale_front,soap_fast,muon", "--scale", "0.2"]
SMALL += ["--trials", "2", "--seeds", "2"]
#: 2 tasks, 5 methods, 2 trials and 2 seeds.
RUNS = 40


def variables():
    return {**os.environ, "PYTHONPATH": str(ROOT / "bindings" / "python")}


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def without_times(found):
    from training import TIMES

    assert "seconds" in TIMES and "losses" not in TIMES
    return sorted(tuple((key, value) for key, value in row.items() if key not in TIMES) for row in found)


def finish(path, *more):
    done = subprocess.run([*RUN, *SMALL, *more, "--out", str(path)], env=variables(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "runs.csv"
    assert f"{RUNS} runs" in finish(path, "--jobs", "2")
    return path


def test_killed_and_resumed_it_gives_the_same_rows(whole, tmp_path):
    path = tmp_path / "runs.csv"
    started = subprocess.Popen([*RUN, *SMALL, "--out", str(path)], env=variables(), stdout=subprocess.PIPE, text=True)
    for line in started.stdout:
        if "] 9/" in line:
            break
    started.send_signal(signal.SIGKILL)
    started.wait()
    started.stdout.close()
    kept = rows(path)
    assert 9 <= len(kept) < RUNS
    # What a crash in the middle of a write leaves behind.
    with open(path, "ab") as file:
        file.write(b"tune,digits,adamw,1,1")
    said = finish(path)
    assert "cut off" in said and f"{RUNS - len(kept)} runs in" in said
    assert rows(path)[: len(kept)] == kept
    assert without_times(rows(path)) == without_times(rows(whole))
    assert "0 runs in" in finish(path)


def test_rows_say_what_was_run(whole):
    found = rows(whole)
    assert {row["status"] for row in found} == {"done"}
    assert len({(r["stage"], r["task"], r["method"], r["trial"], r["seed"]) for r in found}) == RUNS
    final = [row for row in found if row["stage"] == "final"]
    assert {row["part"] for row in final} == {"test"}
    for task in ("teacher", "digits"):
        for method in ("adamw", "sandwich", "stale_front", "soap_fast", "muon"):
            tried = [r for r in found if (r["stage"], r["task"], r["method"]) == ("tune", task, method)]
            best = min(tried, key=lambda r: float(r["final_loss"]))
            chosen = {r["lr"] for r in final if (r["task"], r["method"]) == (task, method)}
            assert len(tried) == 2 and chosen == {best["lr"]}
        ruled, control = (
            [int(r["evd_calls"]) for r in final if (r["task"], r["method"]) == (task, method)]
            for method in ("sandwich", "stale_front")
        )
        # The control has as many refreshes as the rule that it is a control of: to a half by rounding, and to one
        # because a parameter's two factors share a schedule.
        assert len(set(control)) == 1 and abs(control[0] - sum(ruled) / len(ruled)) <= 1.5
    for row in found:
        losses = [float(x) for x in row["losses"].split()]
        assert len(losses) == len(row["points"].split()) == len(row["seconds_at"].split())
        assert float(row["final_loss"]) == losses[-1] and int(row["state_bytes"]) > 0


@pytest.mark.parametrize("options", [{}, {"preset": "reference", "start_step": 20}, {"preset": "soap"}])
@pytest.mark.parametrize("kind", ["uniform", "geometric", "front_loaded"])
def test_a_control_has_the_refreshes_asked_for(kind, options):
    import methods
    import schedules
    import torch

    policy = {} if options.get("preset") == "soap" else {"policy": "stale"}
    method = methods.Method("a control", {**policy, **options}, by_model=not options)
    steps = 60
    # Geometric times of SOAP have two refreshes at least, at the first step and at the next.
    for wanted in (2.0, 3.25, 5.0, 7.75) if kind == "geometric" else (1.0, 1.5, 2.0, 3.25, 5.0, 7.75):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        factors = method.optimizers(model, 1e-3)[0].stats()["factors"]
        evds = round(wanted * factors)
        schedule = schedules.matched(kind, method.options, steps, evds, factors)
        optimizer = method.optimizers(model, 1e-3, schedule)[0]
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
        assert abs(optimizer.stats()["evd_calls"] - evds) <= 1, (wanted, schedule.text())


def test_other_settings_in_the_same_file_are_refused(whole):
    before = whole.read_bytes()
    words = [*RUN, *SMALL, "--out", str(whole), "--scale", "0.3"]
    done = subprocess.run(words, env=variables(), capture_output=True, text=True)
    assert done.returncode != 0 and "scale" in done.stderr and "--out" in done.stderr
    assert whole.read_bytes() == before


def test_a_missing_package_leaves_out_its_task_alone(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    words = [*RUN, "--tasks", "characters,teacher", "--methods", "adamw", "--list", "--out", str(tmp_path / "runs.csv")]
    # No client can be found, and nothing is there yet.
    environment = {**variables(), "PATH": str(folder), "FOAM_STUDY_DATA": str(tmp_path / "data")}
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "left out: characters" in done.stdout and "jargon-text" in done.stdout
    assert "1 tasks" in done.stdout and not (tmp_path / "runs.csv").exists()


def test_the_page_is_made_from_the_rows_alone(whole, tmp_path, command):
    ablations, long = tmp_path / "ablations.csv", tmp_path / "long.csv"
    words = ["--ablations", "--tasks", "teacher", "--methods", "tau,root", "--trials", "1", "--out", str(ablations)]
    assert command(ROOT / "studies/run.py", *words).returncode == 0
    done = command(ROOT / "studies/long.py", "--task", "teacher", "--scale", "4", "--out", long)
    assert done.returncode == 0, done.stderr
    names = [row["run"] for row in rows(long)]
    assert set(names) == {"f32", "f64", "f32, another seed"}
    for name in ("runs.csv", "longer.csv"):
        (tmp_path / name).write_bytes(whole.read_bytes())
    page = tmp_path / "study.md"
    page.write_text((ROOT / "docs/study.md").read_text(encoding="utf-8"), encoding="utf-8")
    readme = tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    report = [ROOT / "studies/report.py", "--results", tmp_path, "--page", page, "--readme", readme]
    done = command(*report)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    parts = ("### teacher\n", "### digits\n", "| `sandwich` |", "`tau=0.25`", "| f64 |", "Where a method loses")
    for part in (*parts, "### digits in longer runs\n", "loses to AdamW in longer runs\n", "| – `stale_front` |"):
        assert part in text, part
    for name in ("profile", "curves", "longer", "ablations", "long"):
        assert (tmp_path / "study" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    # Made twice, it is the same.
    assert command(*report).returncode == 0
    assert page.read_text(encoding="utf-8") == text
    front = readme.read_text(encoding="utf-8")
    assert "| test loss | teacher | digits | steps | CPU time |" in front and "| FOAM, preset `default` |" in front


def test_the_page_compares_every_control_with_its_rule():
    import methods
    import report

    pairs = {(rule, control) for rule, controls in report.CONTROLS.items() for control in controls}
    assert pairs == {(how.as_many_as, name) for name, how in methods.METHODS.items() if how.as_many_as}


def test_every_default_has_rows_or_a_reason():
    """The page says of each option of the default preset what other values do, or why it has no row."""
    import foam

    page = (ROOT / "docs/study.md").read_text(encoding="utf-8")
    reasons = page.split("### Options without rows\n", 1)[1].split("\n## ", 1)[0]
    listed = [line.split(":", 1)[0] for line in reasons.split("\n- ")[1:]]
    without = {word for line in listed for word in line.split("`")[1::2]}
    varied = {row["method"].split("=")[0] for row in rows(ROOT / "studies/results/ablations.csv")} - {"default"}
    assert varied | without == set(foam.defaults()) and not varied & without


def test_options_that_lay_out_blocks_have_a_task_of_their_own():
    import run

    pairs = set(run.study_of(run.parse(["--ablations"])).pairs())
    layout = {"merge_dims=false", "keep_matrix=false", "even_blocks=false"}
    assert {method for task, method in pairs if task == "kernels"} == {"default", *layout}
    assert {task for task, method in pairs if method == "tau=0.25"} == {"digits", "dictionary", "digits5k"}


def test_the_committed_pages_are_what_the_committed_rows_give(tmp_path, command):
    pages = {"--page": ROOT / "docs/study.md", "--readme": ROOT / "README.md"}
    words = []
    for option, path in pages.items():
        copy = tmp_path / path.name
        copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        words += [option, copy]
    done = command(ROOT / "studies/report.py", *words)
    assert done.returncode == 0, done.stderr
    for path in pages.values():
        assert (tmp_path / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8"), path.name
