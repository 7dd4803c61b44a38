"""The three calls into the library for each stack: accumulate, check, apply (SOAP: accumulate, apply, check).

Every buffer of the state is an operand and, where it changes, a result that lies in the operand's place: with a donated
state nothing is copied.
"""

from __future__ import annotations

import functools
import math
import threading
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _library, _structs
from ..errors import LibraryError
from . import _compat, _native
from ._options import Options
from ._plan import Stack

__all__ = ["VERBS", "Part", "Settings", "register", "steps", "target", "workspace"]

VERBS = ("accumulate", "check", "apply")

#: For each platform of XLA, how the library's handlers for it are called.
_SYMBOLS = {"cpu": "foam_xla_{}", "CUDA": "foam_xla_{}_cuda"}

_lock = threading.Lock()
_registered = False


def register() -> None:
    """Makes the handlers known to XLA, once."""
    global _registered
    with _lock:
        if _registered:
            return
        # A backend that cannot start says so here, and not at the first use of a handler.
        jax.devices()
        library = _library.load()
        for platform, symbol in _SYMBOLS.items():
            for verb in VERBS:
                handler = getattr(library.functions, symbol.format(verb), None)
                if handler is not None:
                    _compat.ffi.register_ffi_target(target(verb), _compat.ffi.pycapsule(handler), platform=platform)
                elif platform == "cpu":
                    missing = symbol.format(verb)
                    raise LibraryError(f"{library.path} has no {missing}: expected a libfoam with JAX support")
        _registered = True


def target(verb: str) -> str:
    """The name under which XLA knows a verb."""
    return f"foam_xla_{verb}"


class Settings(NamedTuple):
    """What the calls of one stack are told besides the arrays; hashable."""

    options: str
    shape: _native.Shape
    with_params: bool
    weight_decay_scale: float
    root: float

    @classmethod
    def of(cls, options: Options, stack: Stack, weight_decay: float) -> Settings:
        """The settings of a stack; a weight decay of 0 needs no parameters."""
        return cls(
            options.attribute(weight_decay),
            stack.shape,
            weight_decay > 0,
            stack.weight_decay_scale,
            stack.root,
        )

    def attributes(self, verb: str) -> Dict[str, Any]:
        """The attributes of a call."""
        found: Dict[str, Any] = {
            "options": self.options,
            "order": np.int64(len(self.shape.dims)),
            "dtype": {"float32": "f32", "float64": "f64"}[self.shape.work],
            "with_params": np.int64(self.with_params),
            "grad_scale": np.float64(1.0),
            "weight_decay_scale": np.float64(self.weight_decay_scale),
            "root": np.float64(self.root),
            "preconditioned": np.int64(self.shape.preconditioned),
        }
        if verb == "apply":
            found["scale"] = np.float64(1.0)
        return found


class Part(NamedTuple):
    """What a step of one stack works on."""

    settings: Settings
    state: Dict[str, Any]
    grads: Any
    params: Any
    active: Any

    def known(self) -> Dict[str, Any]:
        """All buffers by name."""
        given = {"grads": self.grads, **({} if self.params is None else {"params": self.params})}
        given.update(active=self.active, **self.state)
        # One alignment for all three calls: buffers that the first leaves alone must vary like those that it changes.
        known = dict(zip(given, _compat.align(list(given.values()))))
        # Nothing reads the old info; this keeps its buffer in the program, so that the new one can lie in it.
        known["active"] = known["active"] | (known.pop("info") & 0)
        return known

    def ports(self, verb: str) -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
        """The names of what a verb reads and of what it writes."""
        return _native.ports(
            self.settings.options, self.settings.shape, VERBS.index(verb), self.settings.with_params
        )

    def call(self, verb: str, known: Dict[str, Any]) -> Dict[str, Any]:
        """What a verb writes."""
        operands, results = self.ports(verb)
        return _call(verb, self.settings, known, operands, results)


def steps(parts: Sequence[Part]) -> List[Tuple[Dict[str, Any], Any]]:
    """One step of all stacks: for each its buffers afterwards, and the direction of every block."""
    known = [part.known() for part in parts]
    for verb in _order(parts) if parts else ():
        if verb != "check":
            for part, own in zip(parts, known):
                own.update(part.call(verb, own))
            continue
        checked = [(part, own) for part, own in zip(parts, known) if "record" in own]
        if not checked:
            continue
        if looking_waits():
            found = _check_if_due(checked)
        else:
            # The handler looks at the clocks itself, and returns at once if no check is due.
            found = [part.call(verb, own) for part, own in checked]
        for (_, own), results in zip(checked, found):
            own.update(results)
    return [({name: own[name] for name in part.state}, own["update"]) for part, own in zip(parts, known)]


