"""``foam.torch.FOAM``: the optimizer as a ``torch.optim.Optimizer``."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, FrozenSet, List, NamedTuple, Optional, Tuple, Union

import torch

from ._csv import append_snapshot
from ._handle import Handle, ParamSpec, defaults, option_text
from .errors import InvalidArgumentError, UnsupportedError
from .tensors import Owner, View, view, written

__all__ = ["FOAM"]

#: The key of the native state in a group of the state dict.
STATE = "foam_state"

#: Keys of a group that are not options: torch's own, and a free label.
_NOT_OPTIONS = frozenset({"params", "param_names", "lr", "preset", "initial_lr", "name"})

#: Switches of torch's optimizers that have no meaning here.
_SWITCHES = {
    "foreach": "all parameters of a group are always updated in one call",
    "fused": "all parameters of a group are always updated in one call",
    "capturable": "a step decides on the host and cannot be captured in a CUDA graph",
    "differentiable": "a step is not recorded by autograd",
    "maximize": "negate the loss",
}

_HINTS = {
    "betas": "beta1 and beta2",
    "eps": "grafting_epsilon (Adam's) or epsilon (the damping of the factors)",
    "amsgrad": "no counterpart",
    "precondition_frequency": "check_period",
    "max_preconditioner_dim": "max_factor_dim",
}


class _Native(NamedTuple):
    """A group's native optimizer and what it was made for."""

    handle: Handle
    signature: Tuple[Any, ...]


class _Work(NamedTuple):
    """One group's part of a step."""

    handle: Handle
    params: List[torch.Tensor]
    targets: List[View]
    grads: List[Optional[View]]
    #: The tensors behind `grads`.
    sources: List[torch.Tensor]
    lr: float


