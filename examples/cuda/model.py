"""A model, not a measurement: what steps of a model would cost on a GPU, and a column for who has one to measure.

    tests/cudasim/build.sh target/sim
    LD_LIBRARY_PATH=target/sim PYTHONPATH=bindings/python python examples/cuda/model.py gpt2-small 7b
    ... model.py w=768x3072 b=3072 --gpu a100 --set max_factor_dim=512
    ... model.py weights.safetensors --tflops 30 --tf32 120 --bandwidth 1.0 --processors 82

Shapes are given as `python -m foam scaling` takes them (NAME=768x3072, a safetensors file), or as the name of a
built-in set: gpt2-small, gpt2-block, 7b (a decoder of 32 layers with embedding and head), 7b-layer.

- Counts of kernels, cuBLAS calls, solver calls, copies and waits are counted: the simulator of tests/cudasim runs the
  library on parameters of the same structure with small sides. Counts do not depend on the sides, except that factors
  which do not fit into the workspace together are worked on in several groups: those are added, by what one group
  costs on the simulator; that stacks of more than 256 MB are worked on in slices, each with the launches of one; and
  that the squares of long sides are multiplied in pieces. These are added, too. Without the simulator the counts are
  left out.
- Flops and bytes are worked out from the plan of blocks (foam.plan), verb by verb, as src/device/gpu does them. Long
  dimensions are cut in full (even_blocks = false) whatever the preset, so that small parameters can stand in for them.
- Milliseconds are the larger of the device's time and of the host's launches. The device's time is the sum over all
  pieces of work of max(flops / (efficiency * TF/s), bytes / (0.85 * TB/s)); kernels with one thread block per factor
  get the share of the bandwidth that their multiprocessors have. Efficiency is an assumption.
- Decompositions, each with where its numbers come from:
    serial   Xsyevd one by one: 35 us per unit of the side, + 9 n^3 flops. pytorch#175585 reports 228.8, 457.4 and
             580.1 ms for 128 matrices of side 64, 96, 128 (RTX 4080, f64): 28 to 37 us per unit; larger sides are
             extrapolated.
    batched  one call per group: 3.3 us per unit of the side, and per matrix 80 us + 0.93e-12 s * n^3. Fitted to
             jax#31368, which reports 4.71, 6.02, 7.31 and 14.61 ms for 64 matrices of side 64, 128, 256, 512 and
             0.52 to 1.67 ms for one (batched Jacobi, f32, GPU not named); tenferro-rs#1852 found XsyevBatched faster
             than that at every n >= 32 on an A100. Larger sides are extrapolated.
    qr       no decomposition: one step Q' = qr(A Q) from the stale basis, then the certificate:
             Y = A Q 2 n^3, H = Q'Y and certificate 3 n^3, qr 8/3 n^3, H = R (Q'Q) 3 n^3, certificate 1 n^3. The QR is
             geqrf and orgqr one by one: 4 launches per column, an assumption without a source.
    cholqr   the step that the library takes (src/device/gpu/qr.rs), as it is there: H = Q'AQ 4 n^3, two potrf 2/3 n^3,
             L'L 2 n^3, trsm n^3, Q Z 2 n^3, one Newton-Schulz step 4 n^3, Q'Q 2 n^3, the new H 4 n^3, the certificate
             (two potrf, trsm, product) 11/3 n^3. Each call of potrf and trsm (nine with those of
             the check before) works in panels of 32 columns with four launches each, an assumption without a source.
- A delayed refresh (refresh_delay) is asked for by one step and taken by another; what is decomposed on the side stream
  in between is a row of its own. That steps beside it are as fast as without it is an assumption.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from foam._handle import ParamSpec, defaults
from foam._plan import blocks as plan_blocks
from foam.doctor import _pair, _shapes
from foam.errors import FoamError, InvalidArgumentError

Shapes = List[Tuple[str, Tuple[int, ...]]]


def _layers(count: int, own: Mapping[str, Tuple[int, ...]]) -> Shapes:
    return [(f"layer{number}.{name}", shape) for number in range(count) for name, shape in own.items()]


def _gpt2(layers: int) -> Shapes:
    width = 768
    own: Dict[str, Tuple[int, ...]] = {
        "attention": (width, 3 * width),
        "projection": (width, width),
        "up": (width, 4 * width),
        "down": (4 * width, width),
        "attention.bias": (3 * width,),
        "up.bias": (4 * width,),
    }
    own.update((name, (width,)) for name in ("projection.bias", "down.bias", "norm1", "bias1", "norm2", "bias2"))
    return _layers(layers, own)


def _decoder(layers: int) -> Shapes:
    width, inner = 4096, 11008
    own: Dict[str, Tuple[int, ...]] = {name: (width, width) for name in ("query", "key", "value", "output")}
    own.update({"gate": (inner, width), "up": (inner, width), "down": (width, inner)})
    own.update({"norm1": (width,), "norm2": (width,)})
    return _layers(layers, own)


#: Built-in sets of shapes.
SETS: Dict[str, Shapes] = {
    "gpt2-small": [("tokens", (50257, 768)), ("places", (1024, 768)), *_gpt2(12), ("norm", (768,)), ("bias", (768,))],
    "gpt2-block": _gpt2(1),
    "7b": [("tokens", (32000, 4096)), *_decoder(32), ("norm", (4096,)), ("head", (32000, 4096))],
    "7b-layer": _decoder(1),
}


class Device(NamedTuple):
    """What the model knows of a GPU."""

    name: str
    #: 1e12 operations per second of products in f32 and in TF32, without sparsity. Those of bf16 are twice those of TF32.
    tflops: float
    tf32: float
    #: 1e12 bytes per second.
    bandwidth: float
    #: Multiprocessors.
    processors: int
    #: Microseconds between two launches of the host; an assumption.
    launch: float = 4.0
    #: Share of the peak that a product reaches; an assumption.
    efficiency: float = 0.75

    def seconds(self, flops: float, moved: float, tf32: bool = False, bf16: bool = False) -> float:
        """A product or a pass over memory."""
        peak = (2.0 * self.tf32 if bf16 else self.tf32 if tf32 else self.tflops) * 1e12 * self.efficiency
        return max(flops / peak, moved / (0.85e12 * self.bandwidth))

    def narrow(self, moved: float, teams: int) -> float:
        """A pass over memory by so many thread blocks."""
        return moved / (0.85e12 * self.bandwidth * min(1.0, teams / self.processors))


#: From NVIDIA's data sheets (A100 SXM 80 GB, H100 SXM).
DEVICES = {
    "a100": Device("A100", 19.5, 156.0, 2.04, 108),
    "h100": Device("H100", 67.0, 495.0, 3.35, 132),
}


# ---- the plan


class Stack(NamedTuple):
    """Equal blocks."""

    dims: Tuple[int, ...]
    count: int
    preconditioned: bool

    @property
    def elements(self) -> int:
        """Of one block."""
        return math.prod(self.dims)

    @property
    def slice(self) -> int:
        """Blocks that are worked on together."""
        return min(self.count, max(1, STEP_BYTES // (2 * NUMBER * self.elements)))

    @property
    def slices(self) -> int:
        """How many such parts there are."""
        return -(-self.count // self.slice)


class Group(NamedTuple):
    """Factors of one side that are worked on together."""

    side: int
    count: int


class Structure(NamedTuple):
    """What the model has to know of a plan."""

    stacks: List[Stack]
    groups: List[Group]
    #: Distinct sides: the least number of groups.
    sides: int
    state_bytes: int
    workspace: int
    params: List[ParamSpec]
    limit: int

    @property
    def factors(self) -> int:
        """Number of factors."""
        return sum(group.count for group in self.groups)


#: Bytes of a number: the model is of f32.
NUMBER = 4
#: Workspace that the factors of a check may fill at once, unless the step needs more; src/device/gpu/layout.rs.
CHECK_BYTES = 64 << 20
#: Workspace of a step, unless a single block needs more.
STEP_BYTES = 256 << 20


def scratch(side: int) -> int:
    """Bytes of workspace of one factor at a check: four matrices and some vectors."""
    return NUMBER * (4 * side * side + side) + 24 * side


def structure(shapes: Shapes, preset: Optional[str], options: Mapping[str, Any]) -> Structure:
    """The stacks and groups of a plan, and its parameters as they are after merging axes."""
    specs = [ParamSpec(name, shape, "float32") for name, shape in shapes]
    # On CUDA every matrix has a square of its own.
    found = plan_blocks(specs, preset, {**options, "share_squares": "false"})
    count: Counter = Counter()
    first: Dict[int, Any] = {}
    merged: Dict[int, ParamSpec] = {}
    for block in found:
        count[block.stack] += 1
        first.setdefault(block.stack, block)
        if block.param_index not in merged:
            own, strides = specs[block.param_index], list(block.strides[: block.ndim])
            sizes = [math.prod(own.shape), *strides]
            whole = tuple(a // b for a, b in zip(sizes, strides))
            merged[block.param_index] = ParamSpec(own.name, whole, own.dtype, grafting_only=block.factors == 0)
    stacks = [
        Stack(tuple(block.shape[: block.ndim]), count[number], block.factors > 0) for number, block in first.items()
    ]
    sides: Counter = Counter()
    for stack in stacks:
        for side in stack.dims if stack.preconditioned else ():
            sides[side] += stack.count
    room = max((2 * NUMBER * stack.slice * stack.elements for stack in stacks), default=0)
    largest = max((scratch(side) for side in sides), default=0)
    workspace = max(room, 2 * largest, min(CHECK_BYTES, sum(scratch(side) * own for side, own in sides.items())))
    groups = []
    for side, own in sorted(sides.items(), reverse=True):
        fit = max(1, workspace // scratch(side))
        groups += [Group(side, min(fit, own - start)) for start in range(0, own, fit)]
    state = sum(block.state_bytes for block in found)
    limit = int({**defaults(preset), **options}["max_factor_dim"])
    return Structure(stacks, groups, len(sides), state, workspace, [merged[i] for i in sorted(merged)], limit)


# ---- counts, by the simulator


class Counts(NamedTuple):
    """Calls of one step."""

    kernels: int
    products: int
    solvers: int
    copies: int
    waits: int
    allocations: int

    def plus(self, other: "Counts", times: int = 1) -> "Counts":
        """This and so many of another."""
        return Counts(*(mine + times * theirs for mine, theirs in zip(self, other)))


#: The simulator's totals behind each count.
TOTALS = (
    ("kernel_launches",),
    ("blas_calls",),
    ("solver_calls",),
    ("h2d_copies", "d2h_copies", "d2d_copies"),
    ("host_syncs", "implicit_syncs"),
    ("allocs", "host_allocs"),
)

BASE = dict(refresh_schedule="fixed", check_period=4, beta2=0.9, epsilon=1e-3, epsilon_max=1.0, merge_dims=False)
#: For each kind of step: the options that bring it about, the step of that kind, and decompositions and reuses per
#: factor in it.
KINDS: Dict[str, Tuple[Dict[str, Any], int, int, int]] = {
    "plain": (dict(policy="foam", tau=1e6), 6, 0, 0),
    "check, reuse": (dict(policy="foam", tau=1e6), 8, 0, 1),
    "check, reuse, new damping": (dict(policy="foam_no_refresh", tau=1e-3, epsilon_max=1e30), 8, 0, 1),
    "check, refresh": (dict(policy="stale"), 8, 1, 0),
    "check, sensed, then refresh": (dict(policy="foam", tau=1e-6, epsilon_max=1e-3), 8, 1, 0),
    "check that asks for delayed refreshes": (dict(policy="stale", refresh_delay=2), 8, 0, 0),
    "delayed refreshes taken": (dict(policy="stale", refresh_delay=2), 10, 1, 0),
    # Corrections make the checks of the schedule refreshes that nothing is sensed for.
    "check, refresh by one QR step": (
        dict(policy="sandwich", tau=0.5, refresh_method="qr", correction_period=1000),
        8,
        0,
        0,
    ),
}


class Simulator:
    """Runs the library on the simulator, and counts."""

    def __init__(self) -> None:
        import ctypes

        from parity import Gpu

        self.gpu = Gpu(0)
        self._count = ctypes.CDLL("libcuda.so.1").cudasim_count
        self._count.restype, self._count.argtypes = ctypes.c_uint64, [ctypes.c_char_p]

    @staticmethod
    def is_there() -> bool:
        """Whether CUDA's driver is the simulator."""
        import ctypes

        try:
            return hasattr(ctypes.CDLL("libcuda.so.1"), "cudasim_count")
        except OSError:
            return False

    def _now(self) -> Counts:
        return Counts(*(sum(self._count(name.encode()) for name in names) for names in TOTALS))

    def count(self, kind: str, params: Sequence[ParamSpec], preset: Optional[str], options: Mapping[str, Any]) -> Counts:
        """One step of that kind over these parameters."""
        import numpy as np
        from parity import Array

        import foam

        own, last, decompositions, reuses = KINDS[kind]
        random = np.random.default_rng(3)
        arrays = [
            [Array(self.gpu, param.dtype, random.normal(size=param.shape)) for param in params] for _ in range(2)
        ]
        weights, grads = arrays
        named = {
            param.name: foam.Param(array, grafting_only=param.grafting_only) for param, array in zip(params, weights)
        }
        with foam.Optimizer(named, preset=preset, **{**options, **BASE, **own}) as optimizer:
            for step in range(1, last + 1):
                for grad in grads:
                    grad.fill(random.normal(size=grad.shape))
                seen = optimizer.stats() if step == last else {}
                before = self._now()
                optimizer.step(grads, stream=self.gpu.stream)
                after = self._now()
            done = optimizer.stats()
            factors = len(optimizer.factor_stats())
        for array in weights + grads:
            array.free()
        found = tuple((done[name] - seen[name]) for name in ("evd_calls", "reuse_calls"))
        if found != (decompositions * factors, reuses * factors):
            raise RuntimeError(f"'{kind}' made {found[0]} decompositions and {found[1]} reuses of {factors} factors")
        return Counts(*(new - old for new, old in zip(after, before)))

    def close(self) -> None:
        """Gives the device back."""
        self.gpu.close()


