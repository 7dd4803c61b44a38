"""How the library is found, and `python -m foam`: doctor, plot and replay."""

import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree as tree
import zlib

import numpy as np
import pytest

import foam
from conftest import GOLDEN, ROOT

# ---- finding the library


@pytest.fixture
def package(tmp_path):
    """A copy of the package outside any checkout, as an installed one is."""
    shutil.copytree(
        ROOT / "bindings/python/foam", tmp_path / "site/foam", ignore=shutil.ignore_patterns("lib", "__pycache__")
    )
    return tmp_path / "site"


def where(command, site, **environment):
    code = "import foam._library as l; x = l.load(); print(x.how, x.path, sep='|')"
    done = command(
        "-c", code, environment={"PYTHONPATH": str(site), "LD_LIBRARY_PATH": None, "FOAM_LIBRARY": None, **environment}
    )
    assert done.returncode == 0, done.stderr
    return tuple(done.stdout.strip().split("|"))


def test_the_variable_comes_before_the_package_and_that_before_the_system(command, package, library, tmp_path):
    system = tmp_path / "system"
    system.mkdir()
    (system / "libfoam.so.0.1").symlink_to(library)
    named = tmp_path / "named.so"
    named.symlink_to(library)
    loader = {"LD_LIBRARY_PATH": str(system)}
    assert where(command, package, **loader) == ("system loader", str(library))
    (package / "foam/lib").mkdir()
    inside = package / "foam/lib/libfoam.so"
    inside.symlink_to(library)
    assert where(command, package, **loader) == ("package", str(inside))
    assert where(command, package, FOAM_LIBRARY=str(named), **loader) == ("FOAM_LIBRARY", str(named))


def test_a_checkout_finds_its_own_build(command, package, library, tmp_path):
    checkout = tmp_path / "checkout"
    (checkout / "bindings").mkdir(parents=True)
    shutil.move(str(package), str(checkout / "bindings/python"))
    (checkout / "include").mkdir()
    for file in ("Cargo.toml", "include/foam.h"):
        (checkout / file).write_text("")
    for profile in ("debug", "release"):
        built = checkout / "target" / profile / "libfoam.so"
        built.parent.mkdir(parents=True)
        built.symlink_to(library)
        assert where(command, checkout / "bindings/python") == ("source checkout", str(built))


def test_without_a_library_everything_that_was_tried_is_listed(command, package):
    empty = {"PYTHONPATH": str(package), "LD_LIBRARY_PATH": None, "FOAM_LIBRARY": None}
    done = command("-c", "import foam; foam.defaults()", environment=empty)
    assert done.returncode == 1
    for words in (
        "LibraryError",
        "package: ",
        "foam/lib/libfoam.so: no such file",
        "system loader: libfoam.so.0.1: ",
        "FOAM_LIBRARY",
    ):
        assert words in done.stderr, done.stderr
    assert "source checkout" not in done.stderr


