"""Pytrees: the leaves that take part, by name."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidArgumentError, ShapeMismatchError, UnsupportedError
from ._options import ParamOptions
from ._plan import Leaf

__all__ = ["Entry", "entries", "leaves_of", "match"]

#: A user's choice for single parameters: from name and shape (a ``ShapeDtypeStruct``) to settings, or None.
Chooser = Callable[[str, jax.ShapeDtypeStruct], Optional[Dict[str, Any]]]

_FLOATS = ("float32", "float64", "float16", "bfloat16")


class Entry(NamedTuple):
    """A leaf of a tree, and whether the optimizer works on it."""

    name: str
    value: Any
    takes_part: bool


def entries(tree: Any, role: str) -> List[Entry]:
    """Every leaf of a tree; None is a leaf too."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda leaf: leaf is None)
    found, seen = [], set()
    for path, value in flat:
        name = "/".join(_step(key) for key in path) or "param"
        if name in seen:
            name = jax.tree_util.keystr(path)
        seen.add(name)
        found.append(Entry(name, value, _takes_part(name, value, role)))
    return found


def _step(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return str(getattr(key, attribute))
    return str(key)


def _takes_part(name: str, value: Any, role: str) -> bool:
    if value is None:
        return False
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        if isinstance(value, (float, int)):
            raise UnsupportedError(f"{role} '{name}' is a Python {type(value).__name__}: expected an array")
        raise UnsupportedError(f"{role} '{name}' is {type(value).__name__}: expected an array")
    if value.dtype == jax.dtypes.float0 or jnp.issubdtype(value.dtype, jnp.integer) or value.dtype == bool:
        return False
    if str(value.dtype) not in _FLOATS:
        raise UnsupportedError(f"{role} '{name}' is {value.dtype}: expected float32, float64, float16 or bfloat16")
    return all(value.shape)


def leaves_of(found: List[Entry], choose: Optional[Chooser], decays: Optional[List[bool]]) -> Tuple[Leaf, ...]:
    """The leaves that take part, as the plan has to know them."""
    leaves = []
    for place, entry in enumerate(found):
        if not entry.takes_part:
            continue
        shape, dtype = tuple(entry.value.shape), entry.value.dtype
        own = _chosen(entry.name, choose, jax.ShapeDtypeStruct(shape, dtype))
        if decays is not None and not decays[place]:
            own = own._replace(weight_decay_scale=0.0)
        work = "float64" if dtype == np.float64 else "float32"
        leaves.append(Leaf(entry.name, shape, work, own))
    return tuple(leaves)


def _chosen(name: str, choose: Optional[Chooser], kind: jax.ShapeDtypeStruct) -> ParamOptions:
    given = choose(name, kind) if choose is not None else None
    if not given:
        return ParamOptions()
    unknown = sorted(set(given) - set(ParamOptions._fields))
    if unknown:
        known = ", ".join(ParamOptions._fields)
        raise InvalidArgumentError(f"param_options('{name}') has no '{unknown[0]}': expected {known}")
    own = ParamOptions(**{**given, "grafting_only": bool(given.get("grafting_only", False))})
    if not own.lr_scale > 0:
        raise InvalidArgumentError(f"parameter '{name}': lr_scale = {own.lr_scale}: expected a number > 0")
    for field in ("weight_decay_scale", "root"):
        if not getattr(own, field) >= 0:
            raise InvalidArgumentError(f"parameter '{name}': {field} = {getattr(own, field)}: expected a number >= 0")
    return own._replace(**{field: float(getattr(own, field)) for field in ("lr_scale", "weight_decay_scale", "root")})


def decay_mask(mask: Any, tree: Any, count: int) -> Optional[List[bool]]:
    """Optax's masks (a tree of booleans, a prefix of one, or a function of the tree), leaf by leaf."""
    if mask is None:
        return None
    chosen = mask(tree) if callable(mask) else mask
    none = {"is_leaf": lambda leaf: leaf is None}
    try:
        spread = jax.tree.map(lambda keep, part: jax.tree.map(lambda _: bool(keep), part, **none), chosen, tree, **none)
    except (ValueError, TypeError) as cause:
        raise InvalidArgumentError(f"weight_decay_mask does not fit the parameters: {cause}") from None
    flat = jax.tree.leaves(spread)
    if len(flat) != count:
        raise InvalidArgumentError(f"weight_decay_mask has {len(flat)} leaves: expected {count}, as the parameters")
    return flat


def match(grads: List[Entry], params: List[Entry]) -> List[Optional[Any]]:
    """For each of the parameters that take part its gradient, or None; complains about strangers by name."""
    by_name = {entry.name: entry for entry in grads}
    known = {entry.name for entry in params}
    for entry in grads:
        if entry.takes_part and entry.name not in known:
            raise ShapeMismatchError(f"there is a gradient '{entry.name}' but no such parameter")
    found = []
    for param in params:
        if not param.takes_part:
            continue
        entry = by_name.get(param.name)
        grad = entry.value if entry is not None and entry.takes_part else None
        if grad is not None and grad.shape != param.value.shape:
            raise ShapeMismatchError(
                f"gradient of '{param.name}': expected shape {list(param.value.shape)}, got {list(grad.shape)}"
            )
        found.append(grad)
    return found
