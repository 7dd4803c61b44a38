"""Appendix K of the paper, measured with the library: does the proxy find the factors that need a refresh?

    PYTHONPATH=bindings/python FOAM_LIBRARY=target/release/libfoam.so python studies/appendix_k.py [--jobs 2]

The paper's populations: A = Q diag(i^−r) Qᵀ, A_new = A + E with E = BBᵀ of a given relative size, 25 dampings. A factor
of the library gets A as statistic and is refreshed, gets A_new and is checked: its record holds the proxy h and the
proven bounds. The true gap Δ comes from an eigendecomposition of A_new. Finished parts are kept in
``target/appendix-k`` and not computed again. ``--trials 3 --sides 256`` is a smaller run.

Beside h: `certified`, theorem 1 as the library reports it, and `corrected`, the bound of the policy `sandwich`, whose
operator has diag(QᵀA_newQ) as spectrum, and so another gap. In the population `average`, A_new = 0.8·A + E: the drift
has negative parts, and the paper's inequality Δ ≤ h is no longer sure.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np  # noqa: E402

from foam import _structs  # noqa: E402
from foam._handle import _config  # noqa: E402
from foam._library import load  # noqa: E402

import workers  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
PARTS = ROOT / "target" / "appendix-k"
GOLDEN = ROOT / "tests" / "golden" / "appendix_K.json"

SIDES = (256, 512, 1024)
ROOTS = (2, 4)
DECAYS = (0.5, 1.0, 1.5, 2.0, 2.5)
SIZES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
DAMPINGS = np.logspace(-8, -2, 25)
#: What is left of A in A_new.
POPULATIONS = {"paper": 1.0, "average": 0.8}
#: As many as in the paper; fewer for the population that is not in it.
TRIALS = {"paper": 15, "average": 3}
#: Trials whose corrected bound is computed, too: it costs an inverse and a check more per damping.
CORRECTED_TRIALS = 1


# ---- a factor of the library on buffers of our own


class Factor:
    """One factor of side `n` in double precision, with the statistic that is put in. The state belongs to us
    (``foam_stack_*``), so that a check can be repeated with another damping.
    """

    #: Places in the record, see FOAM_STACK_RECORD.
    PROXY, GAP_BOUND = 1, 5

    def __init__(self, n: int, beta2: float, policy: str) -> None:
        self.library, self.beta2, self.policy = load(), beta2, policy
        self.shape = (ctypes.c_int64 * 1)(n)
        self.stack = _structs.Stack()
        self.library.call("foam_stack_init", ctypes.byref(self.stack), ctypes.sizeof(self.stack))
        self.stack.shape, self.stack.ndim, self.stack.count = self.shape, 1, 1
        self.stack.dtype = _structs.Dtype(2, 64, 1)
        config = self.config(2, 1e-8, 1.0)
        count = ctypes.c_size_t()
        words = (ctypes.byref(config), ctypes.byref(self.stack))
        size = ctypes.sizeof(_structs.StackBuffer)
        self.library.call("foam_stack_layout", *words, None, size, 0, ctypes.byref(count))
        layout = (_structs.StackBuffer * count.value)()
        self.library.call("foam_stack_layout", *words, layout, size, len(layout), ctypes.byref(count))
        kinds = {(0, 32): np.int32, (1, 32): np.uint32, (2, 32): np.float32, (2, 64): np.float64}
        self.arrays: Dict[str, np.ndarray] = {}
        for buffer in layout:
            shape = tuple(buffer.shape[: buffer.ndim])
            self.arrays[buffer.name.decode()] = np.zeros(shape, kinds[buffer.dtype.code, buffer.dtype.bits])
        self.info = np.zeros(1, np.int32)
        self.keep: List[Any] = []
        self.state = (_structs.Tensor * len(layout))(*map(self._tensor, self.arrays.values()))
        self.info_tensor = self._tensor(self.info)
        self.library.call("foam_stack_reset", *words, self.state, len(layout))
        self.empty = self.arrays["record"].copy()
        room = ctypes.c_size_t()
        self.library.call("foam_stack_workspace", *words, ctypes.byref(room))
        self.workspace = np.zeros(room.value, np.uint8)

    def _tensor(self, array: np.ndarray) -> _structs.Tensor:
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        self.keep.append((array, shape))
        code = {"i": 0, "u": 1, "f": 2}[array.dtype.kind]
        dtype = _structs.Dtype(code, 8 * array.itemsize, 1)
        return _structs.Tensor(array.ctypes.data, _structs.Device(1, 0), array.ndim, dtype, shape, None, 0)

    def config(self, root: int, epsilon: float, tau: float) -> _structs.Config:
        options = {"policy": self.policy, "root": root, "epsilon": epsilon, "epsilon_max": epsilon, "tau": tau}
        same = {"check_period": 1, "beta2": self.beta2, "noise_floor": False, "num_threads": 1}
        # Nothing is applied: the inverse root would be a product per check for nothing.
        same["keep_inverse_root"] = False
        return _config("paper", {**same, **options})

    def put(self, statistic: np.ndarray, step: int) -> None:
        """The statistic, and the number of the step that it is of."""
        self.arrays["statistic_0"][0] = statistic
        clock = self.arrays["clock"][0]
        clock[:2].view(np.uint64)[0], clock[2:].view(np.float64)[0] = step, 1.0
        self.info[:] = 0

    def check(self, root: int, epsilon: float, tau: float) -> np.ndarray:
        """A check; the doubles of the factor's record."""
        args = _structs.StackArgs()
        self.library.call("foam_stack_args_init", ctypes.byref(args), ctypes.sizeof(args))
        args.state, args.state_count = self.state, len(self.state)
        args.info = ctypes.pointer(self.info_tensor)
        args.workspace, args.workspace_size = self.workspace.ctypes.data, self.workspace.size
        config = self.config(root, epsilon, tau)
        words = (ctypes.byref(config), ctypes.byref(self.stack), ctypes.byref(args))
        self.library.call("foam_stack_check", *words)
        return self.arrays["record"][0, 0, :22].view(np.float64).copy()

    def refresh(self, statistic: np.ndarray) -> None:
        """A first eigendecomposition, of `statistic`; `measure` starts from it, with any root."""
        self.put(statistic, 1)
        self.arrays["record"][:] = self.empty
        self.check(ROOTS[0], DAMPINGS[0], 1.0)
        names = ("record", "spectrum_0", "basis_0", "fresh_spectrum_0")
        self.stale = {name: self.arrays[name].copy() for name in names if name in self.arrays}

    def measure(self, root: int, epsilon: float, tau: float) -> np.ndarray:
        """A check of the statistic that was put in, against the refreshed one."""
        for name, array in self.stale.items():
            self.arrays[name][:] = array
        self.arrays["record"][0, 0, :2].view(np.float64)[0] = epsilon
        self.info[:] = 0
        return self.check(root, epsilon, tau)


