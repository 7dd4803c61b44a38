"""``foam.torch.param_groups``: which parameters of a model are preconditioned, and which are not."""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterable, List

import torch
from torch import nn

from ._torch_groups import plain_names
from .errors import InvalidArgumentError

__all__ = ["param_groups"]

_logger = logging.getLogger("foam")

#: The groups in their order, with what they are told, and why.
_KINDS = {
    "preconditioned": ({}, "Kronecker factors"),
    "embeddings": ({"grafting_only": True}, "the grafted method alone"),
    "vectors": ({"grafting_only": True, "weight_decay": 0.0}, "the grafted method alone, no weight decay"),
}


def param_groups(
    model: nn.Module, *, grafting_only: Iterable[str] = (), preconditioned: Iterable[str] = ()
) -> List[Dict[str, Any]]:
    """The parameters of a model in the groups that suit them, for :class:`foam.torch.FOAM`.

    - ``"preconditioned"``: matrices, kernels and everything else not named below.
    - ``"embeddings"``: tables of ``nn.Embedding`` and ``nn.EmbeddingBag``, and output layers tied to them. A row
      sees a gradient in few steps, and its factor would be as large as the vocabulary: ``grafting_only``.
    - ``"vectors"``: biases, the parameters of normalisations, and all others of at most one dimension:
      ``grafting_only`` and ``weight_decay=0``.

    Parameters with ``requires_grad=False`` are left out. What went where is logged to the logger ``"foam"`` at level
    INFO and stands in ``group["name"]`` and ``group["param_names"]``. A group may be changed before it is passed on.

    Args:
        model: the model; wrappers of ``torch.compile`` and DistributedDataParallel do not show in the names.
        grafting_only: names, or patterns such as ``"*.pos_embed"``, of further parameters to take as embeddings.
        preconditioned: names or patterns of parameters to precondition whatever they are.

    >>> import torch, foam.torch
    >>> model = torch.nn.Sequential(torch.nn.Embedding(50, 8), torch.nn.Linear(8, 4))
    >>> [(group["name"], group["param_names"]) for group in foam.torch.param_groups(model)]
    [('preconditioned', ['1.weight']), ('embeddings', ['0.weight']), ('vectors', ['1.bias'])]
    """
    named = list(model.named_parameters())
    names = plain_names([name for name, _ in named])
    asked = {"embeddings": _patterns(grafting_only, names), "preconditioned": _patterns(preconditioned, names)}
    kinds = _kinds_by_module(model)
    chosen: Dict[str, List[Any]] = {kind: [] for kind in _KINDS}
    frozen = 0
    for name, (_, param) in zip(names, named):
        kind = next((kind for kind, patterns in asked.items() if _matches(name, patterns)), kinds[param])
        if param.requires_grad:
            chosen[kind].append((name, param))
        else:
            frozen += 1
    groups = []
    for kind, pairs in chosen.items():
        if not pairs:
            continue
        settings, treatment = _KINDS[kind]
        own_names = [name for name, _ in pairs]
        groups.append({"params": [param for _, param in pairs], "param_names": own_names, "name": kind, **settings})
        _logger.info("%s (%s): %s", kind, treatment, ", ".join(own_names))
    if frozen:
        _logger.info("left out, because requires_grad is False: %d parameters", frozen)
    if not groups:
        raise InvalidArgumentError(f"{type(model).__name__} has no parameter with requires_grad=True: expected one")
    return groups


def _kinds_by_module(model: nn.Module) -> Dict[torch.Tensor, str]:
    """The kind of every parameter; one that several modules share is an embedding if it is that in any of them."""
    kinds: Dict[torch.Tensor, str] = {}
    for module in model.modules():
        for name, param in module.named_parameters(recurse=False, remove_duplicate=False):
            if kinds.get(param) != "embeddings":
                kinds[param] = _kind(module, name, param)
    return kinds


def _kind(module: nn.Module, name: str, param: torch.Tensor) -> str:
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embeddings"
    # Normalisations over several dimensions have parameters of as many; those of other packages are known by name.
    if param.ndim <= 1 or name == "bias" or "Norm" in type(module).__name__:
        return "vectors"
    return "preconditioned"


def _patterns(patterns: Iterable[str], names: List[str]) -> List[str]:
    listed = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in listed:
        if not any(fnmatchcase(name, pattern) for name in names):
            shown = ", ".join(f"'{name}'" for name in names[:8])
            raise InvalidArgumentError(f"no parameter is called '{pattern}': expected one of {shown} …")
    return listed


def _matches(name: str, patterns: List[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