class FOAM(torch.optim.Optimizer):
    """FOAM for PyTorch: updates the parameters in place in the native library, without copying them.

    Args:
        params: parameters, named parameters (``model.named_parameters()``, torch >= 2.6) or dicts of groups. Names
            appear in errors and statistics and key the state, so that a state dict finds its parameters in any
            order.
        lr: learning rate; default 2e-3. With the default Adam grafting, AdamW's learning rate carries over. A
            schedule may change it: it is read at every step.
        preset: ``"reference"`` (default) or ``"paper"``, see :class:`foam.Optimizer`.
        **options: the library's options, for example ``weight_decay=4.2e-4, check_period=20, tau=0.75``
            (:func:`foam.defaults` lists them with their defaults). A group may have its own.

    Each group has a native optimizer of its own. An option that is changed in ``param_groups`` between steps takes
    effect at the next step; this moves the group's state once, so do not do it at every step (``lr`` excepted).

    Parameters may be float32, float64, float16 or bfloat16 (statistics are then float32) and must be contiguous;
    a gradient that is not contiguous is copied. Parameters whose ``grad`` is None take no part. Sparse and complex
    tensors are refused by name. Works with closures, ``torch.amp.GradScaler`` and DistributedDataParallel: the same
    gradients give the same bits on every rank.

    >>> import torch, foam.torch
    >>> model = torch.nn.Linear(8, 4)
    >>> optimizer = foam.torch.FOAM(model.named_parameters(), lr=2e-3)
    >>> model(torch.ones(1, 8)).sum().backward()
    >>> optimizer.step()
    """

    # GradScaler then leaves unscaling and skipping to `step`, through `grad_scale` and `found_inf`.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Any,
        lr: Union[float, torch.Tensor] = 2e-3,
        *,
        preset: Optional[str] = None,
        **options: Any,
    ) -> None:
        self._natives: List[_Native] = []
        shared = {"lr": lr, "weight_decay": float(defaults(preset)["weight_decay"]), "preset": preset}
        shared.update((key, value) for key, value in options.items() if not _is_idle_switch(key, value))
        super().__init__(params, shared)

    # ---- groups

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds a group with its own native optimizer; it may have its own ``lr`` and options."""
        for key in [key for key in param_group if key in _SWITCHES]:
            if _is_idle_switch(key, param_group[key]):
                del param_group[key]
        super().add_param_group(param_group)
        # Loading a state dict lets torch add this one to the defaults.
        if not param_group.get("differentiable"):
            param_group.pop("differentiable", None)
        index = len(self.param_groups) - 1
        try:
            _refuse_unknown(param_group)
            self._natives.append(_create(index, param_group, _targets(index, param_group)))
        except Exception:
            self.param_groups.pop()
            raise

    def _native(self, index: int, targets: List[View]) -> Handle:
        """The group's native optimizer, made anew with its state if options or tensors are others than before."""
        group, native = self.param_groups[index], self._natives[index]
        if native.signature != _signature(group, targets):
            fresh = _create(index, group, targets)
            figures = native.handle.stats()
            if figures["steps"] or figures["skipped_steps"]:
                _put_state(fresh.handle, _get_state(native.handle))
            self._natives[index] = fresh
            native.handle.close()
        return self._natives[index].handle

    # ---- steps

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """One step on the parameters' ``grad``; returns what ``closure`` returns, if one is given.

        Everything that can be refused is refused before the first parameter is written.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Both are set by GradScaler for the length of this call.
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and float(found_inf) > 0:
            return loss
        grad_scale = 1.0 if scale is None else 1.0 / float(scale)
        works = [self._prepare(index) for index in range(len(self.param_groups))]
        works = [work for work in works if any(grad is not None for grad in work.grads)]
        if len(works) > 1:
            # A gradient that is not finite stops the step of all groups: its group goes alone, and raises or skips.
            works = next(([work] for work in works if not _is_finite(work)), works)
        for work in works:
            skipped = work.handle.step(work.targets, work.grads, work.lr, grad_scale)
            for param, grad in zip(work.params, work.grads):
                if grad is not None and not skipped:
                    written(param)
        return loss

    def _prepare(self, index: int) -> _Work:
        group = self.param_groups[index]
        targets = _targets(index, group)
        handle = self._native(index, targets)
        grads: List[Optional[View]] = []
        sources: List[torch.Tensor] = []
        for place, (param, name) in enumerate(zip(group["params"], handle.names)):
            grad = param.grad
            if grad is None:
                grads.append(None)
                continue
            if grad.layout == torch.strided and not grad.is_contiguous():
                grad = grad.contiguous()
            grads.append(view(grad, Owner(name, place, is_gradient=True)))
            sources.append(grad)
        return _Work(handle, group["params"], targets, grads, sources, float(group["lr"]))

    # ---- state

    def state_dict(self) -> Dict[str, Any]:
        """The state as torch has it; each group holds its native state as a uint8 tensor under ``"foam_state"``."""
        state = super().state_dict()
        for group, native in zip(state["param_groups"], self._natives):
            group[STATE] = _get_state(native.handle)
        return state

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Loads what :meth:`state_dict` gave; the run then continues bit for bit.

        Named parameters are matched by name. A state that does not fit is refused and changes nothing.
        """
        before = (self.state, self.param_groups)
        names = [group.get("param_names") for group in self.param_groups]
        fresh: List[_Native] = []
        try:
            super().load_state_dict(state_dict)
            for index, group in enumerate(self.param_groups):
                if names[index] is not None:
                    # torch would take the file's names, in the file's order.
                    group["param_names"] = names[index]
                if STATE not in group:
                    raise InvalidArgumentError(
                        f"param_groups[{index}] of the state dict has no '{STATE}': expected one made by FOAM"
                    )
                state = group.pop(STATE)
                native = _create(index, group, _targets(index, group))
                fresh.append(native)
                _put_state(native.handle, state)
        except Exception:
            self.state, self.param_groups = before
            for native in fresh:
                native.handle.close()
            raise
        for native in self._natives:
            native.handle.close()
        self._natives = fresh

    def __getstate__(self) -> Dict[str, Any]:
        # For copy.deepcopy and pickle, which cannot follow a native handle.
        return {**super().__getstate__(), STATE: [_get_state(native.handle) for native in self._natives]}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        states = state.pop(STATE, None)
        super().__setstate__(state)
        if states is None:
            return
        self._natives = []
        for index, (group, native_state) in enumerate(zip(self.param_groups, states)):
            native = _create(index, group, _targets(index, group))
            _put_state(native.handle, native_state)
            self._natives.append(native)

    # ---- figures

    def stats(self, group: Optional[int] = None) -> Dict[str, Any]:
        """Figures of one group, or of all together: counts, bytes and seconds are added up, ``steps``,
        ``skipped_steps`` and ``threads`` are the largest of any group.
        """
        if group is not None:
            return self._natives[group].handle.stats()
        each = [native.handle.stats() for native in self._natives]
        largest = ("steps", "skipped_steps", "threads")
        return {key: (max if key in largest else sum)(figures[key] for figures in each) for key in each[0]}

    def factor_stats(self) -> List[Dict[str, Any]]:
        """Figures of every factor of every group (see :meth:`foam.Optimizer.factor_stats`), with its ``"group"``."""
        return [
            {"group": index, **factor}
            for index, native in enumerate(self._natives)
            for factor in native.handle.factor_stats()
        ]

    def to_csv(self, path: Any) -> None:
        """Appends the figures of every factor to a CSV file for ``python -m foam plot``."""
        for native in self._natives:
            append_snapshot(path, native.handle)


