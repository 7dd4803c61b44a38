"""`foam.Optimizer` as its users call it."""

import csv
import re
import sys

import numpy as np
import pytest

import foam
from c_side import trajectory
from problem import NAMES, OPTIONS, arrays, bits, gradients, run


# ---- creation


def test_dicts_lists_pairs_and_params_give_the_same_bits():
    grads = gradients(8)
    forms = [arrays() for _ in range(4)]
    run(forms[0], grads)
    run(list(forms[1].values()), [list(grad.values()) for grad in grads])
    run(list(forms[2].items()), grads)
    run([(name, foam.Param(weight)) for name, weight in forms[3].items()], grads)
    assert bits(forms[0]) == bits(forms[1]) == bits(forms[2]) == bits(forms[3])
    assert bits(forms[0]) != bits(arrays())


def test_names_are_the_given_ones_or_numbered():
    with foam.Optimizer(arrays()) as optimizer:
        assert optimizer.names == NAMES
    with foam.Optimizer(list(arrays().values())) as optimizer:
        assert optimizer.names == ["param_0", "param_1"]


def test_an_unknown_option_is_the_librarys_error_which_lists_the_known_ones():
    with pytest.raises(foam.InvalidArgumentError, match="known options: .*check_period.*got 'tua'") as caught:
        foam.Optimizer(arrays(), tua=0.5)
    assert (caught.value.code, caught.value.status) == (1, "FOAM_INVALID_ARGUMENT")


def test_a_value_out_of_range_is_refused_by_name():
    with pytest.raises(foam.InvalidArgumentError, match="beta1.*2"):
        foam.Optimizer(arrays(), beta1=2)
    with pytest.raises(foam.InvalidArgumentError, match="epsilon_max.*below the base damping"):
        foam.Optimizer(arrays(), preset="reference", epsilon=1.0)


def test_options_take_python_and_numpy_values_and_read_back():
    given = {
        "tau": np.float64(0.5),
        "check_period": np.int64(7),
        "merge_dims": np.bool_(False),
        "policy": "foam_certified",
    }
    with foam.Optimizer(arrays(), **given) as optimizer:
        options = optimizer.options
    assert (float(options["tau"]), options["merge_dims"], options["policy"]) == (0.5, "false", "foam_certified")
    assert float(options["check_period"]) == 7


def test_defaults_are_complete_and_the_paper_preset_differs():
    assert (foam.defaults()["policy"], foam.defaults()) == ("sandwich", foam.defaults("default"))
    reference, paper = foam.defaults("reference"), foam.defaults("paper")
    assert reference["tau"] == "0.75" and reference.keys() == paper.keys() and len(reference) > 30
    assert (reference["cadence"], paper["cadence"]) == ("reference", "paper")
    with foam.Optimizer(arrays(), preset="paper") as optimizer:
        assert optimizer.options == paper


def test_settings_of_a_parameter_act():
    plain, scaled, undecayed = arrays(), arrays(), arrays()
    grads = gradients(6)
    run(plain, grads, weight_decay=0.5)
    run([("matrix", foam.Param(scaled["matrix"], lr_scale=0.5)), ("vector", scaled["vector"])], grads, weight_decay=0.5)
    decay = foam.Param(undecayed["matrix"], weight_decay_scale=0.0)
    run([("matrix", decay), ("vector", undecayed["vector"])], grads, weight_decay=0.5)
    for other in (scaled, undecayed):
        assert not np.array_equal(other["matrix"], plain["matrix"])
        assert other["vector"].tobytes() == plain["vector"].tobytes()
    _, factors = run(
        [foam.Param(arrays()["matrix"], root=4), foam.Param(arrays()["vector"], grafting_only=True)],
        [list(grad.values()) for grad in grads],
    )
    assert [(factor["param"], factor["root"]) for factor in factors] == [("param_0", 4.0), ("param_0", 4.0)]


# ---- steps