def test_a_named_library_that_cannot_be_used_is_not_replaced_by_another(command, tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_text("this is no library")
    foreign = tmp_path / "foreign.so"
    source = tmp_path / "foreign.c"
    source.write_text("unsigned foam_abi_version(void) { return 7u << 16 | 3; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(foreign)], check=True)
    for path, words in (
        (broken, "invalid ELF header|file too short"),
        (foreign, r"has ABI 7\.3; this package needs 0\.\d+"),
    ):
        done = command("-c", "import foam; foam.defaults()", environment={"FOAM_LIBRARY": str(path)})
        assert done.returncode == 1 and re.search(f"FOAM_LIBRARY: {path}: .*({words})", done.stderr), done.stderr


def test_importing_loads_nothing_and_needs_no_other_package(command):
    code = "import sys, foam; print(sorted({'numpy', 'torch', 'jax', 'matplotlib'} & set(sys.modules)))"
    done = command("-c", code, environment={"FOAM_LIBRARY": "/nowhere"})
    assert done.stdout.strip() == "[]", done.stderr


def test_it_works_without_numpy(command):
    code = """
import sys
sys.modules["numpy"] = None
from array import array
import foam
values = array("f", [1.0] * 12)
with foam.Optimizer({"w": memoryview(values).cast("B").cast("f", (3, 4))}, check_period=1, merge_dims=False, preset="reference") as o:
    for _ in range(3):
        o.step([memoryview(array("f", [0.1] * 12)).cast("B").cast("f", (3, 4))])
    print(o.factor_matrix("w", 0, 1).shape, values[0] < 1)
"""
    done = command("-c", code)
    assert done.stdout.strip() == "(4, 4) True", done.stderr


# ---- doctor


def test_the_doctor_reports_and_exits_with_0_without_cuda(command, library):
    done = command("-m", "foam", "doctor")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    assert all(len(row) == 3 for row in rows), done.stdout
    found = {item: result for _, item, result in rows}
    assert found["foam"] == foam.__version__ and found["build"] == foam.build_info()
    assert found["path"] == str(library) and found["trial step"] == "passed"
    assert found["ABI"].startswith("0.") and found["CPU"] and found["CPU features"]
    for name in ("libcuda", "libcublas", "libcusolver"):
        assert re.match(rf"not found; looked for {name}\.so|/.+(, version |, lacks )", found[name]), found[name]
    assert re.match("usable$|not usable: .+", found["cuda"]), found["cuda"]
    assert found["numpy"] == np.__version__


def test_the_doctor_says_what_was_tried_when_there_is_no_library(command, tmp_path):
    missing = tmp_path / "libfoam.so"
    done = command("-m", "foam", "doctor", environment={"FOAM_LIBRARY": str(missing)})
    assert done.returncode == 1
    assert re.search(rf"FOAM_LIBRARY: {missing} +\| not used: no such file", done.stdout), done.stdout
    assert "The library cannot be used" in done.stdout and "not run: there is no library" in done.stdout
    assert "not looked for: there is no library" in done.stdout


# ---- plot


def png_pixels(path):
    """The pixels of an 8-bit PNG, with every checksum verified."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, head = 8, b"", None
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0]
        if kind == b"IHDR":
            head = struct.unpack(">IIBB", body[:10])
        packed += body if kind == b"IDAT" else b""
        at += 12 + size
    width, height, depth, colour = head
    assert (depth, colour) == (8, 6)
    assert len(zlib.decompress(packed)) == height * (1 + 4 * width)
    return width, height


def svg_texts(path):
    return tree.parse(path).getroot().tag, path.read_text()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of two parameters with a snapshot every two steps."""
    path = tmp_path_factory.mktemp("csv") / "stats.csv"
    random = np.random.default_rng(0)
    weights = {"first": np.ones((12, 9), "f4"), "second": np.ones(5, "f4")}
    with foam.Optimizer(weights, preset="reference", merge_dims=False, check_period=2, epsilon=1e-3, epsilon_max=1e-1) as optimizer:
        for _ in range(30):
            optimizer.step({name: random.normal(size=w.shape).astype("f4") for name, w in weights.items()})
            if optimizer.stats()["steps"] % 2 == 0:
                optimizer.to_csv(path)
    return path


def test_a_recorded_run_is_plotted(command, recorded, tmp_path):
    done = command("-m", "foam", "plot", recorded, "--out", tmp_path / "figure")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "figure.png"), str(tmp_path / "figure.svg")]
    width, height = png_pixels(tmp_path / "figure.png")
    assert width > 1000 and height > 400
    tag, text = svg_texts(tmp_path / "figure.svg")
    assert tag == "{http://www.w3.org/2000/svg}svg"
    # matplotlib draws text as shapes, with the words in comments.
    for words in ("first axis 0 (12)", "second axis 0 (5)", "Damping ε", "Eigendecompositions", "τ = 0.75", "ε_max"):
        assert f"<!-- {words}" in text, words


def test_the_plots_show_what_was_recorded(recorded):
    from foam._runs import read_runs

    (run,) = read_runs(recorded)
    assert (run.policy, run.tau, run.epsilon_max) == ("foam", 0.75, 0.1)
    assert [(f.param, f.axis, f.dim) for f in run.factors] == [("first", 0, 12), ("first", 1, 9), ("second", 0, 5)]
    for factor in run.factors:
        assert factor.steps == list(range(2, 31, 2)) and factor.rate[0] == 100
        assert 0 < factor.rate[-1] < 100


@pytest.mark.long
def test_several_runs_of_the_train_example_give_a_plot_each(command, tmp_path):
    rows = [
        "policy,step,param,block,axis,dim,epsilon,proxy,relative_change,alpha,gap_bound,noise_floor,eigenvalue_min,eigenvalue_max,evd_calls,branch"
    ]
    for policy, proxy in (("stale", ""), ("foam", "0.5")):
        for step in (10, 20, 30):
            rows.append(f"{policy},{step},layer.weight,0,0,64,1e-6,{proxy},,,,2.8e-2,0e0,2.7e-1,{step // 10},evd_stale")
    path = tmp_path / "stats.csv"
    path.write_text("\n".join(rows) + "\n")
    done = command("-m", "foam", "plot", path, "--tau", "0.75")
    assert done.returncode == 0, done.stderr
    for policy in ("stale", "foam"):
        png_pixels(tmp_path / f"stats-{policy}.png")
    assert "this policy computes no proxy" in (tmp_path / "stats-stale.svg").read_text()
    assert "τ = 0.75" in (tmp_path / "stats-foam.svg").read_text()
    done = command("-m", "foam", "plot", path, "--policy", "foam", "--out", tmp_path / "one")
    assert done.stdout.split() == [str(tmp_path / "one.png"), str(tmp_path / "one.svg")]