# ---- groups as the library has to know them


def _is_idle_switch(key: str, value: Any) -> bool:
    """Whether it is one of torch's switches and off; one that is on is refused."""
    if key not in _SWITCHES:
        return False
    if value:
        raise UnsupportedError(f"{key}={value!r} is not supported by FOAM: {_SWITCHES[key]}")
    return True


@functools.lru_cache(maxsize=None)
def _known_options() -> FrozenSet[str]:
    return frozenset(defaults())


def _refuse_unknown(group: Dict[str, Any]) -> None:
    for key in group:
        if key in _NOT_OPTIONS or key in _known_options():
            continue
        hint = f"; instead of '{key}': {_HINTS[key]}" if key in _HINTS else ""
        known = ", ".join(sorted(_known_options()))
        raise InvalidArgumentError(f"unknown option '{key}': expected one of {known}{hint}")


def _options(group: Dict[str, Any]) -> Dict[str, str]:
    """The group's options in text form; ``lr`` is an argument of each step."""
    known = _known_options() - _NOT_OPTIONS
    return {key: option_text(value) for key, value in group.items() if key in known}


def _names(index: int, group: Dict[str, Any]) -> List[str]:
    return group.get("param_names") or [f"group_{index}.param_{place}" for place in range(len(group["params"]))]


def _targets(index: int, group: Dict[str, Any]) -> List[View]:
    pairs = zip(_names(index, group), group["params"])
    return [view(param, Owner(name, place)) for place, (name, param) in enumerate(pairs)]


def _signature(group: Dict[str, Any], targets: List[View]) -> Tuple[Any, ...]:
    """What a native optimizer depends on."""
    tensors = tuple((target.shape, target.dtype, target.device) for target in targets)
    return group.get("preset"), tuple(sorted(_options(group).items())), tensors


def _create(index: int, group: Dict[str, Any], targets: List[View]) -> _Native:
    names, options = _names(index, group), _options(group)
    for place, (name, target) in enumerate(zip(names, targets)):
        if target.device != targets[0].device:
            Owner(name, place).refuse(
                UnsupportedError,
                f"device {target.device_text}: expected {targets[0].device_text}, that of '{names[0]}' "
                "(one group a device)",
            )
    if targets:
        options.setdefault("device", targets[0].device_text)
    specs = [ParamSpec(name, target.shape, target.dtype) for name, target in zip(names, targets)]
    return _Native(Handle(specs, group.get("preset"), options), _signature(group, targets))


def _is_finite(work: _Work) -> bool:
    return all(bool(torch.isfinite(source).all()) for source in work.sources)


def _get_state(handle: Handle) -> torch.Tensor:
    state = torch.empty(handle.state_size(), dtype=torch.uint8)
    handle.save_to(state.data_ptr(), state.numel())
    return state


def _put_state(handle: Handle, state: Any) -> None:
    if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
        raise InvalidArgumentError(f"'{STATE}' is {type(state).__name__}: expected a tensor of uint8")
    # torch.load's map_location may have moved it.
    state = state.cpu().contiguous()
    handle.load_from(state.data_ptr(), state.numel())
