"""One native optimizer: the calls of ``foam.h`` on Python values. ``foam.Optimizer`` and ``foam.torch.FOAM`` are
built on it.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import operator
import os
import threading
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import _library, _structs
from ._diagnosis import names, sentences
from ._log import LOG, hearing
from .errors import BusyError, CollectiveError, InvalidArgumentError, PanicError, PoisonedError
from .tensors import DTYPES, View

__all__ = ["Handle", "ParamSpec", "alone", "defaults", "describe", "evd_rate", "option_text"]


class ParamSpec(NamedTuple):
    """A parameter as the library has to know it."""

    name: str
    shape: Sequence[int]
    dtype: str
    lr_scale: float = 1.0
    weight_decay_scale: float = 1.0
    root: float = 0.0
    grafting_only: bool = False
    #: Axis, first place and number of places that this rank holds; None for all of it.
    shard: Optional[Tuple[int, int, int]] = None


def option_text(value: Any) -> str:
    """An option's value in the text form of ``foam_config_set``."""
    # NumPy's bool is none of Python's.
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    try:
        return str(operator.index(value))
    except TypeError:
        pass
    try:
        # The shortest text that reads back as the same double; NumPy's and torch's scalars too.
        return repr(float(value))
    except (TypeError, ValueError):
        return str(value)


def _text(value: Union[str, bytes], what: str) -> bytes:
    """A string as C has it; what C would cut at a NUL is refused."""
    encoded = value if isinstance(value, bytes) else value.encode()
    if b"\0" in encoded:
        raise InvalidArgumentError(f"{what} {encoded.decode('utf-8', 'replace')!r}: expected no NUL in it")
    return encoded


def _config(preset: Optional[str], options: Mapping[str, Any]) -> _structs.Config:
    library = _library.load()
    config = _structs.Config()
    name = None if preset is None else _text(str(preset), "preset")
    library.call("foam_config_init", ctypes.byref(config), ctypes.sizeof(config), name)
    for key, value in options.items():
        texts = _text(key, "option"), _text(option_text(value), f"option '{key}' =")
        library.call("foam_config_set", ctypes.byref(config), *texts)
    config.log = LOG
    return config


def _config_get(config: _structs.Config, key: Optional[str]) -> str:
    text = ctypes.create_string_buffer(4096)
    name = None if key is None else key.encode()
    _library.load().call("foam_config_get", ctypes.byref(config), name, text, len(text))
    return text.value.decode()


def _config_dict(config: _structs.Config) -> Dict[str, str]:
    return {key: _config_get(config, key) for key in _config_get(config, None).split()}


def defaults(preset: Optional[str] = None) -> Dict[str, str]:
    """Every option of the library with its default, in text form.

    Args:
        preset: ``"default"`` (used when none is given: works without tuning), ``"reference"`` (the paper's ViT
            setting on the authors' schedule) or ``"paper"`` (Algorithms 1-3 as printed).
    """
    return _config_dict(_config(preset, {}))


@contextlib.contextmanager
def alone(lock: "threading.Lock") -> Iterator[None]:
    """Holds ``lock``; raises :class:`BusyError` if somebody else does, the caller's own thread included."""
    if not lock.acquire(blocking=False):
        raise BusyError(
            "another call is inside this optimizer; expected one call at a time (a lock of yours, or an optimizer "
            "per thread)"
        )
    try:
        yield
    finally:
        lock.release()


def describe(specs: Sequence[ParamSpec]) -> Tuple[Any, List[Any]]:
    """The parameters as an array of ``foam_param``, and what has to live as long as it."""
    library = _library.load()
    described = (_structs.Param * max(len(specs), 1))()
    keep: List[Any] = []
    for raw, spec in zip(described, specs):
        library.call("foam_param_init", ctypes.byref(raw), ctypes.sizeof(raw))
        sizes = (ctypes.c_int64 * max(len(spec.shape), 1))(*spec.shape)
        keep.append(sizes)
        raw.name = _text(spec.name, "name")
        raw.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        raw.ndim = len(spec.shape)
        raw.dtype.code, raw.dtype.bits = DTYPES[spec.dtype]
        raw.dtype.lanes = 1
        raw.lr_scale, raw.weight_decay_scale, raw.root = spec.lr_scale, spec.weight_decay_scale, spec.root
        raw.flags = _structs.PARAM_GRAFTING_ONLY if spec.grafting_only else 0
        if spec.shard is not None:
            raw.shard_axis, raw.shard_start, raw.shard_length = spec.shard
    return described, keep