def test_lr_and_grad_scale_are_arguments_of_a_step():
    grads = gradients(5)
    plain, given, scaled = arrays(), arrays(), arrays()
    run(plain, grads)
    with foam.Optimizer(given, **{**OPTIONS, "lr": 5.0, "max_factor_dim": 40}) as optimizer:
        for grad in grads:
            optimizer.step(grad, lr=OPTIONS["lr"])
    with foam.Optimizer(scaled, max_factor_dim=40, **OPTIONS) as optimizer:
        for grad in grads:
            optimizer.step({name: value * 4 for name, value in grad.items()}, grad_scale=0.25)
    assert bits(plain) == bits(given) == bits(scaled)
    with foam.Optimizer(arrays()) as optimizer:
        with pytest.raises(foam.InvalidArgumentError, match="lr is NaN"):
            optimizer.step(grads[0], lr=float("nan"))
        with pytest.raises(foam.InvalidArgumentError, match="lr = -1"):
            optimizer.step(grads[0], lr=-1)


def test_parameters_may_be_given_at_each_step():
    own, other = arrays(), arrays()
    with foam.Optimizer(own, lr=0.1) as optimizer:
        optimizer.step(gradients(1)[0], params=other)
        assert bits(own) == bits(arrays()) and bits(other) != bits(arrays())
        with pytest.raises(foam.ShapeMismatchError, match="parameter 'vector'"):
            optimizer.step(gradients(1)[0], params={**other, "vector": np.ones(8, "f4")})


def test_a_parameter_without_a_gradient_stands_still():
    weights, grads = arrays(), gradients(4)
    with foam.Optimizer(weights, lr=0.1) as optimizer:
        for grad in grads:
            optimizer.step({"matrix": grad["matrix"], "vector": None})
    assert weights["vector"].tobytes() == arrays()["vector"].tobytes()
    assert weights["matrix"].tobytes() != arrays()["matrix"].tobytes()


def test_wrong_sets_of_gradients_are_refused_by_name():
    grad = gradients(1)[0]
    with foam.Optimizer(arrays()) as optimizer:
        with pytest.raises(
            foam.InvalidArgumentError, match="grads has no parameter 'vectr': expected 'matrix', 'vector'"
        ):
            optimizer.step({**grad, "vectr": grad["vector"]})
        with pytest.raises(foam.InvalidArgumentError, match="grads lacks 'vector'.*None for one that takes no part"):
            optimizer.step({"matrix": grad["matrix"]})
        with pytest.raises(foam.InvalidArgumentError, match="1 grads: expected 2"):
            optimizer.step([grad["matrix"]])
        with pytest.raises(
            foam.ShapeMismatchError, match=r"gradient of parameter 'matrix'.*shape\[1\] = 40: expected 30"
        ) as caught:
            optimizer.step({**grad, "matrix": np.ones((30, 40), "f4")})
        assert caught.value.param_index == 0


def test_a_gradient_that_is_not_finite_fails_or_skips_and_changes_nothing():
    grad = gradients(1)[0]
    grad["vector"][2] = np.inf
    weights = arrays()
    with foam.Optimizer(weights) as optimizer:
        with pytest.raises(foam.NotFiniteError, match="vector") as caught:
            optimizer.step(grad)
        assert caught.value.param_index == 1
    with foam.Optimizer(weights, nonfinite="skip") as optimizer:
        assert optimizer.step(grad) is True
        assert (optimizer.stats()["steps"], optimizer.stats()["skipped_steps"]) == (0, 1)
        assert bits(weights) == bits(arrays())
        assert optimizer.step(gradients(1)[0]) is False
    assert bits(weights) != bits(arrays())


# ---- statistics


def test_stats_are_plain_and_complete():
    stats, factors = run(arrays(), gradients(9))
    assert (stats["steps"], stats["params"], stats["factors"], stats["checks"]) == (9, 2, 3, 9)
    assert stats.pop("findings") == {}
    assert all(type(value) in (int, float) for value in stats.values())
    assert [(f["param"], f["axis"], f["dim"]) for f in factors] == [
        ("matrix", 0, 40),
        ("matrix", 1, 30),
        ("vector", 0, 7),
    ]
    assert all(factor.pop("findings") == [] for factor in factors)
    assert {type(value) for factor in factors for value in factor.values()} == {int, float, str}
    assert sum(factor["evd_calls"] for factor in factors) == stats["evd_calls"] > 0


