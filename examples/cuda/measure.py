"""Measures on a GPU what no simulator can say, and writes one JSON file. first_gpu_run.sh calls it.

    python examples/cuda/measure.py --out report.json [--device N] [--small]

Needs the package foam, NumPy, and CUDA's driver, cuBLAS and cuSOLVER; torch and JAX are measured where they are there.
Parts: machine, libraries, steps, graph, eigensolvers, torch, jax. A part that fails is written down with its error, and
the others go on; the exit status is then 1. --small takes small sizes. On the simulator times are written down too,
so that every line is run, with "simulated": true: they say nothing about a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
from model import BASE, KINDS, SETS, structure
from parity import Array, Gpu

import foam
from foam.doctor import _probe

#: Sets of shapes whose steps are measured, the smallest first.
STEP_SETS = ("gpt2-block", "7b-layer", "gpt2-small")
#: Steps as the cost model calls them, by kind.
MODEL_STEPS = {
    "plain": "plain",
    "check, reuse": "check, reuse",
    "check, reuse, new damping": "check, reuse, new damping",
    "check, sensed, then refresh": "check, refresh by this version",
    "check that asks for delayed refreshes": "check that asks for delayed refreshes",
    "delayed refreshes taken": "delayed refreshes taken",
}
#: cudaDataType of f32 and f64.
TYPES = {"float32": 0, "float64": 1}


def milliseconds(body: Callable[[], Any], finish: Callable[[], Any], repeats: int) -> Dict[str, float]:
    """Median and least milliseconds of `body`, each waited for with `finish`."""
    taken = []
    for _ in range(repeats):
        finish()
        start = time.perf_counter()
        body()
        finish()
        taken.append(1e3 * (time.perf_counter() - start))
    return {"median": statistics.median(taken), "least": min(taken)}


class Session:
    """What all parts share."""

    def __init__(self, device: int, small: bool, cpu: bool) -> None:
        self.number, self.small, self.cpu = device, small, cpu
        self.repeats = 2 if small else 20
        if cpu:
            self.simulated = True
            return
        self.gpu = Gpu(device)
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.simulated = hasattr(self.driver, "cudasim_count")

    def memory(self) -> Tuple[int, int]:
        """Free and all bytes of the device; 0 where the driver does not say."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        ask = getattr(self.driver, "cuMemGetInfo_v2", None)
        if ask is not None and ask(ctypes.byref(free), ctypes.byref(total)) == 0:
            return free.value, total.value
        return 0, 0


# ---- machine and libraries


def machine(session: Session) -> Dict[str, Any]:
    """GPU, driver, system and versions."""
    attribute = ctypes.c_int()
    found: Dict[str, Any] = {}
    for name, number in {"multiprocessors": 16, "clock_khz": 13, "memory_clock_khz": 36, "bus_bits": 37}.items():
        if session.driver.cuDeviceGetAttribute(ctypes.byref(attribute), number, session.number) == 0:
            found[name] = attribute.value
    found.update(zip(("memory_free", "memory_total"), session.memory()))
    try:
        own = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()
        found["kernel_module"] = own[0] if own else ""
    except OSError:
        found["kernel_module"] = "not found"
    found.update(gpu=session.gpu.describe(), system=platform.platform(), python=platform.python_version())
    found.update(numpy=np.__version__, foam=foam.build_info(), cpu=platform.processor() or platform.machine())
    for name in ("torch", "jax", "jaxlib"):
        found[name] = _version(name)
    return found


