"""``foam.torch.FOAM``: the optimizer as a ``torch.optim.Optimizer``."""

from __future__ import annotations

import logging
import math
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from ._csv import append_snapshot
from ._handle import Handle, alone, defaults, evd_rate
from ._plan import memory
from ._torch_groups import (
    SWITCHES,
    Native,
    create,
    difference,
    gradients,
    idle_switch,
    merge_betas,
    rate_of,
    refuse_two_betas,
    refuse_unknown,
    signature,
    targets,
)
from ._torch_model import param_groups
from ._torch_ranks import (
    PARAM_STATE,
    SKIPPED,
    common_mesh,
    is_dtensor,
    local,
    mesh_group,
    read_states,
    write_states,
)
from ._torch_state import STATE, get_state, padded_state, put_state
from ._torch_step import Work, step_together
from ._diagnosis import merged
from .errors import BadCheckpointError, InvalidArgumentError, PoisonedError
from .tensors import View

__all__ = ["FOAM", "param_groups"]

#: A group whose options changed at this many steps in a row is warned about.
_RESTLESS = 5


class FOAM(torch.optim.Optimizer):
    """FOAM for PyTorch: updates the parameters in place in the native library, without copying them.

    Args:
        params: a model, whose parameters are then sorted by :func:`param_groups` (embeddings, norms and biases are
            not preconditioned), or parameters, named parameters (``model.named_parameters()``, torch >= 2.6) or
            dicts of groups, all of which are preconditioned. Names appear in errors and statistics and key the
            state, so that a state dict finds its parameters in any order; the names that ``torch.compile`` and
            DistributedDataParallel put in front are left out.
        lr: learning rate; default 2e-3. With the default Adam grafting, AdamW's learning rate carries over. A
            schedule may change it: it is read at every step.
        preset: ``"default"``, ``"reference"``, ``"paper"`` or ``"soap"``, see :class:`foam.Optimizer`.
        process_group: ranks that share the work and the state, for parameters that all of them have
            (DistributedDataParallel). Without it every rank does all of the work. Needs a backend for CPU tensors.
        **options: the library's options, for example ``weight_decay=4.2e-4, check_period=20, tau=0.75``
            (:func:`foam.defaults` lists them with their defaults). A group may have its own, and
            ``grafting_only=True`` for parameters without a preconditioner. ``betas=(beta1, beta2)`` stands for
            both.

    Each group has a native optimizer of its own. An option that is changed in ``param_groups`` between steps takes
    effect at the next step; this moves the group's state once, so do not do it at every step (``lr`` excepted).

    Parameters may be float32, float64, float16 or bfloat16 (statistics are then float32) and must be contiguous in
    some order of their dimensions, as in channels_last; a gradient in another layout is copied. The state is in the
    order of the memory: a run resumes in the memory format that it was saved in. Parameters whose ``grad`` is None
    take no part. Sparse and complex tensors are refused by name. Works with closures, ``torch.amp.GradScaler`` and
    DistributedDataParallel: the same gradients give the same bits on every rank.

    Parameters that are DTensors (``fully_shard``, FSDP2 and HSDP) are recognised: the ranks of their mesh share the
    work block by block, each holds the state of its own blocks, and the bits are those of one process. All ranks then
    make every call (``step``, ``state_dict``, ``load_state_dict``) together. See ``docs/ranks.md``.

    >>> import torch, foam.torch
    >>> model = torch.nn.Linear(8, 4)
    >>> optimizer = foam.torch.FOAM(model, lr=2e-3)
    >>> model(torch.ones(1, 8)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Any,
        lr: Union[float, torch.Tensor] = 2e-3,
        *,
        preset: Optional[str] = None,
        process_group: Optional[Any] = None,
        **options: Any,
    ) -> None:
        #: The communicators by process group; parameters on a mesh bring their own.
        self._process_group = process_group
        self._comms: Dict[Any, Any] = {}
        self._natives: List[Native] = []
        self._lock = threading.Lock()
        #: For each group, at how many steps in a row its options changed.
        self._changes: Dict[int, int] = {}
        refuse_two_betas(options)
        known = defaults(preset)
        shared = {
            "lr": lr,
            "betas": (float(known["beta1"]), float(known["beta2"])),
            "weight_decay": float(known["weight_decay"]),
            "preset": preset,
        }
        shared.update((key, value) for key, value in options.items() if not idle_switch(key, value))
        merge_betas(shared)
        super().__init__(param_groups(params) if isinstance(params, torch.nn.Module) else params, shared)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Whether GradScaler leaves unscaling and skipping to `step`, through `grad_scale` and `found_inf`. For float16
        parameters, whose gradients it does not unscale; for others it does, so that they can be clipped before.
        """
        return any(param.dtype == torch.float16 for group in self.param_groups for param in group["params"])

    # ---- groups

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group with its own native optimizer; it may have its own ``lr`` and options."""
        for key in [key for key in param_group if key in SWITCHES]:
            if idle_switch(key, param_group[key]):
                del param_group[key]
        refuse_two_betas(param_group)
        super().add_param_group(param_group)
        # Loading a state dict lets torch add this one to the defaults.
        if not param_group.get("differentiable"):
            param_group.pop("differentiable", None)
        index = len(self.param_groups) - 1
        try:
            refuse_unknown(param_group)
            merge_betas(param_group)
            with alone(self._lock):
                self._natives.append(self._create(index, param_group, targets(index, param_group)))
        except Exception:
            self.param_groups.pop()
            raise
        self._mark_state(param_group)

    def _create(self, index: int, group: Dict[str, Any], seen: Sequence[View]) -> Native:
        """A native optimizer for a group, whose work is shared by the ranks of its mesh, or of the process group."""
        return create(index, group, seen, self._comm(group))

    def _comm(self, group: Dict[str, Any]) -> Optional[Any]:
        names = group.get("param_names") or [f"param_{place}" for place in range(len(group["params"]))]
        mesh = common_mesh(group["params"], names)
        if mesh is None and self._process_group is None:
            return None
        if mesh is not None and self._process_group is not None:
            raise InvalidArgumentError("process_group is given, but the parameters have a mesh: expected one of them")
        device = local(group["params"][0]).device
        key = (device, "group" if mesh is None else mesh)
        if key not in self._comms:
            from ._comm import Communicator

            self._comms[key] = Communicator(
                self._process_group if mesh is None else mesh_group(mesh), device
            )
        return self._comms[key]

    def _mark_state(self, group: Dict[str, Any]) -> None:
        """Gives every parameter of a group an entry in ``state``. The state itself is native; but torch's tools for
        distributed checkpoints take an optimizer without entries for one that has never stepped, and step it.
        """
        for param in group["params"]:
            self.state[param].setdefault("step", torch.tensor(0.0))

    def _native(self, index: int, seen: Sequence[View]) -> Native:
        """The group's native optimizer, made anew with its state if options or tensors are others than before."""
        group, native = self.param_groups[index], self._natives[index]
        if native.signature != signature(group, seen, native):
            fresh = self._create(index, group, seen)
            counts = native.handle.stats()
            if counts["steps"] or counts["skipped_steps"]:
                try:
                    put_state(fresh.handle, get_state(native.handle))
                except BadCheckpointError as cause:
                    raise InvalidArgumentError(
                        f"param_groups[{index}]: changed {difference(native, fresh)} after the first step: the state "
                        "does not fit; expected the values of the first step, or a new optimizer"
                    ) from cause
                self._remark_change(index, native, fresh)
            self._natives[index] = fresh
            native.handle.close()
        else:
            self._changes[index] = 0
            if seen is not native.seen:
                self._natives[index] = native.saw(group, seen)
        return self._natives[index]

    def _remark_change(self, index: int, old: Native, new: Native) -> None:
        self._changes[index] = self._changes.get(index, 0) + 1
        if self._changes[index] == _RESTLESS:
            logging.getLogger("foam").warning(
                "param_groups[%d] changed at %d steps in a row (%s); each change copies the whole state, %d bytes. "
                "A schedule of the rate alone costs nothing: cycle_momentum=False in OneCycleLR and CyclicLR",
                index,
                _RESTLESS,
                difference(old, new),
                new.handle.state_size(),
            )

    # ---- steps

    # Dynamo cannot follow a native call; a compiled training step breaks its graph here.
    @torch._disable_dynamo
    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One step on the parameters' ``grad``; returns what ``closure`` returns, if one is given.

        All groups are stepped or none: everything that can be refused is refused before the first parameter is
        written, and a gradient that is not finite stops all groups.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Both are set by GradScaler for the length of this call.
        found_inf, scale = _known([(getattr(self, "found_inf", None), 0.0), (getattr(self, "grad_scale", None), 1.0)])
        if found_inf > 0:
            return loss
        if not 0 < abs(scale) < math.inf:
            raise InvalidArgumentError(f"the gradients' scale is {scale}: expected a finite number other than 0")
        with alone(self._lock):
            step_together([self._prepare(index) for index in range(len(self.param_groups))], 1.0 / scale)
        return loss

    def _prepare(self, index: int) -> Work:
        group = self.param_groups[index]
        merge_betas(group)
        lr = rate_of(index, group)
        seen = targets(index, group, self._natives[index])
        native = self._native(index, seen)
        if native.handle.poisoned:
            raise PoisonedError(f"param_groups[{index}]: an internal error left it unusable; load a checkpoint")
        params = group["params"]
        there = [param.grad for param in params]
        return Work(native.handle, params, seen, gradients(params, there, native, seen), there, lr)

    # ---- state

    def state_dict(self) -> Dict[str, Any]:
        """The state as torch has it; each group holds its native state as a uint8 tensor under ``"foam_state"``. The
        state of DTensors is under ``"foam"`` of each parameter, a DTensor of uint8. Ranks that share the work call it
        together.
        """
        with alone(self._lock):
            for group, native in zip(self.param_groups, self._natives):
                steps = float(native.handle.stats()["steps"])
                for param in group["params"]:
                    self.state[param]["step"] = torch.tensor(steps)
        state = super().state_dict()
        with alone(self._lock):
            for group, own, native in zip(state["param_groups"], self.param_groups, self._natives):
                if not any(is_dtensor(param) for param in own["params"]):
                    group[STATE] = padded_state(native.handle, native.empty_size)
                    continue
                # The state of sharded parameters is sharded: torch's tools know such state parameter by parameter.
                for key, entry in zip(group["params"], read_states(native.handle, own["params"])):
                    state["state"][key] = entry
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Loads what :meth:`state_dict` gave; the run then continues bit for bit.

        Named parameters are matched by name. A state that does not fit is refused and changes nothing.
        """
        with alone(self._lock):
            before = (self.state, self.param_groups)
            names = [group.get("param_names") for group in self.param_groups]
            fresh: List[Native] = []
            state_dict, entries = _without_states(state_dict)
            try:
                super().load_state_dict(state_dict)
                for index, group in enumerate(self.param_groups):
                    if names[index] is not None:
                        # torch would take the file's names, in the file's order.
                        group["param_names"] = names[index]
                    group.setdefault("betas", self.defaults["betas"])
                    merge_betas(group)
                    fresh.append(self._restored(index, group, entries[index]))
            except Exception:
                self.state, self.param_groups = before
                for native in fresh:
                    native.handle.close()
                raise
            for native in self._natives:
                native.handle.close()
            self._natives = fresh
            for group in self.param_groups:
                self._mark_state(group)

    def __getstate__(self) -> Dict[str, Any]:
        # For copy.deepcopy and pickle, which cannot follow a native handle.
        with alone(self._lock):
            return {**super().__getstate__(), STATE: [get_state(native.handle) for native in self._natives]}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        states = state.pop(STATE, None)
        super().__setstate__(state)
        if states is None:
            return
        self._lock = threading.Lock()
        # A copy of an optimizer that shares its work over a process group works alone; a mesh is found anew.
        self._process_group, self._comms = None, {}
        self._changes = {}
        self._natives = []
        for index, (group, native_state) in enumerate(zip(self.param_groups, states)):
            self._natives.append(self._restored(index, {**group, STATE: native_state}, None))

    def _restored(self, index: int, group: Dict[str, Any], entries: Optional[List[Dict[str, Any]]]) -> Native:
        """A native optimizer with the state that the group brings along, which is taken out of it."""
        if STATE not in group and entries is None:
            raise InvalidArgumentError(
                f"param_groups[{index}] of the state dict has no '{STATE}': expected one made by FOAM"
            )
        state = group.pop(STATE, None)
        native = self._create(index, group, targets(index, group))
        if entries is not None:
            write_states(native.handle, group["params"], entries)
        else:
            put_state(native.handle, state)
        return native

    # ---- statistics

    def stats(self, group: Optional[int] = None) -> Dict[str, Any]:
        """Statistics of one group, or of all together: counts, bytes and seconds are added up, ``steps``,
        ``skipped_steps`` and ``threads`` are the largest of any group; ``findings`` are as for
        :meth:`foam.Optimizer.stats`.
        """
        with alone(self._lock):
            if group is not None:
                return self._natives[group].handle.stats()
            each = [native.handle.stats() for native in self._natives]
        largest = ("steps", "skipped_steps", "threads")
        findings = merged([counts.pop("findings") for counts in each], "param_groups")
        together = {key: (max if key in largest else sum)(counts[key] for counts in each) for key in each[0]}
        return {**together, "evd_rate": evd_rate(together), "findings": findings}

    def factor_stats(self) -> List[Dict[str, Any]]:
        """Statistics of every factor of every group (see :meth:`foam.Optimizer.factor_stats`), with its ``"group"``."""
        with alone(self._lock):
            return [
                {"group": index, **factor}
                for index, native in enumerate(self._natives)
                for factor in native.handle.factor_stats()
            ]

    def memory(self) -> Dict[str, Any]:
        """Bytes of state: ``"total"``, ``"params"`` (a dict by name) and, beside them, ``"workspace"``.
        ``foam.plan(model.named_parameters())`` says it before the optimizer is made.
        """
        with alone(self._lock):
            return memory([native.handle for native in self._natives])

    def to_csv(self, path: Any) -> None:
        """Appends the statistics of every factor to a CSV file for ``python -m foam plot`` and ``report``."""
        with alone(self._lock):
            for index, native in enumerate(self._natives):
                append_snapshot(path, native.handle, index)


def _known(values: List[Tuple[Any, float]]) -> List[float]:
    """Numbers of GradScaler's, or what stands for one that is not given. All tensors come with one transfer, as it
    would make one itself.
    """
    given = [value for value, _ in values if isinstance(value, torch.Tensor)]
    # GradScaler has all of them on one device.
    found = iter(torch.stack([value.detach().reshape(()).double() for value in given]).tolist() if given else [])
    return [
        next(found) if isinstance(value, torch.Tensor) else float(otherwise if value is None else value)
        for value, otherwise in values
    ]


def _without_states(state_dict: Dict[str, Any]) -> Tuple[Dict[str, Any], List[Optional[List[Dict[str, Any]]]]]:
    """The state dict without the native states of its parameters, which torch would cast to the parameters' type, and
    these states by group; None for a group that has none.
    """
    state = dict(state_dict.get("state", {}))
    by_group: List[Optional[List[Dict[str, Any]]]] = []
    for group in state_dict.get("param_groups", []):
        entries = [state.get(key, {}) for key in group.get("params", [])]
        has = bool(entries) and all(PARAM_STATE in entry for entry in entries)
        by_group.append(entries if has else None)
        for key in group.get("params", []):
            if key in state:
                state[key] = {name: value for name, value in state[key].items() if name not in (PARAM_STATE, SKIPPED)}
    return {**state_dict, "state": state}, by_group