def test_matrices_of_a_factor_fit_together():
    with foam.Optimizer(arrays(), max_factor_dim=40, **OPTIONS) as optimizer:
        for grad in gradients(3):
            optimizer.step(grad)
        statistic, basis, spectrum, root = (
            optimizer.factor_matrix("matrix", 0, 1, what) for what in ("statistic", "basis", "spectrum", "inverse_root")
        )
        epsilon = optimizer.factor_stats()[1]["epsilon"]
        assert statistic.shape == basis.shape == root.shape == (30, 30) and spectrum.shape == (30,)
        np.testing.assert_allclose(basis @ basis.T, np.eye(30), atol=1e-5)
        np.testing.assert_allclose(root, basis.T @ np.diag((spectrum + epsilon) ** -0.5) @ basis, rtol=1e-3, atol=1e-4)
        assert 0 <= optimizer.exact_gap("matrix", 0, 1) < 0.01
        with pytest.raises(foam.InvalidArgumentError, match="no parameter 'metrix'"):
            optimizer.factor_matrix("metrix")
        with pytest.raises(foam.InvalidArgumentError, match="what = 'q': expected 'statistic'"):
            optimizer.factor_matrix("matrix", what="q")
        with pytest.raises(foam.InvalidArgumentError, match="axis = 5") as caught:
            optimizer.exact_gap("matrix", 0, 5)
        assert caught.value.param_index == 0


def test_the_csv_has_a_row_per_factor_for_each_call(tmp_path):
    path = tmp_path / "stats.csv"
    with foam.Optimizer(arrays(), max_factor_dim=40, **OPTIONS) as optimizer:
        for grad in gradients(6):
            optimizer.step(grad)
            optimizer.to_csv(path)
        factors = optimizer.factor_stats()
    rows = list(csv.DictReader(path.open()))
    assert [row["step"] for row in rows] == [str(step) for step in range(1, 7) for _ in factors]
    for row, factor in zip(rows[-3:], factors):
        assert float(row["epsilon"]) == factor["epsilon"] and row["branch"] == factor["branch"]
    assert rows[0]["proxy"] == ""
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with foam.Optimizer(arrays()) as optimizer:
        with pytest.raises(foam.InvalidArgumentError, match="other.csv' has other columns"):
            optimizer.to_csv(tmp_path / "other.csv")
    assert (tmp_path / "other.csv").read_text() == "a,b\n1,2\n"


# ---- checkpoints


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path):
    grads = gradients(14)
    whole, parts = arrays(), arrays()
    run(whole, grads)
    settings = {**OPTIONS, "max_factor_dim": 40}
    with foam.Optimizer(parts, **settings) as first:
        for grad in grads[:5]:
            first.step(grad)
        first.save_file(tmp_path / "state.safetensors")
        state = first.save_memory()
    assert (tmp_path / "state.safetensors").read_bytes() == state
    # In another order: names find their state.
    with foam.Optimizer(dict(reversed(list(parts.items()))), **settings) as second:
        second.load_file(tmp_path / "state.safetensors")
        for grad in grads[5:9]:
            second.step(grad)
        state = second.save_memory()
    with foam.Optimizer(dict(reversed(list(parts.items()))), **settings) as third:
        third.load_memory(memoryview(state))
        assert third.stats()["steps"] == 9
        for grad in grads[9:]:
            third.step(grad)
    assert bits(parts) == bits(whole)


