"""The parameter groups of ``foam.torch.FOAM`` as the library has to know them: names, options and tensors."""

from __future__ import annotations

import functools
from typing import Any, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

import torch

from ._handle import Handle, ParamSpec, defaults, option_text
from .errors import InvalidArgumentError, ShapeMismatchError, UnsupportedError
from .tensors import Owner, View, view

__all__ = ["Native", "create", "gradient", "idle_switch", "names_of", "refuse_unknown", "signature", "targets"]

#: Keys of a group that are not options of the library: torch's own, a free label, and what is passed in other ways.
_NOT_OPTIONS = frozenset({"params", "param_names", "lr", "preset", "initial_lr", "name"})

#: Switches of torch's optimizers that have no meaning here.
SWITCHES = {
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

Group = Dict[str, Any]


class Native(NamedTuple):
    """A group's native optimizer and what it was made for."""

    handle: Handle
    signature: Tuple[Any, ...]


# ---- options


def idle_switch(key: str, value: Any) -> bool:
    """Whether it is one of torch's switches and off; one that is on is refused."""
    if key not in SWITCHES:
        return False
    if value:
        raise UnsupportedError(f"{key}={value!r} is not supported by FOAM: {SWITCHES[key]}")
    return True


@functools.lru_cache(maxsize=None)
def _known_options() -> FrozenSet[str]:
    return frozenset(defaults())


def refuse_unknown(group: Group) -> None:
    """Refuses a group with a key that is neither torch's nor an option."""
    for key in group:
        if key in _NOT_OPTIONS or key in _known_options():
            continue
        hint = f"; instead of '{key}': {_HINTS[key]}" if key in _HINTS else ""
        known = ", ".join(sorted(_known_options()))
        raise InvalidArgumentError(f"unknown option '{key}': expected one of {known}{hint}")


def options_of(group: Group) -> Dict[str, str]:
    """The group's options in text form; ``lr`` is an argument of each step."""
    known = _known_options() - _NOT_OPTIONS
    return {key: option_text(value) for key, value in group.items() if key in known}


def rate_of(index: int, group: Group) -> float:
    """The group's learning rate, which a schedule may have set to anything."""
    lr = float(group["lr"])
    # NaN is none of these either.
    if not 0 <= lr < float("inf"):
        raise InvalidArgumentError(f"param_groups[{index}]: lr = {lr}: expected a number >= 0")
    return lr


# ---- names and tensors


def names_of(index: int, group: Group) -> List[str]:
    """The names of a group's parameters, as errors, statistics and the state have them."""
    return group.get("param_names") or [f"group_{index}.param_{place}" for place in range(len(group["params"]))]


def targets(index: int, group: Group) -> List[View]:
    """The group's parameters where they lie."""
    pairs = zip(names_of(index, group), group["params"])
    return [view(param, Owner(name, place)) for place, (name, param) in enumerate(pairs)]


def gradient(param: torch.Tensor, target: View, owner: Owner) -> Optional[View]:
    """A parameter's gradient in the layout of its target; None if there is none."""
    grad = param.grad
    if grad is None:
        return None
    if grad.shape != param.shape:
        owner.refuse(ShapeMismatchError, f"shape {tuple(grad.shape)}: expected {tuple(param.shape)}, the parameter's")
    if grad.layout == torch.strided and not grad.is_contiguous():
        grad = grad.contiguous()
    seen = view(grad, owner)
    if seen.device != target.device:
        owner.refuse(ShapeMismatchError, f"device {seen.device_text}: expected {target.device_text}, the parameter's")
    return seen


# ---- native optimizers


def signature(group: Group, seen: Sequence[View]) -> Tuple[Any, ...]:
    """What a native optimizer depends on."""
    tensors = tuple((target.shape, target.dtype, target.device) for target in seen)
    return group.get("preset"), tuple(sorted(options_of(group).items())), tensors


def create(index: int, group: Group, seen: Sequence[View]) -> Native:
    """A native optimizer for a group, with all state zero."""
    names, options = names_of(index, group), options_of(group)
    for place, (name, target) in enumerate(zip(names, seen)):
        if target.device != seen[0].device:
            Owner(name, place).refuse(
                UnsupportedError,
                f"device {target.device_text}: expected {seen[0].device_text}, that of '{names[0]}' "
                "(one group per device)",
            )
    if seen:
        options.setdefault("device", seen[0].device_text)
    specs = [ParamSpec(name, target.shape, target.dtype) for name, target in zip(names, seen)]
    return Native(Handle(specs, group.get("preset"), options), signature(group, seen))
