"""The options of a transformation, checked by the library before anything is traced."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

import jax

from .. import _library
from .._handle import _config, _config_dict, defaults, option_text
from ..errors import InvalidArgumentError, UnsupportedError

__all__ = ["Options", "ParamOptions", "read"]

#: Options of the library that mean nothing here, and what to do instead.
_ELSEWHERE = {
    "lr": "give learning_rate to foam(), or chain optax.scale_by_learning_rate",
    "device": "the work is done where the arrays are",
}


class ParamOptions(NamedTuple):
    """What one parameter may have of its own; the defaults are those of ``foam_param``."""

    lr_scale: float = 1.0
    weight_decay_scale: float = 1.0
    root: float = 0.0
    grafting_only: bool = False


class Options(NamedTuple):
    """Everything static about a transformation; hashable, so that traces can be told apart by it."""

    preset: str
    #: What was given, as the library's text, sorted by name.
    given: Tuple[Tuple[str, str], ...]
    #: All options in text form, sorted by name.
    all: Tuple[Tuple[str, str], ...]

    def text(self, name: str) -> str:
        """An option in text form."""
        return dict(self.all)[name]

    def number(self, name: str) -> float:
        """An option that is a number."""
        return float(self.text(name))

    def flag(self, name: str) -> bool:
        """An option that is true or false."""
        return self.text(name) == "true"

    @property
    def preconditions(self) -> bool:
        """Whether there are factors at all."""
        return self.text("policy") != "grafting_only"

    def attribute(self, weight_decay: float) -> str:
        """The options as the handlers read them."""
        pairs = {**dict(self.given), "weight_decay": option_text(weight_decay), "nonfinite": "skip"}
        return ";".join([f"preset={self.preset}", *(f"{key}={value}" for key, value in sorted(pairs.items()))])

    def here(self) -> Options:
        """The options for the devices of this process: a state on a GPU has no shared squares."""
        if jax.default_backend() == "cpu" or not self.flag("share_squares"):
            return self
        own = {"share_squares": "false"}
        given, every = ({**dict(pairs), **own} for pairs in (self.given, self.all))
        return Options(self.preset, tuple(sorted(given.items())), tuple(sorted(every.items())))

    def root(self, own: float, order: int) -> float:
        """p of a block's inverse roots; ``own`` is the parameter's."""
        return next(root for root in (own, self.number("root"), 2.0 * order) if root > 0)


def read(preset: Optional[str], given: Mapping[str, Any]) -> Options:
    """Checks what the user gave; every complaint names the option."""
    known = defaults(preset)
    texts: Dict[str, str] = {}
    for key, value in given.items():
        if key in _ELSEWHERE:
            raise InvalidArgumentError(f"option '{key}' is not one of foam.jax: {_ELSEWHERE[key]}")
        if isinstance(value, jax.core.Tracer) or (isinstance(value, jax.Array) and key in known):
            raise InvalidArgumentError(
                f"option '{key}' is a traced array: expected a number that is known when the step is compiled "
                f"(with optax.inject_hyperparams: static_args=('{key}',)); only learning_rate and a decoupled "
                "weight_decay may change from step to step"
            )
        texts[key] = option_text(value)
    if texts.get("nonfinite") == "error":
        raise UnsupportedError(
            "nonfinite = 'error': a compiled step cannot raise; expected 'skip': a step with a gradient that is not "
            "finite does nothing and is counted (foam_stats)"
        )
    # The library knows all ranges and relations.
    config = _config(preset, texts)
    _library.load().call("foam_config_validate", ctypes.byref(config))
    every = {**_config_dict(config), "nonfinite": "skip"}
    return Options(preset or "default", tuple(sorted(texts.items())), tuple(sorted(every.items())))