def stand_in(plan: Structure) -> Tuple[List[ParamSpec], int]:
    """Parameters of the same structure with small sides, and the largest side of a block: as many cuts along every
    axis, rests of equal size stay equal and others differ. Of equal parameters two are left.
    """
    rests = sorted({side % plan.limit for param in plan.params for side in param.shape} - {0})
    # Sides of 2 are decomposed one by one, larger ones together.
    small = {rest: 1 if rest == 1 else number for number, rest in enumerate(rests, start=3)}
    limit = len(rests) + 3
    seen: Counter = Counter()
    kept = []
    for param in plan.params:
        key = (param.shape, param.grafting_only)
        seen[key] += 1
        if seen[key] <= 2:
            shape = tuple(side // plan.limit * limit + small.get(side % plan.limit, 0) for side in param.shape)
            kept.append(param._replace(shape=shape))
    return kept, limit


def counted(plan: Structure, preset: Optional[str], options: Mapping[str, Any]) -> Dict[str, Counts]:
    """The counts of every kind of step, by the simulator."""
    simulator = Simulator()
    params, limit = stand_in(plan)
    small = {**options, "max_factor_dim": limit}
    found = {len({block.stack for block in plan_blocks(params, preset, {**small, "merge_dims": False})})}
    if found != {len(plan.stacks)}:
        raise RuntimeError(f"the parameters for the simulator have {found} stacks: expected {len(plan.stacks)}")
    further = len(plan.groups) - plan.sides
    result = {}
    for kind in KINDS:
        result[kind] = simulator.count(kind, params, preset, small)
        if further and kind != "plain":
            # What one more group costs: two sides against one.
            one, two = ([ParamSpec("w", (5, side), "float32")] for side in (5, 4))
            base, more = (simulator.count(kind, each, preset, options) for each in (one, two))
            result[kind] = result[kind].plus(more, further).plus(base, -further)
    # What one more slice costs: two shapes against one.
    sliced = sum(stack.slices - 1 for stack in plan.stacks)
    one = simulator.count("plain", [ParamSpec("w", (5, 5), "float32")], preset, options)
    two = simulator.count("plain", [ParamSpec(f"w{side}", (side, side), "float32") for side in (5, 6)], preset, options)
    # A lone block's square is one call of syrk.
    batched_stacks = [stack for stack in plan.stacks if stack.preconditioned and stack.slice > 1]
    further = sum(stack.slices * (pieces(side) - 1) for stack in batched_stacks for side in stack.dims)
    for kind, own in result.items():
        own = own.plus(two, sliced).plus(one, -sliced)
        result[kind] = own._replace(products=own.products + further)
    simulator.close()
    return result


# ---- flops, bytes, seconds


class Work(NamedTuple):
    """Work of one kind on the device."""

    flops: float
    moved: float
    seconds: float


def _total(parts: Iterable[Work]) -> Work:
    own = list(parts)
    return Work(*(sum(part[place] for part in own) for place in range(3)))


def products(device: Device, side: int, count: int, number: float) -> Work:
    """So many products of square matrices for each of `count` factors."""
    flops, moved = 2.0 * side**3 * count * number, 3.0 * NUMBER * side * side * count * number
    return Work(flops, moved, device.seconds(flops, moved))


def passes(device: Device, side: int, count: int, number: float, *, narrow: bool = False) -> Work:
    """So many readings or writings of a matrix for each of `count` factors."""
    moved = number * NUMBER * side * side * count
    return Work(0.0, moved, device.narrow(moved, count) if narrow else device.seconds(0.0, moved))


def pieces(side: int) -> int:
    """In how many products the lower triangle of a batched square is multiplied: lower_tiles of src/device/gpu/step.rs."""
    width = -(-side // min(max(side // 256, 1), 8))
    return -(-side // width)


def triangle(side: int) -> float:
    """The work of these products as a share of the whole square."""
    width = -(-side // pieces(side))
    return sum((side - first) * min(width, side - first) for first in range(0, side, width)) / side**2


def _square(device: Device, stack: Stack, side: int, tf32: bool, bf16: bool) -> Work:
    """The product that a statistic takes in."""
    numbers, squares = stack.count * stack.elements, stack.count * side * side
    # As Batch::squares_fit of src/device/gpu/layout.rs, for matrices.
    if bf16 and 2 * stack.elements + 4 * side * side <= 8 * stack.elements:
        # The square is written and read, the lower triangle of the statistic read and written.
        share = triangle(side)
        flops, moved = 2.0 * numbers * side * share, float(NUMBER) * (0.5 * numbers + (1.5 + share) * squares)
        return Work(flops, moved, device.seconds(flops, moved, bf16=True))
    # A single matrix is added by syrk, with half the flops; there is none for TF32.
    share = 0.5 if stack.count == 1 and not tf32 else triangle(side)
    flops = 2.0 * numbers * side * share
    moved = NUMBER * (numbers + 2.0 * share * squares)
    return Work(flops, moved, device.seconds(flops, moved, tf32))


def plain(device: Device, plan: Structure, tf32: bool = False, bf16: bool = False) -> Work:
    """Inspect, accumulate, apply; with gradients in bf16 where these are multiplied as they are."""
    parts = []
    for stack in plan.stacks:
        numbers = stack.count * stack.elements
        # Of each element: inspect reads the gradient; filter reads it, reads and writes two moments and the
        # parameter. With factors: gather reads and writes, filter writes, norm reads, update reads once more.
        moved = NUMBER * numbers * (1.0 + 7.0 + (5.0 if stack.preconditioned else 0.0))
        parts.append(Work(0.0, moved, device.seconds(0.0, moved)))
        for side in stack.dims if stack.preconditioned else ():
            parts.append(_square(device, stack, side, tf32, bf16))
            flops, moved = 2.0 * numbers * side, float(NUMBER * (2 * numbers + stack.count * side * side))
            parts.append(Work(flops, moved, device.seconds(flops, moved, tf32)))
    return _total(parts)


def sense(device: Device, group: Group) -> Work:
    """H = Q'LQ, and its drift, which reads the lower triangle."""
    return _total((passes(device, *group, 4.5), products(device, *group, 2)))


def redamp(device: Device, group: Group) -> Work:
    """The inverse root."""
    return _total((passes(device, *group, 4), products(device, *group, 1)))


def judge(device: Device, group: Group) -> Work:
    """What a refresh does around its decomposition: its scale reads the lower triangle, a pass reads the statistic and
    writes two copies, the check of the answer (Q'Q, A Q) reads four matrices, the basis is taken over, and the noise
    floor is one more product, Q'(A Q), and a reading of its lower triangle.
    """
    return _total((passes(device, *group, 0.5 + 3 + 4 + 2 + 0.5), products(device, *group, 3)))


def keep(device: Device, group: Group) -> Work:
    """The copy of a statistic that a delayed refresh is of."""
    return passes(device, *group, 2)


def take(device: Device, group: Group) -> Work:
    """A basis that was found on the side stream is copied."""
    return passes(device, *group, 2)


def serial(device: Device, group: Group) -> Work:
    """Xsyevd, one by one."""
    side, count = group
    flops = 9.0 * side**3 * count
    return Work(flops, 0.0, 35e-6 * side * count + device.seconds(flops, 0.0))


def batched(device: Device, group: Group) -> Work:
    """XsyevBatched."""
    side, count = group
    return Work(9.0 * side**3 * count, 0.0, 3.3e-6 * side + count * (80e-6 + 0.93e-12 * side**3))


def _takes_batched(group: Group) -> bool:
    """Whether this version gives a group to the batched solver: by the stated costs, at the A100's rate, as
    src/device/gpu/cuda/linear.rs has them.
    """
    side, count = group
    return 3.3 * side + count * (80 + 0.93e-6 * side**3) < count * (35 * side + 9 * side**3 / 14.6e6)


def this_version(device: Device, group: Group) -> Work:
    """Whichever of both the library takes."""
    return (batched if _takes_batched(group) else serial)(device, group)


def _qr(device: Device, group: Group, units: float, columns: float) -> Work:
    """So many n^3 flops around a QR, whose columns cost so many launches together."""
    side, count = group
    flops = units * side**3 * count
    moved = 20.0 * NUMBER * side * side * count
    return Work(flops, moved, device.seconds(flops, moved) + columns * side * device.launch * 1e-6)


def householder(device: Device, group: Group) -> Work:
    """One QR step from the stale basis."""
    return _qr(device, group, 2 + 3 + 8 / 3 + 3 + 1, 4.0 * group.count)


def cholesky(device: Device, group: Group) -> Work:
    """The same by a batched Cholesky QR, and what comes before it: the check by which the refresh is found to be due."""
    certificate = 2 / 3 + 1 + 2
    step = 4 + 2 / 3 + 2 + 1 + 2 + 4 + 2 + 4 + certificate
    # Of each of the two certificates: the scaled matrix is made, read up to three times, and copied; H is put in order.
    wide, narrow = passes(device, *group, 2 * 7), passes(device, *group, 2, narrow=True)
    return _total((sense(device, group), wide, narrow, _qr(device, group, step + certificate, 9 * 4 / 32)))


#: Ways to refresh: the name, the work, solver calls, and whether the answer is judged as that of an eigensolver.
WAYS: Dict[str, Tuple[Any, Any, bool]] = {
    "serial Xsyevd": (serial, lambda plan: plan.factors, True),
    "this version": (
        this_version,
        lambda plan: sum(1 if _takes_batched(group) else group.count for group in plan.groups),
        True,
    ),
    "XsyevBatched": (batched, lambda plan: len(plan.groups), True),
    "one QR step, geqrf": (householder, lambda plan: 2 * plan.factors, False),
    "one QR step, batched Cholesky": (cholesky, lambda plan: 4 * len(plan.groups), False),
}


class Row(NamedTuple):
    """One step of the model."""

    step: str
    counts: Optional[Counts]
    work: Work
    #: Milliseconds: on the device, of the host's launches, and what is predicted.
    device_ms: float
    host_ms: float
    model_ms: float


def _row(device: Device, step: str, counts: Optional[Counts], work: Work) -> Row:
    calls = 0 if counts is None else counts.kernels + counts.products + counts.solvers + counts.copies
    times = (1e3 * work.seconds, 1e-3 * calls * device.launch)
    return Row(step, counts, work, *times, max(times))


def rows(device: Device, plan: Structure, counts: Optional[Dict[str, Counts]]) -> List[Row]:
    """All steps of a model on a device."""
    of = (lambda kind: None) if counts is None else counts.get
    base = plain(device, plan)
    over = lambda verb: _total(verb(device, group) for group in plan.groups)  # noqa: E731
    found = [_row(device, "plain", of("plain"), base)]
    found.append(_row(device, "plain, tf32", of("plain"), plain(device, plan, tf32=True)))
    # A launch more for each side of a shape, which is not counted here.
    found.append(_row(device, "plain, gradients in bf16", None, plain(device, plan, bf16=True)))
    both = plain(device, plan, tf32=True, bf16=True)
    found.append(_row(device, "plain, gradients in bf16, tf32", None, both))
    once = Counts(1, 0, 0, 0, 0, 0)
    found.append(_row(device, "plain, replayed graph", once if counts else None, base))
    found.append(_row(device, "check, reuse", of("check, reuse"), _total((base, over(sense)))))
    damped = _total((base, over(sense), over(redamp)))
    found.append(_row(device, "check, reuse, new damping", of("check, reuse, new damping"), damped))
    for name, (way, calls, judged) in WAYS.items():
        parts = [base, over(way), over(redamp)]
        parts += [over(sense), over(judge)] if judged else []
        own = of("check, sensed, then refresh") if judged else None
        own = own._replace(solvers=calls(plan)) if own else None
        if way is cholesky:
            own = of("check, refresh by one QR step")
        found.append(_row(device, f"check, refresh by {name}", own, _total(parts)))
    asked, taken = "check that asks for delayed refreshes", "delayed refreshes taken"
    found.append(_row(device, asked, of(asked), _total((base, over(keep)))))
    found.append(_row(device, "side stream, between both", None, _total((over(this_version), over(judge)))))
    found.append(_row(device, taken, of(taken), _total((base, over(take), over(redamp)))))
    return found


# ---- output


def measured(path: Optional[str]) -> Dict[str, Dict[str, float]]:
    """Milliseconds by set and step, from the file that first_gpu_run.sh writes."""
    if path is None:
        return {}
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    try:
        if report["simulated"]:
            raise InvalidArgumentError(f"{path}: measured on a simulator, whose times say nothing about a GPU's")
        return report["steps"]
    except (KeyError, TypeError):
        raise InvalidArgumentError(f"{path}: expected a report of first_gpu_run.sh, with 'steps'") from None


def _cells(row: Row, own: Mapping[str, float]) -> Tuple[str, ...]:
    counts = ("-",) * 5 if row.counts is None else tuple(str(number) for number in row.counts[:5])
    beside = f"{own[row.step]:.4g}" if row.step in own else ""
    return (
        row.step,
        *counts,
        f"{row.work.flops / 1e9:.4g}",
        f"{row.work.moved / 1e9:.3g}",
        f"{row.model_ms:.4g}",
        beside,
    )


HEAD = ("step", "kernels", "cuBLAS", "solver", "copies", "waits", "GFLOP", "GB moved", "model ms", "measured ms")


def table(found: Sequence[Row], own: Mapping[str, float]) -> str:
    """A Markdown table."""
    lines = [HEAD, *(_cells(row, own) for row in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def _devices(chosen: argparse.Namespace) -> List[Device]:
    own = (chosen.tflops, chosen.tf32, chosen.bandwidth, chosen.processors)
    if any(number is not None for number in own):
        if not all(number is not None and number > 0 for number in own):
            raise InvalidArgumentError("--tflops, --tf32, --bandwidth, --processors: expected all four, each > 0")
        found = [Device("given GPU", *own)]
    else:
        found = [DEVICES[name] for name in chosen.gpu]
    if chosen.launch < 0 or not 0 < chosen.efficiency <= 1:
        raise InvalidArgumentError("--launch: expected at least 0; --efficiency: expected a number in (0, 1]")
    return [device._replace(launch=chosen.launch, efficiency=chosen.efficiency) for device in found]


def _sets(words: Sequence[str]) -> Dict[str, Shapes]:
    found: Dict[str, Shapes] = {}
    for word in words:
        if word in SETS:
            found[word] = SETS[word]
        else:
            own = [(name, shape.shape) for name, shape in _shapes(word)]
            found.setdefault("given shapes", []).extend(own)
    return found


def main(arguments: Optional[List[str]] = None) -> int:
    """Prints the model; 2 if an argument is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="+", metavar="SHAPE", help=f"NAME=768x3072, a safetensors file, {', '.join(SETS)}")
    parser.add_argument("--gpu", nargs="+", choices=list(DEVICES), default=list(DEVICES), help="default: all known")
    parser.add_argument("--tflops", type=float, help="of another GPU: 1e12 operations per second in f32")
    parser.add_argument("--tf32", type=float, help="the same in TF32, without sparsity")
    parser.add_argument("--bandwidth", type=float, help="1e12 bytes per second of its memory")
    parser.add_argument("--processors", type=int, help="its multiprocessors")
    parser.add_argument("--launch", type=float, default=4.0, help="microseconds of a launch; default 4")
    parser.add_argument("--efficiency", type=float, default=0.75, help="share of the peak of a product; default 0.75")
    parser.add_argument("--preset", default="reference", help="the options to start from; default reference")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="options")
    parser.add_argument("--measured", metavar="FILE", help="the report of first_gpu_run.sh, for the last column")
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    chosen = parser.parse_args(arguments)
    try:
        options: Dict[str, Any] = {"even_blocks": "false", **dict(_pair(setting, "KEY=VALUE") for setting in chosen.set)}
        if options["even_blocks"] != "false":
            raise ValueError("even_blocks: expected false, the small parameters of the simulator are cut in full")
        devices, beside = _devices(chosen), measured(chosen.measured)
        plans = {name: structure(shapes, chosen.preset, options) for name, shapes in _sets(chosen.shapes).items()}
        simulates = Simulator.is_there()
        counts = {name: counted(plan, chosen.preset, options) if simulates else None for name, plan in plans.items()}
    except (OSError, ValueError, FoamError) as cause:
        print(f"model: {cause}", file=sys.stderr)
        return 2
    if chosen.json:
        kinds = {name: own and {kind: each._asdict() for kind, each in own.items()} for name, own in counts.items()}
        times = {
            name: {device.name: {row.step: row.model_ms for row in rows(device, plan, counts[name])} for device in devices}
            for name, plan in plans.items()
        }
        print(json.dumps({"model": True, "measured": False, "counts": kinds, "model_ms": times}, indent=1))
        return 0
    print("A model, not a measurement. Counts:", "by the simulator." if simulates else "left out, no simulator.")
    for name, plan in plans.items():
        factors = ", ".join(f"{own} of side {side}" for side, own in _by_side(plan))
        print(f"\n## {name}: {sum(s.count for s in plan.stacks)} blocks in {len(plan.stacks)} stacks; factors: {factors}")
        print(f"state {plan.state_bytes / 1e9:.3g} GB, workspace {plan.workspace / 1e9:.3g} GB, {len(plan.groups)} groups")
        for device in devices:
            about = f"{device.tflops:g} TF/s f32, {device.tf32:g} TF/s tf32, {device.bandwidth:g} TB/s"
            print(f"\n{name} on {device.name} ({about}, {device.launch:g} us per launch)\n")
            print(table(rows(device, plan, counts[name]), beside.get(name, {})))
    return 0


def _by_side(plan: Structure) -> List[Tuple[int, int]]:
    found: Counter = Counter()
    for group in plan.groups:
        found[group.side] += group.count
    return sorted(found.items(), reverse=True)


if __name__ == "__main__":
    sys.exit(main())
