"""What keeps a configuration from working, as the library judges it from the statistics of the factors."""

from __future__ import annotations

import ctypes
import math
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from . import _library, _structs

__all__ = ["diagnose", "diagnose_one", "merged", "names", "sentences"]


def names(bits: int) -> List[str]:
    """The findings of a set of ``FOAM_FINDING_*`` bits."""
    return [name for place, name in enumerate(_structs.FINDINGS) if bits >> place & 1]


def sentences(text: str) -> Dict[str, str]:
    """The library's text by finding: one line each, which starts with the name."""
    parts = (line.partition(": ") for line in text.splitlines())
    return {name: said for name, _, said in parts}


def merged(each: Sequence[Mapping[str, str]], what: str) -> Dict[str, str]:
    """The findings of several optimizers; with more than one, each sentence says whose it is."""
    found: Dict[str, str] = {}
    for index, own in enumerate(each):
        for name, said in own.items():
            said = f"{what}[{index}]: {said}" if len(each) > 1 else said
            found[name] = f"{found[name]}; {said}" if name in found else said
    return found


def diagnose(
    options: Mapping[str, Any], factors: Sequence[Mapping[str, Any]]
) -> Tuple[Dict[str, str], List[List[str]]]:
    """Judges statistics that were read before.

    Args:
        options: the options that were in use; the preset ``"reference"`` completes them, or ``options["preset"]``.
        factors: a dict for each factor, as ``factor_stats`` gives it; what is missing is unknown.

    Returns:
        The findings about all of them, a sentence by name, and for each factor the names of its own.
    """
    from ._handle import _config

    given = dict(options)
    config = _config(str(given.pop("preset", "reference")), given)
    items = (_structs.FactorInfo * max(len(factors), 1))()
    for item, factor in zip(items, factors):
        for name, kind in item._fields_:
            if kind is ctypes.c_double:
                setattr(item, name, factor.get(name, math.nan))
            elif kind is ctypes.c_uint64 and name != "findings":
                setattr(item, name, int(factor.get(name) or 0))
    size = ctypes.c_size_t(0)
    text = ctypes.create_string_buffer(1 << 14)
    listed = (ctypes.byref(config), items, ctypes.sizeof(_structs.FactorInfo), len(factors))
    _library.load().call("foam_diagnose", *listed, None, text, len(text), ctypes.byref(size))
    each = [names(items[place].findings) for place in range(len(factors))]
    return sentences(text.value.decode("utf-8", "replace")), each


def diagnose_one(options: Mapping[str, Any], factor: Mapping[str, Any]) -> Dict[str, str]:
    """The findings about one factor, a sentence by name."""
    found, _ = diagnose(options, [factor])
    # "1 of 1 factors" says nothing.
    return {name: said.partition(": ")[2] for name, said in found.items()}
