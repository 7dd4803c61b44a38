"""The parameter groups of ``foam.torch.FOAM`` as the library has to know them: names, options and tensors."""

from __future__ import annotations

import functools
import operator
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from ._handle import Handle, ParamSpec, defaults, option_text
from .errors import InvalidArgumentError, ShapeMismatchError, UnsupportedError
from ._torch_ranks import Part, is_dtensor, local, part_of
from .tensors import Owner, View, view

__all__ = ["Native", "create", "gradients", "idle_switch", "plain_names", "refuse_unknown", "signature", "targets"]

#: Keys of a group that are not options of the library: torch's own, and a free label.
_TORCHS_OWN = frozenset({"params", "param_names", "lr", "initial_lr", "name"})
#: Keys that reach the library in other ways.
_OURS = frozenset({"preset", "grafting_only", "betas"})

#: Parts of a name that stand for a wrapper around a module, not for a module of the model.
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})

#: Switches of torch's optimizers that have no meaning here.
SWITCHES = {
    "foreach": "all parameters of a group are always updated in one call",
    "fused": "all parameters of a group are always updated in one call",
    "capturable": "a step decides on the host and cannot be captured in a CUDA graph",
    "differentiable": "a step is not recorded by autograd",
    "maximize": "negate the loss",
}

_HINTS = {
    "eps": "grafting_epsilon (Adam's) or epsilon (the damping of the factors)",
    "amsgrad": "no counterpart",
    "precondition_frequency": "check_period",
    "max_preconditioner_dim": "max_factor_dim",
}

Group = Dict[str, Any]


class Signature(NamedTuple):
    """What a native optimizer depends on."""

    preset: Optional[str]
    grafting_only: bool
    options: Tuple[Tuple[str, str], ...]
    tensors: Tuple[Tuple[Any, ...], ...]
    #: What this rank holds of each parameter.
    parts: Tuple[Part, ...]


class Look(NamedTuple):
    """What is looked at in every step of many plain tensors: see :func:`look`."""

    addresses: List[int]
    shapes: List[Tuple[int, ...]]
    dtypes: List[torch.dtype]

    def of(self, places: Sequence[int]) -> Look:
        """The same, of some of the tensors."""
        return Look(*([values[place] for place in places] for values in self))


class Native(NamedTuple):
    """A group's native optimizer and what it was made for."""

    handle: Handle
    signature: Signature
    #: Bytes of its state before the first step.
    empty_size: int
    #: The parameters as they were last seen; empty if that would keep more alive than the parameters themselves.
    seen: Sequence[View]
    #: What :func:`look` said of them; None if they are not plain.
    looked: Optional[Look]
    #: Views of their gradients, whose addresses every step writes anew.
    grads: Sequence[View]

    def saw(self, group: Group, seen: Sequence[View]) -> Native:
        """The same, after the group's parameters were seen."""
        if not isinstance(seen, tuple):
            return self._replace(seen=(), looked=None, grads=())
        looked = look(group["params"])
        grads = [target.like(0, None) for target in seen] if looked is not None else ()
        return self._replace(seen=seen, looked=looked, grads=grads)


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
    known = _known_options() | _OURS
    for key in group:
        if key in _TORCHS_OWN or key in known:
            continue
        hint = f"; instead of '{key}': {_HINTS[key]}" if key in _HINTS else ""
        raise InvalidArgumentError(f"unknown option '{key}': expected one of {', '.join(sorted(known))}{hint}")


def refuse_two_betas(given: Mapping[str, Any]) -> None:
    """Refuses ``betas`` beside ``beta1`` or ``beta2``."""
    both = [key for key in ("beta1", "beta2") if key in given and "betas" in given]
    if both:
        raise InvalidArgumentError(f"both betas and {both[0]} are given: expected one of them")


def merge_betas(group: Group) -> None:
    """Puts ``beta1`` and ``beta2`` where torch's schedules look for them: into the pair ``betas``."""
    try:
        beta1, beta2 = group["betas"]
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"betas = {group['betas']!r}: expected two numbers, (beta1, beta2)") from None
    group["betas"] = (group.pop("beta1", beta1), group.pop("beta2", beta2))