def test_a_run_goes_from_python_to_c_and_back_bit_for_bit(tmp_path, c_program):
    grads = gradients(12)
    whole, parts = arrays(), arrays()
    settings = {**OPTIONS, "max_factor_dim": 40}
    run(whole, grads)
    with foam.Optimizer(parts, **settings) as optimizer:
        for grad in grads[:4]:
            optimizer.step(grad)
        optimizer.save(tmp_path / "from_python")
    continued = trajectory(
        c_program,
        tmp_path,
        NAMES,
        list(parts.values()),
        [list(grad.values()) for grad in grads[4:9]],
        options=settings,
        load=tmp_path / "from_python",
        save=tmp_path / "from_c",
    )
    parts = dict(zip(NAMES, (weight.copy() for weight in continued)))
    with foam.Optimizer(parts, **settings) as optimizer:
        optimizer.load(tmp_path / "from_c")
        for grad in grads[9:]:
            optimizer.step(grad)
    assert bits(parts) == bits(whole)


def test_bad_checkpoints_are_refused_and_change_nothing(tmp_path):
    with foam.Optimizer(arrays(), **OPTIONS) as optimizer:
        optimizer.step(gradients(1)[0])
        state = optimizer.save_memory()
        with pytest.raises(foam.BadCheckpointError):
            optimizer.load_memory(state[:-7])
        with pytest.raises(foam.BadCheckpointError):
            optimizer.load_memory(b"")
        with pytest.raises(foam.IoError, match="missing") as caught:
            optimizer.load(tmp_path / "missing")
        assert caught.value.native_code == 2
        with foam.Optimizer({"other": np.ones(7, "f4")}) as foreign:
            with pytest.raises(foam.BadCheckpointError, match="matrix|other"):
                foreign.load_memory(state)
        assert optimizer.save_memory() == state


def test_the_state_is_saved_by_the_names_that_the_other_languages_have(root):
    in_c = set(re.findall(r"\bfoam_((?:save|load)_\w+)\(", (root / "include/foam.h").read_text()))
    in_cpp = set(re.findall(r"\b((?:save|load)_\w+)\(", (root / "include/foam/optimizer.hpp").read_text()))
    in_python = {name for name in dir(foam.Optimizer) if name.startswith(("save_", "load_"))}
    in_rust = set(re.findall(r"pub fn (\w+)\(", (root / "src/api/checkpoint.rs").read_text()))
    assert in_c == in_python == in_rust == {name.replace("foam_", "") for name in in_cpp if "foam_" not in name}
    assert foam.Optimizer.save is foam.Optimizer.save_file and foam.Optimizer.load is foam.Optimizer.load_file


def test_the_rate_of_eigendecompositions_is_a_number_from_the_start():
    with foam.Optimizer(arrays(), max_factor_dim=40, **OPTIONS) as optimizer:
        assert optimizer.stats()["evd_rate"] == 0
        assert {factor["evd_rate"] for factor in optimizer.factor_stats()} == {0}
        for grad in gradients(9):
            optimizer.step(grad)
        stats = optimizer.stats()
        assert 0 < stats["evd_rate"] == stats["evd_calls"] / stats["checks"] <= 1
        assert all(factor["evd_rate"] == factor["evd_calls"] / factor["checks"] for factor in optimizer.factor_stats())


def test_a_small_matrix_keeps_its_two_factors_unless_the_authors_rule_is_asked_for(root):
    """Merged into one vector, 64 × 10 weights would have one factor of side 640, and learn worse."""
    sides = {preset: foam.plan({"w": (64, 10)}, preset=preset).params[0].factors for preset in ("default", "reference")}
    assert sides == {"default": ((64, 10),), "reference": ((640,),)}
    assert foam.plan({"w": (32, 32)}).state_bytes < 64e3

    sys.path.insert(0, str(root / "examples" / "python"))
    from numpy_mlp import digits

    images, labels = digits()
    target = np.eye(10, dtype="f4")[labels]
    weight = np.zeros((64, 10), "f4")
    with foam.Optimizer({"w": weight}, lr=1e-2) as optimizer:
        for _ in range(200):
            logits = images @ weight
            chance = np.exp(logits - logits.max(axis=1, keepdims=True))
            chance /= chance.sum(axis=1, keepdims=True)
            optimizer.step({"w": (images.T @ (chance - target) / len(images)).astype("f4")})
    assert -np.log((chance * target).sum(axis=1)).mean() < 0.25