def _check_if_due(checked: Sequence[Tuple[Part, Dict[str, Any]]]) -> List[Dict[str, Any]]:
    """The checks of all stacks if one of them is due: a single conditional, for which XLA waits once per step."""
    dues = [_due(_native.configuration(part.settings.options), own) for part, own in checked]

    def check(given: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        return [part.call("check", own) for (part, _), own in zip(checked, given)]

    def keep(given: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
        return [{name: own[name] for name in part.ports("check")[1]} for (part, _), own in zip(checked, given)]

    given = [{name: own[name] for name in part.ports("check")[0]} for part, own in checked]
    return jax.lax.cond(functools.reduce(jnp.logical_or, dues), check, keep, given)


def _order(parts: Sequence[Part]) -> Tuple[str, ...]:
    """The verbs in the order in which they make a step; the same for all stacks of an optimizer."""
    config = _native.configuration(parts[0].settings.options)
    soap = config.preconditioner == _structs.PRECONDITIONER_SOAP
    return ("accumulate", "apply", "check") if soap else VERBS


def looking_waits() -> bool:
    """Whether a handler would have to wait for the device to look at the clocks; XLA looks then."""
    return jax.default_backend() != "cpu"


def _due(config: Any, known: Dict[str, Any]) -> Any:
    """Whether a check is due for any block that took part: the rules of ``src/preconditioner/cadence.rs`` once more, for
    devices whose clocks the host cannot read without waiting.

    A conditional of XLA takes its predicate from the device, so the rules must be part of the compiled program. Without
    it each stack's handler would wait for its clocks in every step, where XLA now waits once for all of them.
    ``tests/jax/test_schedule.py`` compares every schedule with ``foam_config_check_due``.
    """
    step, took_part = known["clock"][:, 0], (known["info"] & 3) == 0
    checked, begun = _checked(config, step)
    # A basis that should be there but is not is made at once.
    missing = begun & jnp.any(known["record"][:, :, _native.record_fields()["has_basis"].word] == 0, axis=1)
    if config.refresh_delay:
        # One that an earlier check asked for is taken, if it did.
        delay = np.uint32(min(config.refresh_delay, 2**32 - 1))
        checked = checked | ((step > delay) & _checked(config, step - delay)[0])
    return jnp.any(took_part & (checked | missing))


def _checked(config: Any, step: Any) -> Tuple[Any, Any]:
    """Whether there is a check at ``step``, and whether the first one has been due."""
    if config.cadence == _structs.CADENCE_PAPER:
        begun = step > 0
        checked = (step == 1) | (begun & (_scheduled(config, step - np.uint32(1)) | _corrected(config, step - np.uint32(1))))
    else:
        first = np.uint32(_first_check(config))
        begun = step >= first
        checked = (step == first) | ((step > first) & (_scheduled(config, step) | _corrected(config, step)))
    return checked, begun


def _front_length(config: Any) -> int:
    return config.front_steps or math.floor(4.0 / (1.0 - config.beta2) + 0.5)


def _first_check(config: Any) -> int:
    if config.start_step:
        return config.start_step
    if config.refresh_schedule in (_structs.SCHEDULE_GEOMETRIC, _structs.SCHEDULE_COMBINED):
        return 1
    front = config.refresh_schedule == _structs.SCHEDULE_FRONT_LOADED and _front_length(config) >= config.front_period
    return config.front_period if front else config.check_period


def _scheduled(config: Any, age: Any) -> Any:
    """Whether the schedule has a check at ``age``."""
    period = np.uint32(config.check_period)
    if config.refresh_schedule == _structs.SCHEDULE_GEOMETRIC:
        return _geometric(config, age)
    if config.refresh_schedule == _structs.SCHEDULE_COMBINED:
        return (age % period == 0) | _geometric(config, age)
    if config.refresh_schedule == _structs.SCHEDULE_FRONT_LOADED:
        front = np.uint32(min(_front_length(config), 2**32 - 1))
        return jnp.where(age <= front, age % np.uint32(config.front_period), age % period) == 0
    return age % period == 0


def _geometric(config: Any, age: Any) -> Any:
    times = [1]
    while times[-1] < 2**31:
        times.append(max(times[-1] + 1, math.ceil(config.refresh_growth * times[-1])))
    return jnp.any(age[:, None] == np.array(times[:-1], np.uint32), axis=1)


def _corrected(config: Any, age: Any) -> Any:
    """Whether the spectrum is corrected at ``age``, between the refreshes of the schedule."""
    if config.correction_period == 0:
        return False
    return age % np.uint32(min(config.correction_period, 2**32 - 1)) == 0


def _call(
    verb: str, settings: Settings, known: Dict[str, Any], operands: Sequence[str], results: Sequence[str]
) -> Dict[str, Any]:
    """Calls a handler; a result that has the name of an operand lies in its place."""
    arrays = [known[name] for name in operands]
    rows = known["clock"].shape[0]
    fresh = {"info": ((rows,), jnp.int32), "update": ((rows, *settings.shape.dims), settings.shape.work)}
    kinds = []
    for name in results:
        shape, dtype = (known[name].shape, known[name].dtype) if name in operands else fresh[name]
        kinds.append(_compat.result(shape, dtype, arrays[0]))
    kinds.append(_compat.result((workspace(settings, rows),), jnp.uint8, arrays[0]))
    aliases = {operands.index(name): place for place, name in enumerate(results) if name in operands}
    call = _compat.ffi.ffi_call(target(verb), kinds, vmap_method="broadcast_all", input_output_aliases=aliases)
    found = call(*arrays, **settings.attributes(verb))
    return dict(zip(results, found))


def workspace(settings: Settings, rows: int) -> int:
    """Bytes that a call wants to work in."""
    # On a GPU the handlers find the device by its buffers; the size is asked of one that this process has.
    device = f"cuda:{_own_ordinal()}" if jax.default_backend() in ("gpu", "cuda") else "cpu"
    return _native.workspace(settings.options, settings.shape, rows, device)


def _own_ordinal() -> int:
    """The number, as the driver counts, of the first device that belongs to this process."""
    return min(device.local_hardware_id for device in jax.local_devices())