def options_of(group: Group) -> Dict[str, str]:
    """The group's options in text form; ``lr`` is an argument of each step."""
    known = _known_options() - _TORCHS_OWN
    beta1, beta2 = group["betas"]
    given = {**group, "beta1": beta1, "beta2": beta2}
    return {key: option_text(value) for key, value in given.items() if key in known}


def rate_of(index: int, group: Group) -> float:
    """The group's learning rate, which a schedule may have set to anything."""
    lr = float(group["lr"])
    # NaN is none of these either.
    if not 0 <= lr < float("inf"):
        raise InvalidArgumentError(f"param_groups[{index}]: lr = {lr}: expected a number >= 0")
    return lr


# ---- names and tensors


def plain_names(names: Sequence[str]) -> List[str]:
    """Names without the parts that ``torch.compile``, DistributedDataParallel and other wrappers add, so that a state
    finds its parameters with and without them. Names that would then be equal are left as they are.
    """
    parts = [[part for part in name.split(".") if part not in _WRAPPERS] for name in names]
    # DistributedDataParallel has the model as its only child.
    while parts and all(len(each) > 1 and each[0] == "module" for each in parts):
        parts = [each[1:] for each in parts]
    plain = [".".join(each) for each in parts]
    return plain if len(set(plain)) == len(plain) else list(names)


def _names(index: int, group: Group) -> Sequence[str]:
    """The names of a group's parameters, as errors, statistics and the state have them."""
    given = group.get("param_names")
    return _names_of(tuple(given)) if given else _numbered(index, len(group["params"]))


# Every step asks for them.
@functools.lru_cache(maxsize=64)
def _names_of(given: Tuple[str, ...]) -> Tuple[str, ...]:
    return tuple(plain_names(given))


@functools.lru_cache(maxsize=64)
def _numbered(index: int, count: int) -> Tuple[str, ...]:
    return tuple(f"group_{index}.param_{place}" for place in range(count))


def _memory_order(tensor: torch.Tensor) -> Optional[List[int]]:
    """The order of dimensions in which a tensor is contiguous, for channels_last and the like; None if it is
    contiguous as it is, or in no order.
    """
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return None
    order = sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis))
    return order if tensor.permute(order).is_contiguous() else None


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_shape, _dtype, _layout, _is_cpu = map(operator.attrgetter, ("shape", "dtype", "layout", "is_cpu"))


def look(tensors: Sequence[torch.Tensor]) -> Optional[Look]:
    """Where plain tensors lie: dense, contiguous and on the CPU; None if one is anything else. Property by property, so
    that the loops are C's: a look at 300 tensors one by one takes a tenth of a step of small ones.
    """
    if (
        _PLAIN.issuperset(map(type, tensors))
        and all(map(_is_cpu, tensors))
        and {torch.strided}.issuperset(map(_layout, tensors))
        and all(map(torch.Tensor.is_contiguous, tensors))
        and not any(map(torch.Tensor.is_neg, tensors))
    ):
        addresses = list(map(torch.Tensor.data_ptr, tensors))
        return Look(addresses, list(map(_shape, tensors)), list(map(_dtype, tensors)))
    return None


def targets(index: int, group: Group, native: Optional[Native] = None) -> Sequence[View]:
    """The group's parameters where they lie; the dimensions of one in channels_last are in the order of its memory. A
    tuple if they may be kept, because they keep nothing alive but the parameters; what ``native`` saw in the last step
    if nothing has changed since.
    """
    params = group["params"]
    if native is not None and native.looked is not None and len(native.seen) == len(params):
        same = all(target.keep is param for target, param in zip(native.seen, params))
        if same and look(params) == native.looked:
            return native.seen
    seen = []
    for place, (name, param) in enumerate(zip(_names(index, group), params)):
        param = local(param)
        order = _memory_order(param)
        seen.append(view(param if order is None else param.detach().permute(order), Owner(name, place)))
    return tuple(seen) if all(target.keep is param for target, param in zip(seen, params)) else seen