# ---- one trial


def gap(weights: np.ndarray, fresh: np.ndarray, used: np.ndarray) -> float:
    """‖P_f − P_s‖_F/‖P_s‖_F of Σ f_i u_i u_iᵀ and Σ s_j q_j q_jᵀ: Σ_ij (f_i − s_j)²(u_iᵀq_j)² has no cancellation."""
    return float(np.sqrt((weights * (fresh[:, None] - used) ** 2).sum() / (used**2).sum()))


def sandwich(h: np.ndarray, epsilon: float, root: int) -> float:
    """Theorem 2 for the spectrum diag H, in plain NumPy: what the library's bound is compared with."""
    a = np.diag(h) + epsilon
    scale = 1 / np.sqrt(a)
    m = h * scale[:, None] * scale
    np.fill_diagonal(m, 0)
    f = a ** (-1 / root)
    difference = a[:, None] - a
    near = np.abs(difference) < 1e-6 * a
    c = np.where(near, (f / a)[:, None] / root, (f - f[:, None]) / np.where(near, 1, difference))
    c *= np.sqrt(a[:, None] * a)
    lower = -c * m
    upper = c * (np.linalg.inv(np.eye(len(a)) + m) - np.eye(len(a)))
    return float((np.linalg.norm(upper + lower) + np.linalg.norm(upper - lower)) / 2 / np.linalg.norm(f))