@pytest.mark.long
def test_a_plot_of_many_factors_names_the_one_that_misbehaves(command, tmp_path):
    rows = ["step,param,block,axis,dim,tau,epsilon,proxy,gap_bound,checks,evd_calls,fallback_stale"]
    for step in (10, 20, 30):
        rows += [
            f"{step},layer{n},0,0,64,0.75,1e-6,0.3,0.4,{step},1,{3 if n == 17 and step == 30 else 0}" for n in range(20)
        ]
    (tmp_path / "stats.csv").write_text("\n".join(rows) + "\n")
    assert command("-m", "foam", "plot", tmp_path / "stats.csv").returncode == 0
    words = "bold: layer17 axis 0 (64): 3 eigendecompositions failed and the old basis was kept"
    assert words in (tmp_path / "stats.svg").read_text()
    healthy = [row[: row.rindex(",")] + ",0" if row.endswith(",3") else row for row in rows]
    (tmp_path / "stats.csv").write_text("\n".join(healthy) + "\n")
    assert command("-m", "foam", "plot", tmp_path / "stats.csv").returncode == 0
    assert "bold: " not in (tmp_path / "stats.svg").read_text()


def test_a_file_without_statistics_is_refused_by_name(command, tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    done = command("-m", "foam", "plot", tmp_path / "other.csv")
    assert done.returncode == 2 and "has no column 'step'" in done.stderr
    done = command("-m", "foam", "plot", tmp_path / "missing.csv")
    assert done.returncode == 2 and "missing.csv" in done.stderr


def test_plot_without_matplotlib_says_what_to_install(recorded, tmp_path):
    hidden = "import sys; sys.modules['matplotlib'] = None; from foam.__main__ import main"
    code = f"{hidden}; sys.exit(main(['plot', {str(recorded)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "bindings/python", capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "plot needs matplotlib: pip install matplotlib\n"


# ---- replay


def test_every_trace_replays(command):
    done = command("-m", "foam", "replay", *GOLDEN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" PASS ") == 2 * len(GOLDEN) == 50
    assert done.stdout.splitlines()[-1] == "50 passed, 0 failed"


def test_a_file_that_is_no_trace_is_refused_by_name(command, tmp_path):
    done = command("-m", "foam", "replay", ROOT / "README.md", GOLDEN[-1])
    assert done.returncode == 2 and "README.md: not safetensors" in done.stderr
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed, 1 not a trace"
    with foam.Optimizer([np.ones(2, "f4")]) as optimizer:
        optimizer.save(tmp_path / "state.safetensors")
    done = command("-m", "foam", "replay", tmp_path / "state.safetensors")
    assert done.returncode == 2 and "not a golden trace: no metadata 'meta'" in done.stderr


# ---- scaling


def test_scaling_says_what_many_ranks_would_do(command):
    shapes = ("q=1024x1024", "up=1024x4096", "norm=1024")
    done = command("-m", "foam", "scaling", *shapes, "--ranks", "1", "4", "--set", "max_factor_dim=256")
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    alone, four = rows[2], rows[3]
    assert (alone[0], alone[3], four[0], four[3]) == ("1", "0", "4", "2")
    assert float(four[1].split()[0]) < 0.3 * float(alone[1].split()[0])
    # 81 blocks on four ranks: nearly equal work.
    assert 1 <= float(four[2]) < 1.1
    sharded = command("-m", "foam", "scaling", *shapes, "--ranks", "4", "--sharded", "--set", "max_factor_dim=256")
    assert sharded.stdout.splitlines()[2].split("|")[4].strip() == "4"
    wrong = command("-m", "foam", "scaling", "q=12x", "--ranks", "0")
    assert wrong.returncode == 2 and "ranks = 0" in wrong.stderr


def test_doctor_says_what_is_wrong_with_a_run(command, tmp_path, recorded):
    path, random = tmp_path / "stats.csv", np.random.default_rng(0)
    weight = np.ones((12, 8), "f4")
    with foam.Optimizer({"weight": weight}, check_period=1, tau=0.001, statistic_dtype="f64") as optimizer:
        for _ in range(28):
            optimizer.step({"weight": random.normal(size=weight.shape).astype("f4")})
            optimizer.to_csv(path)
        found = optimizer.stats()["findings"]
    assert list(found) == ["always_refreshes"]
    done = command("-m", "foam", "doctor", path)
    first, said, *places = done.stdout.splitlines()
    assert done.returncode == 1 and first == "sandwich: 2 factors, 1 finding", done.stderr
    assert said == f"  always_refreshes: {found['always_refreshes']}"
    assert [place.strip() for place in places] == ["weight, block 0, axis 0 (12)", "weight, block 0, axis 1 (8)"]
    done = command("-m", "foam", "doctor", recorded)
    assert done.returncode == 0 and done.stdout == "foam: 3 factors, nothing is wrong\n", done.stderr
    done = command("-m", "foam", "doctor", tmp_path / "missing.csv")
    assert done.returncode == 2 and "missing.csv" in done.stderr
    done = command("-m", "foam", "doctor", recorded, "--policy", "stale")
    assert done.returncode == 2 and "has no policy 'stale': expected one of foam" in done.stderr