def evd_rate(counts: Mapping[str, Any]) -> float:
    """Eigendecompositions over checks, each of which stale Shampoo would spend one on; 0 before the first check."""
    return counts["evd_calls"] / counts["checks"] if counts["checks"] else 0.0


class _Tensors:
    """An array of ``foam_tensor``. From step to step mostly the addresses change, if anything: the rest is written where
    it is another than before.
    """

    def __init__(self, count: int) -> None:
        self.array = (_structs.Tensor * max(count, 1))()
        self._places = list(self.array)
        #: What was last written to each place, and the sizes that it points to.
        self._written: List[Tuple[Any, Any]] = [(None, None)] * len(self._places)
        #: The tuple of views that was written last.
        self._last: Optional[Tuple[Optional[View], ...]] = None

    def fill(self, views: Sequence[Optional[View]]) -> None:
        """Writes views, which must outlive their use; None takes no part. A tuple is kept, and its views do not change."""
        if views is self._last:
            return
        self._last = views if isinstance(views, tuple) else None
        for place, (tensor, view) in enumerate(zip(self._places, views)):
            if view is None:
                tensor.data = None
                continue
            form = view.form
            written = self._written[place][0]
            if written is form or written == form:
                tensor.data = view.data
            else:
                self._written[place] = (form, view.fill(tensor))