def trial(side: int, decay: float, size: float, keep: float, seed: Tuple[int, ...], corrected: bool) -> np.ndarray:
    """For each root and damping: Δ, h, certified bound, damped residual, Δ and bound after the correction."""
    draw = np.random.default_rng(seed)
    basis = np.linalg.qr(draw.standard_normal((side, side)))[0]
    spectrum = np.arange(1, side + 1) ** -decay
    b = draw.standard_normal((side, side))
    e = b @ b.T
    e *= size * np.linalg.norm(spectrum) / np.linalg.norm(e)
    a = (basis * spectrum) @ basis.T
    new = keep * a + e
    fresh, vectors = np.linalg.eigh(new)
    weights = (vectors.T @ basis) ** 2
    h = keep * np.diag(spectrum) + basis.T @ e @ basis
    h = (h + h.T) / 2
    diagonal, norm = np.diag(h), np.linalg.norm(h)
    off = np.sqrt(max(0.0, norm**2 - (diagonal**2).sum()))
    plain, ours = Factor(side, keep, "foam_fixed_epsilon"), Factor(side, keep, "sandwich") if corrected else None
    out = np.full((len(ROOTS), len(DAMPINGS), 6), np.nan)
    for factor in filter(None, (plain, ours)):
        factor.refresh(a)
        factor.put(new, 2)
    for at_root, root in enumerate(ROOTS):
        for at, epsilon in enumerate(DAMPINGS):
            right = (fresh + epsilon) ** (-1 / root)
            record = plain.measure(root, epsilon, 1e300)
            damped = np.sqrt(off**2 + ((diagonal + epsilon) ** 2).sum())
            true = gap(weights, right, (spectrum + epsilon) ** (-1 / root))
            row = [true, record[Factor.PROXY], record[Factor.GAP_BOUND], off / damped]
            if ours:
                # The library gives the cheapest bound that is at most tau; at this tau it is the tightest.
                record = ours.measure(root, epsilon, sandwich(h, epsilon, root) * (1 + 1e-6))
                row += [gap(weights, right, (diagonal + epsilon) ** (-1 / root)), record[Factor.GAP_BOUND]]
            out[at_root, at, : len(row)] = row
    return out