def gradients(
    params: Sequence[torch.Tensor], grads: Sequence[Optional[torch.Tensor]], native: Native, seen: Sequence[View]
) -> List[Optional[View]]:
    """The gradients of parameters in the layout of ``seen``; None where there is none. ``grads`` must outlive them."""
    places = [place for place, grad in enumerate(grads) if grad is not None]
    if native.looked is not None and seen is native.seen:
        all_there = len(places) == len(grads)
        found = look(grads if all_there else [grads[place] for place in places])
        wanted = native.looked if all_there else native.looked.of(places)
        if found is not None and found.shapes == wanted.shapes and found.dtypes == wanted.dtypes and all(found.addresses):
            # Nothing that could be refused.
            made: List[Optional[View]] = list(native.grads) if all_there else [None] * len(grads)
            for place, address in zip(places, found.addresses):
                made[place] = native.grads[place]
                made[place].data = address
            return made
    names = native.handle.names
    return [
        None if grad is None else _gradient(param, grad, target, names[place], place)
        for place, (param, grad, target) in enumerate(zip(params, grads, seen))
    ]


def _gradient(param: torch.Tensor, grad: torch.Tensor, target: View, name: str, place: int) -> Optional[View]:
    """A gradient in the layout of its target; None for one of nothing."""
    owner = Owner(name, place, is_gradient=True)
    if grad.shape != param.shape:
        owner.refuse(ShapeMismatchError, f"shape {tuple(grad.shape)}: expected {tuple(param.shape)}, the parameter's")
    if is_dtensor(param):
        if not is_dtensor(grad) or grad.placements != param.placements:
            found = grad.placements if is_dtensor(grad) else "of one rank"
            owner.refuse(ShapeMismatchError, f"placements {found}: expected {param.placements}, the parameter's")
        param, grad = local(param), local(grad)
        if not grad.numel():
            # A rank that holds nothing has no say in whether there is a gradient.
            return None
    if grad.layout == torch.strided:
        order = _memory_order(param)
        grad = grad if order is None else grad.permute(order)
        grad = grad if grad.is_contiguous() else grad.contiguous()
    seen = view(grad, owner)
    if seen.device != target.device:
        owner.refuse(ShapeMismatchError, f"device {seen.device_text}: expected {target.device_text}, the parameter's")
    return seen


# ---- native optimizers


def signature(group: Group, seen: Sequence[View], native: Optional[Native] = None) -> Signature:
    """What the group's native optimizer depends on now; ``native`` is the one that it has."""
    grafting_only = bool(group.get("grafting_only"))
    if native is not None and seen is native.seen:
        tensors, parts = native.signature.tensors, native.signature.parts
    else:
        tensors = tuple(target.form for target in seen)
        parts = tuple(part_of(param, f"param_{place}") for place, param in enumerate(group["params"]))
    return Signature(group.get("preset"), grafting_only, tuple(sorted(options_of(group).items())), tensors, parts)


def create(index: int, group: Group, seen: Sequence[View], comm: Optional[Any] = None) -> Native:
    """A native optimizer for a group, with all state zero; ``comm`` are the ranks that share its work."""
    names, wanted = _names(index, group), signature(group, seen)
    options = dict(wanted.options)
    for place, (name, target) in enumerate(zip(names, seen)):
        if target.device != seen[0].device:
            Owner(name, place).refuse(
                UnsupportedError,
                f"device {target.device_text}: expected {seen[0].device_text}, that of '{names[0]}' "
                "(one group per device)",
            )
    if seen:
        options.setdefault("device", seen[0].device_text)
    specs = []
    for name, target, part in zip(names, seen, wanted.parts):
        # A replicated parameter in channels_last is seen in the order of its memory.
        shape = target.shape if part.shard is None else part.shape
        specs.append(ParamSpec(name, shape, target.dtype, grafting_only=wanted.grafting_only, shard=part.shard))
    handle = Handle(specs, wanted.preset, options, comm)
    return Native(handle, wanted, handle.state_size(), (), None, ()).saw(group, seen)


def difference(old: Native, new: Native) -> str:
    """What was changed from one to the other, in the user's words."""
    before, after = old.handle.options, new.handle.options
    changed = [f"{key} from {before[key]} to {after[key]}" for key in after if before[key] != after[key]]
    was, now = old.signature, new.signature
    if was.grafting_only != now.grafting_only:
        changed.append(f"grafting_only from {was.grafting_only} to {now.grafting_only}")
    for name, had, has in zip(new.handle.names, was.tensors, now.tensors):
        if had != has:
            changed.append(f"parameter '{name}' from {had[1]} {list(had[0])} to {has[1]} {list(has[0])}")
            break
    return ", ".join(changed)
