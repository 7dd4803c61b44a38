"""The state: plain arrays, a dictionary of buffers for each stack, and a description of what is where."""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, NamedTuple, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidArgumentError, ShapeMismatchError
from ._options import Options
from ._plan import Plan, Stack

__all__ = ["Buffer", "ScaleByFoamState", "buffers", "check", "initial"]

#: 32-bit words of a factor's record: 10 reals and 15 counters of 64 bits.
RECORD_WORDS = 50


class ScaleByFoamState(NamedTuple):
    """The state of :func:`foam.jax.scale_by_foam`."""

    #: Steps taken.
    count: Any
    #: Steps left out because a gradient was not finite.
    skipped: Any
    #: For each stack of equal blocks its buffers; the first dimension is that of the blocks.
    stacks: Dict[str, Dict[str, Any]]
    #: What is where, as the bytes of a JSON text, for :func:`foam.jax.foam_stats`.
    layout: Any


class Buffer(NamedTuple):
    """One buffer of a stack."""

    name: str
    dtype: str
    #: Its shape for one block.
    shape: Tuple[int, ...]


def buffers(options: Options, stack: Stack) -> List[Buffer]:
    """The buffers of a stack, in the order of the library's calls."""
    work = stack.work
    chosen = options.text("statistic_dtype")
    statistic = {"f32": "float32", "f64": "float64"}.get(chosen, work)
    if statistic == "float64" and not jax.config.jax_enable_x64:
        raise InvalidArgumentError(
            f"statistic_dtype = {chosen}: double precision needs jax.config.update('jax_enable_x64', True)"
        )
    found = [Buffer("clock", "uint32", (4,))]
    if stack.preconditioned:
        found.append(Buffer("record", "uint32", (len(stack.dims), RECORD_WORDS)))
        sides = list(enumerate(stack.dims))
        found += [Buffer(f"statistic_{axis}", statistic, (side, side)) for axis, side in sides]
        found += [Buffer(f"basis_{axis}", statistic, (side, side)) for axis, side in sides]
        found += [Buffer(f"spectrum_{axis}", statistic, (side,)) for axis, side in sides]
        found += [Buffer(f"inverse_root_{axis}", work, (side, side)) for axis, side in sides]
    wanted = {
        "filter": options.number("beta1") > 0,
        "moment": options.text("grafting") in ("adagrad", "rmsprop", "adam"),
        "momentum": options.number("momentum") > 0,
    }
    return found + [Buffer(name, work, stack.dims) for name, needed in wanted.items() if needed]


def initial(options: Options, plan: Plan, make: Any = jnp) -> ScaleByFoamState:
    """The state before the first step, in arrays of ``make``: jax.numpy, or NumPy, which compiles nothing."""
    stacks = {}
    for stack in plan.stacks:
        rows = len(stack.rows)
        own = {"info": make.zeros((rows,), "int32")}
        for buffer in buffers(options, stack):
            shape = (rows, *buffer.shape)
            own[buffer.name] = make.zeros(shape, buffer.dtype)
            first = _first_words(options, stack, buffer.name)
            if first is not None:
                own[buffer.name] = make.broadcast_to(make.asarray(first), shape)
        stacks[stack.key] = own
    layout = np.frombuffer(_describe(options, plan).encode(), np.uint8)
    return ScaleByFoamState(make.zeros((), "int32"), make.zeros((), "int32"), stacks, make.asarray(layout))


def _first_words(options: Options, stack: Stack, name: str) -> Any:
    """The words that a block's buffer starts with, if they are not all zero."""
    if name == "clock":
        return np.array([0.0, 1.0], "<f8").view("<u4")
    if name == "record":
        order = len(stack.dims)
        record = np.zeros((order, RECORD_WORDS // 2), "<f8")
        record[:, 1:10] = math.nan
        record[:, 0] = [options.base_epsilon(order, axis) for axis in range(order)]
        return record.view("<u4")
    return None


def _describe(options: Options, plan: Plan) -> str:
    """What is where, for people and for the statistics; the step itself never reads it."""
    stacks = {}
    for stack in plan.stacks:
        order = len(stack.dims)
        stacks[stack.key] = {
            "dims": stack.dims,
            "root": stack.root,
            "epsilon_base": [options.base_epsilon(order, axis) for axis in range(order)],
            "rows": [[block.leaf, block.number] if block else None for block in stack.rows],
        }
    content = {
        "format": 1,
        "params": [leaf.name for leaf in plan.leaves],
        "options": dict(options.all),
        "stacks": stacks,
    }
    return json.dumps(content, separators=(",", ":"))


def check(options: Options, plan: Plan, state: Any, local_rows: bool) -> None:
    """Refuses a state that is not this plan's; the complaint names the buffer."""
    if not isinstance(state, ScaleByFoamState):
        raise InvalidArgumentError(f"the state is {type(state).__name__}: expected the one that init() returned")
    expected = {stack.key: stack for stack in plan.stacks}
    if set(expected) != set(state.stacks):
        have, want = ", ".join(sorted(state.stacks)), ", ".join(sorted(expected))
        raise ShapeMismatchError(
            f"the state has stacks of blocks [{have}]; these parameters need [{want}]: expected the tree, shapes, "
            "types and options that init() saw"
        )
    for key, stack in expected.items():
        rows = len(stack.rows) // (plan.shards if local_rows else 1)
        for buffer in [Buffer("info", "int32", ()), *buffers(options, stack)]:
            array = state.stacks[key].get(buffer.name)
            wanted = (rows, *buffer.shape)
            if array is None or array.shape != wanted or array.dtype != buffer.dtype:
                found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
                raise ShapeMismatchError(
                    f"state '{key}', buffer '{buffer.name}': expected {buffer.dtype}{list(wanted)}, got {found}"
                )
