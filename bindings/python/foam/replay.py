"""``python -m foam replay``: feeds a golden trace's gradients to the optimizer and compares what both did.

The traces and their tolerances are described in ``tests/golden/README.md``; the Rust example ``replay`` compares the
final matrices of the factors too.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Sequence

from ._safetensors import read
from .errors import BadCheckpointError, FoamError
from .optimizer import Optimizer, Param

__all__ = ["Case", "Report", "load", "run", "main"]

SERIES = ("eps", "h", "rc", "alpha")
COUNTERS = ("check", "evd", "proxy", "reuse", "damp", "cap", "resid", "last_refresh", "branch")

_POLICIES = {
    "stale": "stale",
    "foam": "foam",
    "foam_no_adaptive_epsilon": "foam_fixed_epsilon",
    "foam_no_evd_refresh": "foam_no_refresh",
    "dr_shampoo": "diagonal_residual",
}

#: The authors' hyperparameters under their names here.
_OFFICIAL = {
    "lr": "lr",
    "epsilon": "epsilon",
    "epsilon_left": "epsilon_left",
    "epsilon_right": "epsilon_right",
    "momentum": "momentum",
    "weight_decay": "weight_decay",
    "exponent_multiplier": "exponent_multiplier",
    "max_preconditioner_dim": "max_factor_dim",
    "precondition_frequency": "check_period",
    "start_preconditioning_step": "start_step",
    "use_nadam": "nadam",
    "use_nesterov": "nesterov",
    "use_bias_correction": "bias_correction",
    "use_decoupled_weight_decay": "decoupled_weight_decay",
    "use_normalized_grafting": "normalized_grafting",
    "use_ema_momentum": "ema_momentum",
    "use_merge_dims": "merge_dims",
    "diagonal_residual_threshold": "residual_threshold",
    "matrix_root_inv_threshold": "tau",
    "max_epsilon": "epsilon_max",
}

_PAPER = {
    "p": "root",
    "f": "check_period",
    "beta": "beta2",
    "eta": "lr",
    "eps0": "epsilon",
    "eps_max": "epsilon_max",
    "tau": "tau",
}


#: The SOAP authors' hyperparameters.
_SOAP = {
    "lr": "lr",
    "weight_decay": "weight_decay",
    "eps": "grafting_epsilon",
    "precondition_frequency": "check_period",
    "max_precond_dim": "max_precond_dim",
    "merge_dims": "merge_dims",
    "precondition_1d": "precondition_1d",
    "normalize_grads": "normalize_grads",
    "correct_bias": "bias_correction",
}


class Case(NamedTuple):
    """A golden trace."""

    name: str
    steps: int
    preset: str
    options: Dict[str, Any]
    #: p of each parameter's inverse root, 0 for the option's.
    roots: List[float]
    meta: Dict[str, Any]
    tensors: Dict[str, Any]

    def start(self, precision: str) -> List[Any]:
        """The initial weights, writable copies in a precision."""
        return [self.tensors[f"p{i}.W0"].astype(_numpy_type(precision)) for i in range(len(self.roots))]

    def gradients(self, step: int, precision: str) -> List[Any]:
        """The gradients of a step, from 1."""
        kind = _numpy_type(precision)
        return [self.tensors[f"p{i}.G"][step - 1].astype(kind) for i in range(len(self.roots))]


class Report(NamedTuple):
    """How far a run is from its trace."""

    #: Largest relative error by name, beside its tolerance.
    errors: Dict[str, float]
    tolerances: Dict[str, float]
    #: Counters compared, and those that differ, as sentences.
    compared: int
    differences: List[str]

    @property
    def passed(self) -> bool:
        """Every error within its tolerance and every counter equal."""
        within = all(error <= self.tolerances[name] for name, error in self.errors.items())
        return within and not self.differences


def load(path: Any) -> Case:
    """Reads a trace; :class:`foam.BadCheckpointError` if the file is none."""
    tensors, metadata = read(path)
    if "meta" not in metadata:
        raise BadCheckpointError(f"{path}: not a golden trace: no metadata 'meta'")
    meta = json.loads(metadata["meta"])
    if meta.get("schema") != 1:
        raise BadCheckpointError(f"{path}: not a golden trace: schema {meta.get('schema')}, expected 1")
    options: Dict[str, Any] = {"num_threads": 1}
    if meta["source"] == "soap":
        _soap_options(meta["hp"], options)
        return Case(meta["name"], meta["T"], "soap", options, [0.0] * len(meta["shapes"]), meta, tensors)
    official = meta["source"] == "official"
    by_order: Sequence[float] = ()
    if official:
        by_order = _official_options(meta["hp"], options)
    else:
        options["policy"] = _POLICIES[meta["hp"]["mode"]]
        options.update((_PAPER[key], value) for key, value in meta["hp"].items() if key != "mode")
    orders = {block["param"]: len(block["dims"]) for block in meta["blocks"]}
    roots = []
    for index in range(len(meta["shapes"])):
        order = orders[index]
        roots.append(float(by_order[order]) if order < len(by_order) else 0.0)
    preset = "reference" if official else "paper"
    return Case(meta["name"], meta["T"], preset, options, roots, meta, tensors)


def _soap_options(hp: Dict[str, Any], options: Dict[str, Any]) -> None:
    """Fills in the options of a run of the SOAP authors' code."""
    options.update(policy="stale", soap_form="exact", refresh_schedule="fixed")
    options["beta1"], options["grafting_beta2"] = hp["betas"]
    options["beta2"] = hp["shampoo_beta"] if hp["shampoo_beta"] >= 0 else hp["betas"][1]
    options.update((_SOAP[key], value) for key, value in hp.items() if key not in ("betas", "shampoo_beta"))


