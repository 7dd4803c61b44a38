"""The state: plain arrays, a dictionary of buffers for each stack, and a description of what is where."""

from __future__ import annotations

import json
from typing import Any, Dict, NamedTuple, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidArgumentError, ShapeMismatchError
from ._native import Buffer, described
from ._options import Options
from ._plan import Plan, Stack

__all__ = ["Buffer", "ScaleByFoamState", "buffers", "check", "initial"]


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


def buffers(options: Options, stack: Stack) -> Tuple[Buffer, ...]:
    """The buffers of a stack, in the order of the library's calls."""
    found, _ = described(options.preset, options.given, stack.shape)
    if any(buffer.dtype == "float64" for buffer in found) and not jax.config.jax_enable_x64:
        chosen = options.text("statistic_dtype")
        raise InvalidArgumentError(
            f"statistic_dtype = {chosen}: double precision needs jax.config.update('jax_enable_x64', True)"
        )
    return found


def _ratio(options: Options, order: int, axis: int) -> float:
    """The base damping of an axis as a share of its largest eigenvalue; 0 for an absolute one."""
    known = dict(options.all)
    if known["epsilon_mode"] != "relative":
        return 0.0
    side = float(known["epsilon_left" if axis == 0 else "epsilon_right"]) if order > 1 else 0.0
    return side or float(known["epsilon"])


def initial(options: Options, plan: Plan, make: Any = jnp) -> ScaleByFoamState:
    """The state before the first step, in arrays of ``make``: jax.numpy, or NumPy, which compiles nothing."""
    stacks = {}
    for stack in plan.stacks:
        rows = len(stack.rows)
        own = {"info": make.zeros((rows,), "int32")}
        _, first = described(options.preset, options.given, stack.shape)
        for buffer in buffers(options, stack):
            shape = (rows, *buffer.shape)
            if first[buffer.name].any():
                own[buffer.name] = make.broadcast_to(make.asarray(first[buffer.name]), shape)
            else:
                own[buffer.name] = make.zeros(shape, buffer.dtype)
        stacks[stack.key] = own
    layout = np.frombuffer(_describe(options, plan).encode(), np.uint8)
    return ScaleByFoamState(make.zeros((), "int32"), make.zeros((), "int32"), stacks, make.asarray(layout))


def _describe(options: Options, plan: Plan) -> str:
    """What is where, for people and for the statistics; the step itself never reads it."""
    stacks = {}
    for stack in plan.stacks:
        _, first = described(options.preset, options.given, stack.shape)
        # The first real of a record that was never checked is the base damping.
        record = first.get("record", np.zeros((len(stack.dims), 2), "<u4"))
        stacks[stack.key] = {
            "dims": stack.dims,
            "root": stack.root,
            "epsilon_base": np.ascontiguousarray(record[:, :2]).view("<f8")[:, 0].tolist(),
            "epsilon_ratio": [_ratio(options, len(stack.dims), axis) for axis in range(len(stack.dims))],
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