def _version(name: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def loaded() -> Dict[str, str]:
    """The files of CUDA's libraries in this process."""
    found = {}
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        path = line.split(maxsplit=5)[5] if len(line.split(maxsplit=5)) == 6 else ""
        name = os.path.basename(path)
        if name.startswith(("libcuda", "libcublas", "libcusolver", "libcusparse", "libnvJitLink", "libfoam")):
            found[path] = os.path.realpath(path)
    return found


def libraries(session: Session) -> Dict[str, Any]:
    """Which files were loaded once an optimizer was at work, and what was looked for."""
    optimizer, params, grads = _optimizer(session, [("w", (8, 6))], "plain")
    files = loaded()
    optimizer.close()
    for array in params + grads:
        array.free()
    return {"loaded": files, "probe": _probe().splitlines(), "path": os.environ.get("LD_LIBRARY_PATH", "")}


# ---- steps


def _optimizer(session: Session, shapes: Sequence[Tuple[str, Tuple[int, ...]]], kind: str) -> Tuple[Any, List[Array], List[Array]]:
    random = np.random.default_rng(3)
    made = [[Array(session.gpu, "float32", 1e-2 * random.standard_normal(shape, np.float32)) for _, shape in shapes] for _ in range(2)]
    params, grads = made
    named = {name: param for (name, _), param in zip(shapes, params)}
    options = {**BASE, **KINDS[kind][0]}
    return foam.Optimizer(named, preset="reference", **options), params, grads


def _steps_of(session: Session, shapes: Sequence[Tuple[str, Tuple[int, ...]]], kind: str) -> Dict[str, float]:
    """Milliseconds of steps of a kind: every fourth step is a check. Only the caller's stream is waited for."""
    optimizer, params, grads = _optimizer(session, shapes, kind)
    is_check, phase = kind != "plain", KINDS[kind][1] % 4
    random = np.random.default_rng(5)
    taken: List[float] = []
    end = time.perf_counter() + (1.0 if session.small else 20.0)
    with optimizer:
        for step in range(1, 10**6):
            # Other gradients where the answer depends on a drift.
            for grad in grads if step % 4 == 0 and is_check else ():
                grad.fill(1e-2 * random.standard_normal(grad.shape, np.float32))
            session.gpu.synchronize()
            start = time.perf_counter()
            optimizer.step(grads, stream=session.gpu.stream)
            session.gpu.synchronize()
            if step > 4 and (step % 4 == phase if is_check else step % 4 != 0):
                taken.append(1e3 * (time.perf_counter() - start))
            if len(taken) >= session.repeats or (len(taken) >= 2 and time.perf_counter() > end):
                break
    for array in params + grads:
        array.free()
    return {"median": statistics.median(taken), "least": min(taken), "steps": len(taken)}


def steps(session: Session) -> Dict[str, Dict[str, float]]:
    """Median milliseconds of every kind of step, under the names of the cost model; least ones beside."""
    sets = {"small": [("w", (40, 24)), ("b", (24,))]} if session.small else {name: SETS[name] for name in STEP_SETS}
    found: Dict[str, Any] = {}
    for name, shapes in sets.items():
        plan = structure(shapes, "reference", {})
        values = sum(int(np.prod(shape)) for _, shape in shapes)
        free, needed = session.memory()[0], plan.state_bytes + plan.workspace + 8 * values
        if free and needed > 0.9 * free:
            found[name] = {}
            print(f"  {name}: left out: needs {needed} bytes, {free} are free", flush=True)
            continue
        found[name] = {}
        for kind, label in MODEL_STEPS.items():
            own = _steps_of(session, shapes, kind)
            found[name][label] = own["median"]
            found[name][label + ", least"] = own["least"]
            print(f"  {name}, {label}: {own['median']:.3f} ms", flush=True)
    return found


# ---- a graph


def graph(session: Session) -> Dict[str, Any]:
    """Captures a plain step on a stream that nobody has used before, and replays it."""
    driver, gpu = session.driver, session.gpu
    missing = [name for name in ("cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphLaunch") if not hasattr(driver, name)]
    if missing:
        return {"left_out": f"the driver has no {', '.join(missing)}"}

    def call(name: str, *arguments: Any) -> None:
        status = getattr(driver, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            driver.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()} ({status})")

    shapes = [("w", (40, 24))] if session.small else SETS["gpt2-block"]
    optimizer, params, grads = _optimizer(session, shapes, "plain")
    fresh, captured, ready = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    with optimizer:
        for _ in range(5):
            optimizer.step(grads, stream=gpu.stream)
        gpu.synchronize()
        before = params[0].numpy()
        call("cuStreamCreate", ctypes.byref(fresh), 1)
        # 2: relaxed, as torch.cuda.graph captures with other threads at work.
        call("cuStreamBeginCapture_v2", fresh, 2)
        try:
            optimizer.step(grads, stream=fresh.value)
        finally:
            ended = driver.cuStreamEndCapture(fresh, ctypes.byref(captured))
        if ended != 0:
            raise RuntimeError(f"cuStreamEndCapture: {ended}")
        call("cuGraphInstantiateWithFlags", ctypes.byref(ready), captured, ctypes.c_ulonglong(0))
        unmoved = bool((params[0].numpy() == before).all())

        def wait() -> None:
            call("cuStreamSynchronize", fresh)

        def replay() -> None:
            call("cuGraphLaunch", ready, fresh)

        # No more than two plain steps are left until the next check.
        replay()
        wait()
        moved = bool((params[0].numpy() != before).any())
        once = milliseconds(replay, wait, 1)
        call("cuGraphExecDestroy", ready)
        call("cuGraphDestroy", captured)
        optimizer.synchronize()
        call("cuStreamDestroy_v2", fresh)
        taken = optimizer.stats()["steps"]
    for array in params + grads:
        array.free()
    return {"capture_wrote_nothing": unmoved, "replay_stepped": moved, "replay_ms": once["least"], "steps": taken}


# ---- eigensolvers


class Solver:
    """cuSOLVER's functions, from the file that the library has loaded."""

    def __init__(self, session: Session) -> None:
        path = next((own for own in loaded() if os.path.basename(own).startswith("libcusolver.so")), None)
        self._library = ctypes.CDLL(path or "libcusolver.so.11")
        self._handle, self._params = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cusolverDnCreate", ctypes.byref(self._handle))
        self.call("cusolverDnCreateParams", ctypes.byref(self._params))
        self.call("cusolverDnSetStream", self._handle, ctypes.c_void_p(session.gpu.stream))
        self.has_batched = hasattr(self._library, "cusolverDnXsyevBatched")

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function, and raises what it answers."""
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name}: status {status}")

    def close(self) -> None:
        """Gives the handles back."""
        self.call("cusolverDnDestroyParams", self._params)
        self.call("cusolverDnDestroy", self._handle)

    def _head(self, side: int, kind: int, matrices: int, spectra: int) -> Tuple[Any, ...]:
        # 1: with eigenvectors; 0: the lower triangle.
        size = ctypes.c_int64(side)
        at = (ctypes.c_void_p(matrices), size, kind, ctypes.c_void_p(spectra), kind)
        return (self._handle, self._params, 1, 0, size, kind, *at)

    def needs(self, side: int, kind: int, count: Optional[int], matrices: int, spectra: int) -> Tuple[int, int]:
        """Bytes of workspace on the device and on the host; without a count those of Xsyevd."""
        device, host = ctypes.c_size_t(), ctypes.c_size_t()
        name = "cusolverDnXsyevd_bufferSize" if count is None else "cusolverDnXsyevBatched_bufferSize"
        batch = () if count is None else (ctypes.c_int64(count),)
        self.call(name, *self._head(side, kind, matrices, spectra), ctypes.byref(device), ctypes.byref(host), *batch)
        return device.value, host.value

    def run(self, side: int, kind: int, count: Optional[int], at: Sequence[int], room: Sequence[Any]) -> None:
        """Decomposes; `room` is workspace and bytes on the device, then on the host."""
        matrices, spectra, infos = at
        work = (ctypes.c_void_p(room[0]), ctypes.c_size_t(room[1]), room[2], ctypes.c_size_t(room[3]))
        name = "cusolverDnXsyevd" if count is None else "cusolverDnXsyevBatched"
        batch = () if count is None else (ctypes.c_int64(count),)
        self.call(name, *self._head(side, kind, matrices, spectra), *work, ctypes.c_void_p(infos), *batch)


def eigensolvers(session: Session) -> List[Dict[str, Any]]:
    """Xsyevd one by one against XsyevBatched: milliseconds, workspace, and how good the first answer is."""
    sides = (8, 12) if session.small else (64, 128, 256, 512, 768, 1024, 2048)
    counts = (1, 3) if session.small else (1, 2, 4, 8, 16, 32, 64)
    optimizer = _optimizer(session, [("w", (8, 6))], "plain")
    solver = Solver(session)
    found = []
    for dtype in ("float32", "float64"):
        for side in sides:
            for count in counts if dtype == "float32" else counts[:1]:
                found += _solvers_at(session, solver, dtype, side, count)
                print(f"  {dtype}, side {side}, {count} matrices: " + ", ".join(_outcome(row) for row in found[-2:]), flush=True)
    solver.close()
    optimizer[0].close()
    for array in optimizer[1] + optimizer[2]:
        array.free()
    return found


def _outcome(row: Dict[str, Any]) -> str:
    return f"{row['solver']} " + (f"{row['least_ms']:.3f} ms" if "least_ms" in row else row["error"])


def _solvers_at(session: Session, solver: Solver, dtype: str, side: int, count: int) -> List[Dict[str, Any]]:
    random, gpu = np.random.default_rng(side), session.gpu
    # A statistic: positive, with eigenvalues over six decades.
    basis = np.linalg.qr(random.normal(size=(side, side)))[0]
    one = (basis * np.logspace(0, -6, side)) @ basis.T
    kind, number = TYPES[dtype], np.dtype(dtype).itemsize
    source = Array(gpu, dtype, np.broadcast_to(one, (count, side, side)))
    spectra, infos = gpu.allocate(count * side * number), gpu.allocate(4 * count)
    rows = []
    for name in ("Xsyevd", "XsyevBatched"):
        row: Dict[str, Any] = {"solver": name, "dtype": dtype, "side": side, "count": count}
        rows.append(row)
        if name == "XsyevBatched" and not solver.has_batched:
            row["error"] = "not in this cuSOLVER"
            continue
        batch = count if name == "XsyevBatched" else None
        room = 0
        try:
            device, host = solver.needs(side, kind, batch, source.address, spectra)
            row.update(device_bytes=device, host_bytes=host)
            room = gpu.allocate(device)
            kept = ctypes.create_string_buffer(max(host, 1))
            work = (room, device, kept, host)

            def decompose() -> None:
                if batch is not None:
                    return solver.run(side, kind, batch, (source.address, spectra, infos), work)
                for place in range(count):
                    at = (source.address + place * side * side * number, spectra + place * side * number, infos + 4 * place)
                    solver.run(side, kind, None, at, work)

            taken = []
            for _ in range(2 if session.small or side * count > 8192 else 5):
                source.fill(np.broadcast_to(one, (count, side, side)))
                own = milliseconds(decompose, gpu.synchronize, 1)
                taken.append(own["least"])
            vectors = source.numpy()[0].T
            row["least_ms"] = min(taken)
            row["orthogonality"] = float(np.abs(vectors.T @ vectors - np.eye(side)).max())
            answer = np.empty(side, dtype)
            gpu.read(spectra, answer)
            row["residual"] = float(np.abs(one @ vectors - vectors * answer).max())
            codes = np.empty(count, np.int32)
            gpu.read(infos, codes)
            row["not_converged"] = int((codes != 0).sum())
        except RuntimeError as cause:
            row["error"] = str(cause)
        finally:
            if room:
                gpu.free(room)
    gpu.free(spectra)
    gpu.free(infos)
    source.free()
    return rows


# ---- frameworks


def _without_simulator(part: str, small: bool) -> Any:
    """A part on the CPU, in a process that does not find the simulator: torch would take it for its own libraries."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "report.json")
        command = [sys.executable, __file__, "--out", out, "--cpu", "--parts", part] + ["--small"] * small
        subprocess.run(command, env=environment, check=True)
        return json.loads(Path(out).read_text(encoding="utf-8"))[part]


def torch_groups(session: Session) -> Dict[str, Any]:
    """The same parameters in one, two and three groups of foam.torch.FOAM: milliseconds, and waits that torch sees."""
    if session.simulated and not session.cpu:
        return _without_simulator("torch", session.small)
    try:
        import torch
    except ImportError as cause:
        return {"left_out": f"no torch: {cause}"}
    import warnings

    from foam.torch import FOAM

    device = "cuda" if torch.cuda.is_available() and not session.simulated else "cpu"
    if device == "cpu" and not session.simulated:
        return {"left_out": f"torch {torch.__version__} sees no GPU"}
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    side = 16 if session.small else 1024
    found: Dict[str, Any] = {"device": device, "version": torch.__version__}
    for count in (1, 2, 3):
        torch.manual_seed(1)
        params = [torch.nn.Parameter(torch.randn(side, side, device=device)) for _ in range(6)]
        groups = [{"params": params[start::count]} for start in range(count)]
        optimizer = FOAM(groups, lr=1e-3, preset="reference", check_period=100, start_step=1, merge_dims=False)
        for param in params:
            param.grad = 1e-2 * torch.randn_like(param)
        for _ in range(3):
            optimizer.step()
        own = milliseconds(optimizer.step, wait, session.repeats)
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                optimizer.step()
            torch.cuda.set_sync_debug_mode("default")
            own["waits_torch_saw"] = sum("synchroniz" in str(warning.message) for warning in heard)
        found[f"{count} groups"] = own
        print(f"  torch on {device}, {count} groups: {own}", flush=True)
    return found


def jax_profile(session: Session) -> Dict[str, Any]:
    """Plain steps of foam.jax under JAX's profiler: milliseconds, and how often each event was seen."""
    try:
        import jax
        import jax.numpy as jnp

        import foam.jax as foam_jax
    except ImportError as cause:
        return {"left_out": str(cause)}
    backend = jax.default_backend()
    if backend == "cpu" and not session.simulated:
        return {"left_out": f"jax {jax.__version__} has no GPU backend"}
    side = 16 if session.small else 1024
    params = {name: jnp.ones((side, side)) * 0.1 for name in ("a", "b", "c")}
    optimizer = foam_jax.foam(1e-3, preset="reference", check_period=100, start_step=1)
    state = optimizer.init(params)
    grads = {name: 1e-2 * jax.random.normal(jax.random.PRNGKey(number), (side, side)) for number, name in enumerate(params)}
    update = jax.jit(optimizer.update)
    for _ in range(3):
        changes, state = update(grads, state, params)
    jax.block_until_ready(changes)
    kept = [state]

    def step() -> None:
        changes, kept[0] = update(grads, kept[0], params)
        jax.block_until_ready(changes)

    own: Dict[str, Any] = {"backend": backend, "version": jax.__version__}
    own.update(milliseconds(step, lambda: None, session.repeats))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=False):
            for _ in range(3):
                step()
        events: Counter = Counter()
        for path in Path(folder).rglob("*.trace.json.gz"):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                events.update(event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X")
    # What waits or copies, and what is most frequent.
    own["events_of_3_steps"] = dict(events.most_common(40))
    own["waits_of_3_steps"] = {name: number for name, number in events.items() if "ynchronize" in name}
    print(f"  jax on {backend}: {own['median']:.3f} ms", flush=True)
    return own


PARTS: Dict[str, Callable[[Session], Any]] = {
    "machine": machine,
    "libraries": libraries,
    "steps": steps,
    "graph": graph,
    "eigensolvers": eigensolvers,
    "torch": torch_groups,
    "jax": jax_profile,
}


def main() -> int:
    """Runs all parts; the result is the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="FILE", help="the report")
    parser.add_argument("--device", type=int, default=0, help="the GPU's number; default 0")
    parser.add_argument("--small", action="store_true", help="small sizes and few repetitions")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="default: all")
    parser.add_argument("--cpu", action="store_true", help="only for torch: without a GPU, to try the script")
    chosen = parser.parse_args()
    session = Session(chosen.device, chosen.small, chosen.cpu)
    report: Dict[str, Any] = {"made": time.strftime("%Y-%m-%d", time.gmtime()), "simulated": session.simulated}
    failed = []
    for name in chosen.parts:
        print(f"{name}:", flush=True)
        try:
            report[name] = PARTS[name](session)
        except Exception as cause:  # noqa: BLE001: whatever it is, the others are still wanted
            traceback.print_exc()
            report[name] = {"error": f"{type(cause).__name__}: {cause}"}
            failed.append(name)
        Path(chosen.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    replayed = report.get("graph", {}).get("replay_ms")
    if replayed is not None and "gpt2-block" in report.get("steps", {}):
        report["steps"]["gpt2-block"]["plain, replayed graph"] = replayed
        Path(chosen.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if not chosen.cpu:
        session.gpu.close()
    print(f"measured: {', '.join(name for name in chosen.parts if name not in failed)}")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