def _official_options(hp: Dict[str, Any], options: Dict[str, Any]) -> Sequence[float]:
    """Fills in the options of a run of the authors' code; gives the roots by order of the block, if it has them."""
    by_order: Sequence[float] = ()
    policy = options["policy"] = _POLICIES[hp["preconditioner_update_mode"]]
    # The reference writes 0 into thresholds that its mode never looks at; the library refuses a 0.
    unused = {
        "foam": (),
        "foam_no_refresh": (),
        "foam_fixed_epsilon": ("max_epsilon",),
    }.get(policy, ("max_epsilon", "matrix_root_inv_threshold"))
    for key, value in hp.items():
        if key == "grafting":
            fields = value or {"type": "none"}
            options["grafting"] = fields["type"]
            options.update((f"grafting_{name}", fields[name]) for name in ("beta2", "epsilon") if name in fields)
        elif value is None or key == "preconditioner_update_mode" or key in unused:
            continue
        elif key == "betas":
            options["beta1"], options["beta2"] = value
        elif key == "inv_root_override":
            if isinstance(value, list):
                by_order, value = value, 0
            options["root"] = value
        else:
            options[_OFFICIAL[key]] = value
    return by_order


def run(case: Case, precision: str, convert: Callable[[Any], Any] = lambda array: array) -> "tuple[Report, List]":
    """Replays a case in ``"f32"`` or ``"f64"``; the report, and the weights after the last step.

    Args:
        case: the trace.
        precision: of parameters, gradients and statistics.
        convert: makes each NumPy array the array that is given to the optimizer, sharing its memory.
    """
    import numpy

    weights = case.start(precision)
    started = [weight.astype("f8") for weight in weights]
    params = [Param(convert(weight), root=root) for weight, root in zip(weights, case.roots)]
    # A trace of SOAP has the weights after every step.
    kept = {int(step) for step in case.tensors.get("w_steps", range(1, case.steps + 1))}
    rows: List[List[Any]] = [[] for _ in weights]
    comparison = _Comparison(case, precision)
    with Optimizer(params, preset=case.preset, **case.options) as optimizer:
        for step in range(1, case.steps + 1):
            optimizer.step([convert(gradient) for gradient in case.gradients(step, precision)])
            comparison.factors(step, optimizer.factor_stats())
            if step in kept:
                for row, weight in zip(rows, weights):
                    row.append(weight.astype("f8"))
    for index, row in enumerate(rows):
        expected = case.tensors[f"p{index}.W.{precision}"].astype("f8")
        moved = max(numpy.linalg.norm(after - started[index]) for after in expected)
        # Where the file has fewer rows than steps, they are the last ones.
        for ours, theirs in zip(row[len(row) - len(expected) :], expected):
            comparison.see("W", numpy.linalg.norm(ours - theirs), moved)
    return comparison.report(), weights