class Handle:
    """A ``foam_optimizer`` and what belongs to it. Calls that overlap raise :class:`BusyError`."""

    def __init__(
        self,
        specs: Sequence[ParamSpec],
        preset: Optional[str],
        options: Mapping[str, Any],
        comm: Optional[Any] = None,
    ) -> None:
        #: The ranks that share the work, a ``_comm.Communicator``; None alone.
        self.comm = comm
        self._pointer: Optional[int] = None
        #: Whether an internal error left the optimizer unusable.
        self.poisoned = False
        # The native handle refuses overlapping calls too, but the arrays below are filled before it is entered, and
        # nothing but this keeps it alive during a call.
        self._lock = threading.Lock()
        self._library = _library.load()
        config = _config(preset, options)
        self.options = _config_dict(config)
        self.preset, self.specs = preset, list(specs)
        self.names = [spec.name for spec in specs]
        described, _keep = describe(specs)
        pointer = ctypes.c_void_p()
        described_by = (described, len(specs), ctypes.byref(pointer))
        with hearing(), self._collectives():
            if comm is None:
                self._library.call("foam_create", ctypes.byref(config), *described_by)
            else:
                self._library.call("foam_create_ranks", ctypes.byref(config), ctypes.byref(comm.struct), *described_by)
            self._pointer = pointer.value
        self._params = _Tensors(len(specs))
        self._grads = _Tensors(len(specs))

    # ---- life

    def close(self) -> None:
        """Destroys the optimizer; a second call does nothing."""
        with alone(self._lock):
            self._destroy()

    def _destroy(self) -> None:
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._library.functions.foam_destroy(pointer)

    def __del__(self) -> None:
        # Nobody else can be inside: a call would hold a reference.
        if getattr(self, "_pointer", None) is not None:
            self._destroy()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._pointer is None

    @contextlib.contextmanager
    def _collectives(self) -> Iterator[None]:
        """What a collective raised is the cause of the error that follows from it."""
        if self.comm is not None:
            self.comm.failure = None
        try:
            yield
        except CollectiveError as error:
            if self.comm is not None and self.comm.failure is not None:
                raise error from self.comm.failure
            raise

    def _call(self, name: str, *arguments: Any) -> None:
        with alone(self._lock):
            self._enter(name, *arguments)

    def _enter(self, name: str, *arguments: Any) -> None:
        """Calls a function on the handle, whose lock is held."""
        if self._pointer is None:
            raise InvalidArgumentError("the optimizer is closed")
        try:
            with hearing(), self._collectives():
                self._library.call(name, self._pointer, *arguments)
        except CollectiveError:
            # Only a step that did not come to its end leaves the ranks apart.
            self.poisoned = self.poisoned or name == "foam_step"
            raise
        except (PanicError, PoisonedError):
            self.poisoned = True
            raise

    # ---- steps

    def step(
        self,
        params: Sequence[View],
        grads: Sequence[Optional[View]],
        lr: Optional[float],
        grad_scale: float,
        stream: Optional[int] = None,
        *,
        validate: bool = False,
    ) -> bool:
        """One step; True if it was skipped because a gradient is not finite. With ``validate`` it is only checked."""
        if lr is not None and math.isnan(lr):
            # The library takes NaN for "not given"; from a schedule it is a mistake.
            raise InvalidArgumentError("lr is NaN: expected a number >= 0, or None for the option's")
        with alone(self._lock):
            return self._step(params, grads, lr, grad_scale, stream, _structs.STEP_VALIDATE if validate else 0)

    def _step(
        self,
        params: Sequence[View],
        grads: Sequence[Optional[View]],
        lr: Optional[float],
        grad_scale: float,
        stream: Optional[int],
        flags: int,
    ) -> bool:
        args, skipped = self._args(params, grads, lr, grad_scale, stream, flags)
        self._enter("foam_step", ctypes.byref(args))
        return bool(skipped.value)

    def _args(
        self,
        params: Sequence[View],
        grads: Sequence[Optional[View]],
        lr: Optional[float],
        grad_scale: float,
        stream: Optional[int],
        flags: int,
    ) -> Tuple[_structs.StepArgs, ctypes.c_int32]:
        self._params.fill(params)
        self._grads.fill(grads)
        seen = [view.stream for view in (*params, *grads) if view is not None and view.stream]
        if stream is None:
            stream = next((view.stream for view in params if view.stream), 0)
        # Whatever is still being made on another stream comes first; the legacy default stream is 0 or 1.
        others = sorted({own for own in seen if own != stream and {own, stream} != {0, 1}})
        after = (ctypes.c_void_p * max(len(others), 1))(*others)
        args = _structs.StepArgs()
        self._library.call("foam_step_args_init", ctypes.byref(args), ctypes.sizeof(args))
        skipped = ctypes.c_int32(0)
        args.flags = flags
        args.count = len(params)
        args.params = self._params.array
        args.grads = self._grads.array
        args.stream = stream
        args.skipped = ctypes.pointer(skipped)
        args.lr = math.nan if lr is None else lr
        args.grad_scale = grad_scale
        args.after = after
        args.after_count = len(others)
        return args, skipped

    @staticmethod
    def step_together(
        steps: Sequence[Tuple["Handle", Sequence[View], Sequence[Optional[View]], float]],
        grad_scale: float,
        *,
        validate: bool = False,
    ) -> bool:
        """One step of several optimizers on one device, or of one communicator with the collectives of one step, or of
        none of them. True if it was skipped because a gradient is not finite.
        """
        with contextlib.ExitStack() as held:
            for handle, *_ in steps:
                held.enter_context(alone(handle._lock))
            flags = _structs.STEP_VALIDATE if validate else 0
            made = [handle._args(params, grads, lr, grad_scale, None, flags) for handle, params, grads, lr in steps]
            args = (_structs.StepArgs * len(steps))(*(each for each, _ in made))
            if any(handle.closed for handle, *_ in steps):
                raise InvalidArgumentError("the optimizer is closed")
            handles = (ctypes.c_void_p * len(steps))(*(handle._pointer for handle, *_ in steps))
            first = steps[0][0]
            try:
                with hearing(), first._collectives():
                    first._library.call("foam_step_together", handles, args, len(steps))
            except (CollectiveError, PanicError, PoisonedError):
                for handle, *_ in steps:
                    handle.poisoned = True
                raise
        return bool(made[0][1].value)

    def synchronize(self) -> None:
        """Waits until the device has done all work."""
        self._call("foam_synchronize")

    # ---- statistics

    def stats(self) -> Dict[str, Any]:
        """``foam_stats_info`` as a dict, with the ``evd_rate``."""
        info = _structs.StatsInfo()
        info.struct_size = ctypes.sizeof(info)
        self._call("foam_stats", ctypes.byref(info))
        counts = {field[0]: getattr(info, field[0]) for field in info._fields_[2:]}
        return {**counts, "evd_rate": evd_rate(counts), "findings": self._findings() if counts["findings"] else {}}

    def _findings(self) -> Dict[str, str]:
        """A sentence for each finding."""
        text = ctypes.create_string_buffer(1 << 14)
        self._call("foam_diagnosis", text, len(text), None)
        return sentences(text.value.decode("utf-8", "replace"))

    def factor_stats(self) -> List[Dict[str, Any]]:
        """``foam_factor_info`` of every factor, with the parameter's name and the branch as text."""
        count, size = ctypes.c_size_t(0), ctypes.sizeof(_structs.FactorInfo)
        self._call("foam_factor_stats", None, size, 0, ctypes.byref(count))
        items = (_structs.FactorInfo * max(count.value, 1))()
        self._call("foam_factor_stats", items, size, count.value, ctypes.byref(count))
        return [self._describe(items[index]) for index in range(count.value)]

    def _describe(self, info: _structs.FactorInfo) -> Dict[str, Any]:
        known = 0 <= info.last_branch < len(_structs.BRANCHES)
        branch = _structs.BRANCHES[info.last_branch] if known else str(info.last_branch)
        described = {"param": self.names[info.param_index], "branch": branch}
        described.update((field[0], getattr(info, field[0])) for field in info._fields_[2:])
        described["findings"] = names(info.findings)
        described["evd_rate"] = evd_rate(described)
        return described

    def factor_read(self, param: int, block: int, axis: int, what: int) -> Any:
        """One of a factor's matrices as a flat memoryview of doubles."""
        count = ctypes.c_size_t(0)
        place = (param, block, axis, what)
        self._call("foam_factor_read", *place, None, 0, ctypes.byref(count))
        values = (ctypes.c_double * max(count.value, 1))()
        self._call("foam_factor_read", *place, values, count.value, ctypes.byref(count))
        return memoryview(values).cast("B").cast("d")[: count.value]

    def exact_gap(self, param: int, block: int, axis: int) -> float:
        """The exact relative operator gap of a factor."""
        gap = ctypes.c_double(0)
        self._call("foam_exact_gap", param, block, axis, ctypes.byref(gap))
        return gap.value

    # ---- checkpoints

    def save(self, path: Any) -> None:
        """Writes the state to a file."""
        self._call("foam_save_file", _text(os.fsencode(path), "path"))

    def load(self, path: Any) -> None:
        """Reads the state from a file."""
        self._call("foam_load_file", _text(os.fsencode(path), "path"))

    def state_size(self) -> int:
        """Bytes of the state that :meth:`save_to` writes."""
        size = ctypes.c_size_t(0)
        self._call("foam_save_memory", None, 0, ctypes.byref(size))
        return size.value

    def save_to(self, address: int, capacity: int) -> None:
        """Writes the state to ``capacity`` bytes at ``address``."""
        size = ctypes.c_size_t(0)
        self._call("foam_save_memory", address, capacity, ctypes.byref(size))

    def load_from(self, address: Any, size: int) -> None:
        """Reads the state from ``size`` bytes at ``address``, a number or bytes."""
        self._call("foam_load_memory", address, size)

    def param_state_bytes(self, param: int) -> int:
        """Bytes of a parameter's state, see :meth:`read_states`."""
        size = ctypes.c_uint64(0)
        self._call("foam_param_state_bytes", param, ctypes.byref(size))
        return size.value

    def read_states(self, parts: Sequence[Tuple[int, int, int]]) -> None:
        """Copies a part of each parameter's state: first byte, bytes, address. All ranks call it together."""
        self._call("foam_read_states", _state_parts(parts), len(parts))

    def write_states(self, parts: Sequence[Tuple[int, int, int]], steps: int, skipped_steps: int) -> None:
        """Takes over what :meth:`read_states` gave. All ranks call it together."""
        self._call("foam_write_states", _state_parts(parts), len(parts), steps, skipped_steps)


def _state_parts(parts: Sequence[Tuple[int, int, int]]) -> Any:
    """The parts as an array of ``foam_state_part``."""
    return (_structs.StatePart * max(len(parts), 1))(*parts)