def part(folder: Path, name: str, side: int, decay: float, size: float, trials: int, corrected: int) -> Path:
    """All trials of one configuration and both roots, from the file if it is there."""
    path = folder / f"{name}-{side}-{decay}-{size:g}-{trials}-{corrected}.npy"
    if not path.exists():
        places = (list(POPULATIONS).index(name), side, DECAYS.index(decay), SIZES.index(size))
        rows = [
            trial(side, decay, size, POPULATIONS[name], (*places, number), number < corrected)
            for number in range(trials)
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.part.npy")
        np.save(unfinished, np.stack(rows))
        unfinished.replace(path)
    return path


# ---- statistics


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal values share their mean."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[which]


def auc(truth: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve for finding the top 20 % by `truth`."""
    wanted = truth >= np.quantile(truth, 0.8)
    found, rest = int(wanted.sum()), int((~wanted).sum())
    return float((ranks(score)[wanted].sum() - found * (found + 1) / 2) / (found * rest))


def summary(values: List[float]) -> Dict[str, float]:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": median, "q25": low, "q75": high, "min": min(values), "max": max(values)}


#: Name of a score, and the columns of its truth and of itself.
SCORES = {"h": (0, 1), "certified": (0, 2), "residual": (0, 3), "corrected": (4, 5)}


def statistics(parts: List[np.ndarray]) -> Dict[str, Dict[str, Any]]:
    """For each score its AUC, Pearson and Spearman by configuration (trials and dampings pooled), and Δ/score."""
    result: Dict[str, Dict[str, Any]] = {}
    for name, (truth, score) in SCORES.items():
        each: Dict[str, List[float]] = {"auc": [], "pearson": [], "spearman": []}
        ratios = []
        for one, root in itertools.product(parts, range(len(ROOTS))):
            pairs = one[:, root, :, :][..., [truth, score]].reshape(-1, 2)
            pairs = pairs[np.isfinite(pairs).all(1)]
            if not len(pairs):
                continue
            delta, value = pairs.T
            each["auc"].append(auc(delta, value))
            logs = np.log10(np.maximum(delta, 1e-300)), np.log10(np.maximum(value, 1e-300))
            each["pearson"].append(float(np.corrcoef(*logs)[0, 1]))
            each["spearman"].append(float(np.corrcoef(ranks(delta), ranks(value))[0, 1]))
            ratios.append(delta / value)
        if not ratios:
            continue
        pooled = np.concatenate(ratios)
        result[name] = {key: summary(values) for key, values in each.items()}
        result[name]["configurations"] = len(each["auc"])
        if name != "residual":
            result[name]["ratio"] = {
                "median": float(np.median(pooled)),
                "max": float(pooled.max()),
                "samples": len(pooled),
                "above_1": float((pooled > 1).mean()),
            }
    return result


def table(found: Dict[str, Dict[str, Any]], sides: List[int]) -> str:
    """A row per score, beside the paper's and the NumPy replication's."""
    golden = json.loads(GOLDEN.read_text())
    name = "B gaussian d x d, d=256,512,1024 (150 configs, 56250 samples)"
    if len(sides) == 1:
        name = f"B gaussian d x d, d={sides[0]}"
    paper, numpy_ = golden["paper"], golden["results"].get(name)
    lines = [
        "| score | AUC: median [IQR], worst | Pearson | Spearman | Δ/score: median, max | share above 1 |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| h, the paper | {paper['auc_h']['median']} [{paper['auc_h']['iqr'][0]}, {paper['auc_h']['iqr'][1]}], "
        f"{paper['auc_h']['worst']} | {paper['pearson_median']} | {paper['spearman_median']} | "
        f"{paper['ratio_median']}, {paper['ratio_max']} | 0 |",
    ]
    if numpy_:
        lines.append(
            f"| h, NumPy | {numpy_['auc_h_pooled']['median']:.4f} [{numpy_['auc_h_pooled']['q25']:.4f}, "
            f"{numpy_['auc_h_pooled']['q75']:.4f}], {numpy_['auc_h_pooled']['min']:.3f} | "
            f"{numpy_['pear_pooled']['median']:.4f} | {numpy_['spear_pooled']['median']:.4f} | "
            f"{numpy_['ratio']['median']:.3f}, {numpy_['ratio']['max']:.3f} | {numpy_['ratio']['frac_gt1']:g} |"
        )
    for population, scores in found.items():
        for score, s in scores.items():
            ratio = s.get("ratio")
            last = f"{ratio['median']:.3f}, {ratio['max']:.3f} | {ratio['above_1']:.2g}" if ratio else "— | —"
            lines.append(
                f"| {score}, libfoam, {population} | {s['auc']['median']:.4f} [{s['auc']['q25']:.4f}, "
                f"{s['auc']['q75']:.4f}], {s['auc']['min']:.3f} | {s['pearson']['median']:.4f} | "
                f"{s['spearman']['median']:.4f} | {last} |"
            )
    residual = paper["auc_d"]
    lines.append(
        f"| residual, the paper | {residual['median']} [{residual['iqr'][0]}, {residual['iqr'][1]}] | — | — | — | — |"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", help="sizes of the factors, separated by commas (256,512,1024)")
    parser.add_argument("--trials", type=int, help="per configuration (15; of the population average 3)")
    parser.add_argument("--corrected-trials", type=int, default=CORRECTED_TRIALS)
    parser.add_argument("--populations", default="paper,average", help="some of paper, average")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--parts", type=Path, default=PARTS, help="where finished configurations are kept")
    parser.add_argument("--out", type=Path, default=ROOT / "studies" / "results" / "appendix_k.json")
    given = parser.parse_args()
    sides = [int(side) for side in (given.sides or ",".join(map(str, SIDES))).split(",")]
    names = given.populations.split(",")
    if not set(names) <= set(POPULATIONS):
        parser.error(f"--populations {given.populations}: expected some of {', '.join(POPULATIONS)}")
    what = list(itertools.product(names, sides, DECAYS, SIZES))
    trials = {name: given.trials or TRIALS[name] for name in names}
    # It grows with the cube of the side.
    cost = {w: w[1] ** 3 * trials[w[0]] for w in what}
    total, done, began = sum(cost.values()), 0, time.monotonic()
    found: Dict[str, List[np.ndarray]] = {name: [] for name in names}
    with workers.pool(given.jobs) as pool:
        waiting = {pool.submit(part, given.parts, *w, trials[w[0]], given.corrected_trials): w for w in what}
        for future in concurrent.futures.as_completed(waiting):
            w = waiting[future]
            found[w[0]].append(np.load(future.result()))
            done += cost[w]
            left = (time.monotonic() - began) * (total - done) / done / 60
            said = f"{100 * done / total:5.1f} %, {left:.0f} min left"
            print(f"{said}: {w[0]}, side {w[1]}, r {w[2]}, size {w[3]:g}", flush=True)
    result = {name: statistics(parts) for name, parts in found.items()}
    text = table(result, sides)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {"sides": sides, "trials": trials, "corrected_trials": given.corrected_trials}
    given.out.write_text(json.dumps({"settings": settings, "results": result, "table": text}, indent=1) + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
