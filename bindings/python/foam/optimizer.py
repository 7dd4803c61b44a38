"""``foam.Optimizer``: FOAM over arrays of any framework."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from . import _structs
from ._csv import append_snapshot
from ._handle import Handle, ParamSpec
from ._log import hearing
from ._plan import Plan, memory
from ._plan import plan as plan_specs
from .errors import InvalidArgumentError, UnsupportedError
from .tensors import Owner, View, view, written

__all__ = ["Optimizer", "Param", "plan"]


class Param:
    """A parameter with settings of its own.

    Args:
        array: the array, updated in place.
        lr_scale: multiplies the learning rate; default 1.
        weight_decay_scale: multiplies the weight decay; default 1, 0 switches it off.
        root: p of the inverse root; default 0, the option ``root``.
        grafting_only: no preconditioner, the grafted method's step alone (for embeddings, say); default False.
    """

    __slots__ = ("array", "lr_scale", "weight_decay_scale", "root", "grafting_only")

    def __init__(
        self,
        array: Any,
        *,
        lr_scale: float = 1.0,
        weight_decay_scale: float = 1.0,
        root: float = 0.0,
        grafting_only: bool = False,
    ) -> None:
        self.array = array
        self.lr_scale = float(lr_scale)
        self.weight_decay_scale = float(weight_decay_scale)
        self.root = float(root)
        self.grafting_only = bool(grafting_only)

    def spec(self, name: str, shape: Sequence[int], dtype: str) -> ParamSpec:
        """The parameter as the library has to know it."""
        own = (self.lr_scale, self.weight_decay_scale, self.root, self.grafting_only)
        return ParamSpec(name, tuple(shape), dtype, *own)


Params = Union[Mapping[str, Any], Iterable[Any]]
Grads = Union[Mapping[str, Any], Sequence[Any]]


class Optimizer:
    """FOAM for a fixed set of parameters, which it updates in place without copying.

    Args:
        params: a dict of names and arrays, or a list of arrays or of ``(name, array)`` pairs. Arrays are NumPy
            arrays, PyTorch tensors, or anything writable with ``__dlpack__``, ``__cuda_array_interface__`` or the
            buffer protocol; :class:`Param` around an array gives it settings of its own. Names key the checkpoints;
            without them a parameter is called ``param_<index>``.
        preset: ``"default"`` (used when none is given: works without tuning), ``"reference"`` (the paper's ViT
            setting on the authors' schedule) or ``"paper"`` (Algorithms 1-3 as printed).
        **options: the library's options by name, for example ``lr=2e-3, check_period=20, tau=0.75,
            weight_decay=4.2e-4, policy="foam"``. :func:`foam.defaults` gives all of them with their defaults; an
            unknown one is an error that lists them. ``device`` follows the arrays.

    An optimizer may be used from any thread, by one call at a time; an overlapping call raises
    :class:`foam.BusyError`. It is a context manager: leaving the block closes it. What the library has to say goes
    to the logger ``"foam"``.

    >>> import numpy, foam
    >>> w = numpy.ones((8, 4), numpy.float32)
    >>> with foam.Optimizer({"w": w}, lr=0.01) as optimizer:
    ...     skipped = optimizer.step({"w": 2 * w})
    """

    def __init__(self, params: Params, *, preset: Optional[str] = None, **options: Any) -> None:
        named = _named(params)
        self._params = [param for _, param in named]
        specs, views = [], []
        for index, (name, param) in enumerate(named):
            seen = view(param.array, Owner(name, index))
            views.append(seen)
            specs.append(param.spec(name, seen.shape, seen.dtype))
        if "device" not in options and views:
            options["device"] = _common_device(named, views)
        self._handle = Handle(specs, preset, options)

    # ---- what it is

    @property
    def names(self) -> List[str]:
        """The parameters' names, in order."""
        return list(self._handle.names)

    @property
    def options(self) -> Dict[str, str]:
        """Every option as it is in use, in text form."""
        return dict(self._handle.options)

    @property
    def closed(self) -> bool:
        """Whether the optimizer was closed."""
        return self._handle.closed

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._params)} parameters"
        return f"<foam.Optimizer policy={self._handle.options['policy']} {state}>"

    def close(self) -> None:
        """Gives the state back. A second call does nothing; any other call raises afterwards."""
        self._handle.close()

    def __enter__(self) -> "Optimizer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- steps

    def step(
        self,
        grads: Grads,
        lr: Optional[float] = None,
        grad_scale: float = 1.0,
        *,
        params: Optional[Grads] = None,
        stream: Optional[int] = None,
    ) -> bool:
        """One step: reads the gradients, updates the parameters in place.

        A step that fails has changed neither parameters nor state.

        Args:
            grads: the gradients, by name or in the order of creation. None for a parameter that takes no part: it,
                its state and its clock stand still. Read-only arrays (JAX) are fine.
            lr: the learning rate of this step; default: the option ``lr``.
            grad_scale: multiplies every gradient, for example 1/S to undo a loss scale of S; default 1.
            params: arrays to update instead of those given at creation, of the same shapes and types, by name or
                in order.
            stream: the CUDA stream to order the work on; default: the parameters' framework's current one.

        Returns:
            True if the step was skipped because a gradient is not finite (with ``nonfinite="skip"``), else False.
        """
        arrays = [p.array for p in self._params] if params is None else self._ordered(params, "params")
        targets = []
        for index, (name, array) in enumerate(zip(self._handle.names, arrays)):
            targets.append(view(array, Owner(name, index), stream))
        sources: List[Optional[View]] = []
        for index, (name, grad) in enumerate(zip(self._handle.names, self._ordered(grads, "grads"))):
            sources.append(None if grad is None else view(grad, Owner(name, index, is_gradient=True), stream))
        lr = None if lr is None else float(lr)
        # What a log handler raises, an interrupt say, waits until autograd has been told.
        with hearing():
            skipped = self._handle.step(targets, sources, lr, float(grad_scale), stream)
            if not skipped:
                written(array for array, source in zip(arrays, sources) if source is not None)
        return skipped

    def synchronize(self) -> None:
        """Waits until the device has done all work; on the CPU nothing is ever pending."""
        self._handle.synchronize()

    def _ordered(self, arrays: Grads, what: str) -> List[Any]:
        names = self._handle.names
        if isinstance(arrays, Mapping):
            unknown = [name for name in arrays if name not in names]
            missing = [name for name in names if name not in arrays]
            if unknown:
                raise InvalidArgumentError(f"{what} has no parameter '{unknown[0]}': expected {_listed(names)}")
            if missing:
                advice = " (None for one that takes no part)" if what == "grads" else ""
                raise InvalidArgumentError(f"{what} lacks '{missing[0]}': expected every parameter{advice}")
            return [arrays[name] for name in names]
        listed = list(arrays)
        if len(listed) != len(names):
            raise InvalidArgumentError(f"{len(listed)} {what}: expected {len(names)}, as at creation")
        return listed

    # ---- statistics

    def stats(self) -> Dict[str, Any]:
        """Statistics of the whole optimizer: steps, checks, eigendecompositions, fallbacks, bytes, seconds by phase.

        The keys are the fields of ``foam_stats_info`` in ``foam.h``, ``"findings"``: a sentence by name for each thing
        that keeps the configuration from working, with the option to change and a value to try (a factor is judged
        from its twentieth check on; each is also logged once), and ``"evd_rate"``: eigendecompositions over
        checks, 0 before the first check.
        """
        return self._handle.stats()

    def factor_stats(self) -> List[Dict[str, Any]]:
        """Statistics of every Kronecker factor, ordered by parameter, block and axis.

        Each dict has the parameter's name in ``"param"``, what the last check did in ``"branch"``, and the fields of
        ``foam_factor_info``: epsilon, proxy, gap_bound, noise_floor, evd_calls and so on. Values that do not exist
        yet are NaN.
        """
        return self._handle.factor_stats()

    def memory(self) -> Dict[str, Any]:
        """Bytes of state: ``"total"``, ``"params"`` (a dict by name) and, beside them, ``"workspace"``.
        :func:`foam.plan` says what a model would need before the optimizer is made.
        """
        return memory([self._handle])

    def to_csv(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Appends one row per factor to a CSV file, with the step: call it every so often, then run
        ``python -m foam plot`` or ``report`` on the file. The file is made with a header at the first call.
        """
        append_snapshot(path, self._handle)

    def factor_matrix(self, name: str, block: int = 0, axis: int = 0, what: str = "inverse_root") -> Any:
        """A matrix of one factor, in double precision.

        Args:
            name: the parameter's name.
            block: the block within the parameter, in row-major order.
            axis: the axis within the block.
            what: ``"statistic"`` (not bias-corrected), ``"basis"`` (one eigenvector per row), ``"spectrum"`` or
                ``"inverse_root"``.

        Returns:
            A NumPy array of shape (dim, dim), for the spectrum (dim,); a memoryview of it without NumPy.
        """
        if what not in _structs.FACTOR_MATRICES:
            raise InvalidArgumentError(f"what = '{what}': expected {_listed(list(_structs.FACTOR_MATRICES))}")
        number = _structs.FACTOR_MATRICES[what]
        values = self._handle.factor_read(self._index(name), block, axis, number)
        side = len(values) if what == "spectrum" else round(len(values) ** 0.5)
        shape = (side,) if what == "spectrum" else (side, side)
        matrix = values.cast("B").cast("d", shape)
        try:
            import numpy
        except ImportError:
            return matrix
        return numpy.asarray(matrix)

    def exact_gap(self, name: str, block: int = 0, axis: int = 0) -> float:
        """The exact relative operator gap of a factor at this moment, which the proxy estimates; it costs an
        eigendecomposition in double precision.
        """
        return self._handle.exact_gap(self._index(name), block, axis)

    def _index(self, name: str) -> int:
        try:
            return self._handle.names.index(name)
        except ValueError:
            raise InvalidArgumentError(f"no parameter '{name}': expected {_listed(self._handle.names)}") from None

    # ---- checkpoints

    def save_file(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the whole state to a safetensors file, whole or not at all. Every language reads it."""
        self._handle.save(path)

    def load_file(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Reads what :meth:`save_file` wrote, into an optimizer of the same parameters (in any order); the run then
        continues bit for bit. Parameters are not part of the state. A file that does not fit changes nothing.
        """
        self._handle.load(path)

    def save_memory(self) -> bytes:
        """What :meth:`save_file` writes, as bytes."""
        buffer = ctypes.create_string_buffer(self._handle.state_size())
        self._handle.save_to(ctypes.addressof(buffer), len(buffer))
        return buffer.raw

    def load_memory(self, state: Any) -> None:
        """Reads what :meth:`save_memory` gave: bytes, or any contiguous buffer."""
        flat = memoryview(state).cast("B").tobytes()
        self._handle.load_from(flat, len(flat))

    # Shorter names for the usual way.
    save, load = save_file, load_file


def plan(params: Params, *, preset: Optional[str] = None, **options: Any) -> Plan:
    """What :class:`Optimizer` would need for these parameters; nothing of the model is allocated.

    Args:
        params: as for :class:`Optimizer`, but shapes will do: ``(768, 3072)`` (float32), or anything that has a
            ``shape`` and a ``dtype``, for example parameters of a model on torch's device ``"meta"``.
        preset: as for :class:`Optimizer`.
        **options: the library's options; ``max_factor_dim`` and ``merge_dims`` decide about the blocks.

    Returns:
        A plan with ``state_bytes``, ``blocks``, ``params`` (for each its ``state_bytes``, ``factors``, ``products``
        and ``flops``) and ``table()``, all of it as text.

    >>> import foam
    >>> needed = foam.plan({"w": (64, 32)}, merge_dims=False)
    >>> needed.params[0].factors, needed.params[0].products
    (((64, 32),), 4)
    """
    specs = []
    for name, param in _named(params):
        shape = getattr(param.array, "shape", param.array)
        dtype = str(getattr(param.array, "dtype", "float32")).replace("torch.", "")
        specs.append(param.spec(name, shape, dtype))
    return plan_specs(specs, preset, options)


def _named(params: Params) -> List[Tuple[str, Param]]:
    if isinstance(params, Mapping):
        pairs = [(str(name), array) for name, array in params.items()]
    else:
        pairs = []
        for index, item in enumerate(params):
            is_pair = isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)
            pairs.append(item if is_pair else (f"param_{index}", item))
    return [(name, item if isinstance(item, Param) else Param(item)) for name, item in pairs]


def _common_device(named: Sequence[Tuple[str, Param]], views: Sequence[View]) -> str:
    device = views[0].device_text
    for index, ((name, _), seen) in enumerate(zip(named, views)):
        if seen.device_text != device:
            Owner(name, index).refuse(
                UnsupportedError,
                f"device {seen.device_text}: expected {device}, that of '{named[0][0]}' (one optimizer per device)",
            )
    return device


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")