class _Comparison:
    def __init__(self, case: Case, precision: str) -> None:
        self.soap = case.preset == "soap"
        stated = case.meta["tolerance"][precision if precision == "f32" or self.soap else "f64_clean"]
        self.case, self.precision = case, precision
        self.tolerances = {"W": stated["W"], **{name: stated["series"] for name in SERIES if not self.soap}}
        self.errors: Dict[str, float] = {}
        self.compared = 0
        self.differences: List[str] = []
        blocks = case.meta.get("blocks", ())
        labels = [(block["id"], axis) for block in blocks for axis in range(len(block["dims"]))]
        self.labels = [f"{block}.f{axis}" for block, axis in labels]
        self.damp = case.meta.get("damp_counter_equal_without_f32_rounding", True) is not False

    def see(self, name: str, error: float, size: float) -> None:
        relative = 0.0 if error == 0 else error / size if size else float("inf")
        if not relative <= self.errors.get(name, -1.0):
            self.errors[name] = relative if relative == relative else float("inf")

    def factors(self, step: int, statistics: List[Dict[str, Any]]) -> None:
        if self.soap:
            return self._refreshes(step, statistics)
        if len(statistics) != len(self.labels):
            raise FoamError(f"{len(statistics)} factors: the trace has {len(self.labels)}")
        for label, ours in zip(self.labels, statistics):
            self._series(label, step, ours)
            self._counters(label, step, ours)

    def _refreshes(self, step: int, statistics: List[Dict[str, Any]]) -> None:
        """The authors' code makes a basis at the first step and refreshes it at every period after that."""
        expected = 1 + (step - 1) // self.case.options["check_period"]
        for ours in statistics:
            if ours["dim"] > self.case.options["max_precond_dim"]:
                continue
            self.compared += 1
            if ours["evd_calls"] != expected:
                place = f"param {ours['param_index']}, axis {ours['axis']}"
                self.differences.append(f"step {step}, {place}, evd: expected {expected}, got {ours['evd_calls']}")

    def _series(self, label: str, step: int, ours: Dict[str, Any]) -> None:
        # The trace of the residual policy keeps the residual in the proxy's column.
        proxy = "residual" if self.case.options["policy"] == "diagonal_residual" else "proxy"
        values = (ours["epsilon"], ours[proxy], ours["relative_change"], ours["alpha"])
        expected = self.case.tensors[f"{label}.series.{self.precision}"][step - 1]
        for name, value, theirs in zip(SERIES, values, expected):
            if value != value and theirs != theirs:
                continue
            # A value that the trace does not have must not exist here either: NaN becomes an infinite error.
            self.see(name, abs(value - theirs), abs(theirs))

    def _counters(self, label: str, step: int, ours: Dict[str, Any]) -> None:
        from ._structs import BRANCHES

        values = (
            ours["checks"],
            ours["evd_calls"],
            ours["proxy_calls"],
            ours["reuse_calls"],
            ours["epsilon_updates"],
            ours["cap_refreshes"],
            ours["residual_calls"],
            ours["last_refresh"] or -1,
            BRANCHES.index(ours["branch"]) if ours["last_check"] == step else 0,
        )
        expected = self.case.tensors[f"{label}.counters"][step - 1]
        for name, value, theirs in zip(COUNTERS, values, expected):
            if name == "damp" and not self.damp:
                continue
            self.compared += 1
            if value != theirs:
                self.differences.append(f"step {step}, {label}, {name}: expected {theirs}, got {value}")

    def report(self) -> Report:
        return Report(self.errors, self.tolerances, self.compared, self.differences)


def main(paths: Sequence[str]) -> int:
    """Prints each trace's errors beside the tolerances; 0 if all agree, 1 if one does not, 2 for a wrong file."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        print("replay needs NumPy: pip install numpy", file=sys.stderr)
        return 2
    passed = failed = refused = 0
    for path in paths:
        try:
            case = load(path)
        except (OSError, FoamError, KeyError, ValueError) as cause:
            print(f"replay: {cause}", file=sys.stderr)
            refused += 1
            continue
        print(f"{case.name}: {case.options['policy']}, {case.steps} steps")
        for precision in ("f64", "f32"):
            report, _ = run(case, precision)
            passed, failed = passed + report.passed, failed + (not report.passed)
            cells = "  ".join(
                f"{name} {error:.1e} (allowed {report.tolerances[name]:.1e})" for name, error in report.errors.items()
            )
            counters = f"{report.compared} counters, {len(report.differences)} differ"
            print(f"  {precision} {'PASS' if report.passed else 'FAIL'}  {cells}  {counters}")
            for difference in report.differences[:3]:
                print(f"      {difference}")
    print(f"\n{passed} passed, {failed} failed" + (f", {refused} not a trace" if refused else ""))
    return 2 if refused else 1 if failed else 0


def _numpy_type(precision: str) -> str:
    return {"f32": "f4", "f64": "f8"}[precision]
