"""The methods of the study: how an optimizer is made for a model, and which learning rates are tried.

Every method gets the same tuning: five learning rates, `FACTORS` times a centre. The centre is AdamW's, 3e-3, for all
whose steps are as long as AdamW's (those grafted to Adam, SOAP, Muon with ``match_rms_adamw``); only the ones without
grafting have their own. The rest are each method's defaults; weight decay is 0 for all.
"""

from __future__ import annotations

import collections
import functools
import importlib.util
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import nn

import foam.torch
from schedules import Schedule, split

FACTORS: Tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
ADAMW_CENTRE = 3e-3


class Method(NamedTuple):
    """A method: options of the library, or a function that makes torch's optimizers."""

    what: str
    #: Options of `foam.torch.FOAM`, with `preset`; None for a method that is not ours.
    options: Optional[Mapping[str, Any]] = None
    make: Optional[Callable[[nn.Module, float], Sequence[torch.optim.Optimizer]]] = None
    centre: float = ADAMW_CENTRE
    #: FOAM gets the model, so that embeddings and vectors are left to the grafted method; else all its parameters.
    by_model: bool = True
    #: The adaptive method whose number of refreshes this control has, and the kind of schedule that it has them on.
    as_many_as: Optional[str] = None
    schedule: Optional[str] = None
    #: Run on every task; else on those of `tasks.CONTROLS`, unless tasks are asked for by name.
    everywhere: bool = True
    #: A variant of an option that lays out blocks, for the tasks of `tasks.LAYOUT`.
    layout: bool = False
    #: About how much longer a run is than AdamW's.
    cost: float = 2.0

    def optimizers(self, model: nn.Module, lr: float, schedule: Optional[Schedule] = None) -> Sequence[Any]:
        """What is stepped."""
        if self.make is not None:
            return self.make(model, lr)
        given = {"lr": lr, "num_threads": 1, "weight_decay": 0.0, **self.options, **(schedule.options if schedule else {})}
        optimizer = foam.torch.FOAM(model if self.by_model else model.named_parameters(), **given)
        if schedule and schedule.factors:
            counts = collections.Counter(factor["param"] for factor in optimizer.factor_stats())
            groups = foam.torch.param_groups(model) if self.by_model else optimizer.param_groups
            optimizer = foam.torch.FOAM(split(groups, counts, schedule), **given)
        return [optimizer]


# ---- methods of others


def _adamw(model: nn.Module, lr: float) -> Sequence[torch.optim.Optimizer]:
    return [torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)]


def _orthogonal(update: torch.Tensor, coefficients: Sequence[float], steps: int, eps: float) -> torch.Tensor:
    """Muon's iteration X ← aX + (bS + cS²)X with S = XXᵀ, in single precision: torch's works in bf16, for which CPUs
    without such products need far longer: eleven times for a run on the autoencoder.
    """
    a, b, c = coefficients
    wide = update.T if update.shape[0] > update.shape[1] else update
    x = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if update.shape[0] > update.shape[1] else x


def _muon(model: nn.Module, lr: float) -> Sequence[torch.optim.Optimizer]:
    """torch's own Muon, in f32, for the matrices inside; AdamW for embeddings, the last layer, vectors and kernels."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    inside = [module.weight for module in linear[:-1]]
    chosen = {id(param) for param in inside}
    torch.optim._muon._zeropower_via_newtonschulz = _orthogonal
    rest = [param for param in model.parameters() if id(param) not in chosen]
    return [
        torch.optim.Muon(inside, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=lr, weight_decay=0.0),
    ]


def soap_file() -> Optional[str]:
    """The authors' soap.py, if ``FOAM_SOAP_FOLDER`` names the folder that it is in."""
    folder = os.environ.get("FOAM_SOAP_FOLDER")
    path = os.path.join(folder, "soap.py") if folder else None
    return path if path and os.path.exists(path) else None


def _soap_authors(model: nn.Module, lr: float) -> Sequence[torch.optim.Optimizer]:
    spec = importlib.util.spec_from_file_location("soap", soap_file())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [module.SOAP(model.parameters(), lr=lr, weight_decay=0.0, precondition_frequency=10)]


# ---- all methods


#: The default preset also refreshes at geometric times; without that a rule decides alone.
RULE = {"refresh_schedule": "fixed"}
NO_GRAFTING = {"grafting": "none", "root": 0, "precondition_1d": True}
SOAP_AUTHORS = {"preset": "soap", "soap_form": "exact", "refresh_schedule": "fixed", "check_period": 10}

METHODS: Dict[str, Method] = {
    "adamw": Method("AdamW (torch)", make=_adamw, cost=1.0),
    "muon": Method("Muon (torch, in f32) and AdamW", make=_muon, cost=1.5),
    "sandwich": Method("the default preset: refreshed at geometric times, the bound between them", {}),
    "sandwich_fixed": Method("the bound alone, checked every 10 steps", RULE),
    "stale": Method("Shampoo, refreshed every 10 steps", {"policy": "stale", **RULE}, cost=3.0),
    "foam": Method("FOAM as in the paper", {"preset": "reference"}, by_model=False, cost=2.5),
    "foam_relative": Method(
        "FOAM's rule, other options as the default preset", {"policy": "foam", **RULE}, everywhere=False
    ),
    "certified": Method("the certified rule of theorem 1", {"policy": "foam_certified", **RULE}),
    "fixed_epsilon": Method(
        "the proxy alone: no correction, ε fixed", {"policy": "foam_fixed_epsilon", **RULE}, everywhere=False
    ),
    "diagonal_residual": Method("the off-diagonal residual", {"policy": "diagonal_residual", **RULE}),
    "sandwich_ungrafted": Method(
        "the bound alone, p = 4, no grafting", {**NO_GRAFTING, **RULE}, centre=1e-2, by_model=False, cost=2.5,
        everywhere=False,
    ),
    "stale_ungrafted": Method(
        "Shampoo, p = 4, no grafting", {"policy": "stale", **NO_GRAFTING, **RULE}, centre=1e-2, by_model=False,
        cost=3.5, everywhere=False,
    ),
    "stale_uniform": Method(
        "stale at equal distances", {"policy": "stale"}, as_many_as="sandwich", schedule="uniform",
        everywhere=False,
    ),
    "stale_front": Method(
        "stale, front-loaded", {"policy": "stale"}, as_many_as="sandwich", schedule="front_loaded",
    ),
    "stale_front_corrected": Method(
        "stale, front-loaded, spectra corrected every 10 steps",
        {"policy": "stale", "correction_period": 10},
        as_many_as="sandwich",
        schedule="front_loaded",
    ),
    "stale_geometric": Method(
        "stale, geometric", {"policy": "stale"}, as_many_as="sandwich", schedule="geometric",
    ),
    "stale_geometric_corrected": Method(
        "stale, geometric, spectra corrected every 10 steps",
        {"policy": "stale", "correction_period": 10},
        as_many_as="sandwich",
        schedule="geometric",
    ),
    "stale_front_fixed": Method(
        "stale, front-loaded", {"policy": "stale"}, as_many_as="sandwich_fixed", schedule="front_loaded",
    ),
    "stale_geometric_fixed": Method(
        "stale, geometric", {"policy": "stale"}, as_many_as="sandwich_fixed", schedule="geometric",
    ),
    "stale_front_certified": Method(
        "stale, front-loaded", {"policy": "stale"}, as_many_as="certified", schedule="front_loaded",
    ),
    "stale_front_residual": Method(
        "stale, front-loaded", {"policy": "stale"}, as_many_as="diagonal_residual", schedule="front_loaded",
    ),
    "stale_front_foam": Method(
        "stale, front-loaded, other options as in the paper",
        {"preset": "reference", "policy": "stale", "start_step": 20},
        by_model=False, as_many_as="foam", schedule="front_loaded", cost=2.5,
    ),
    "stale_front_relative": Method(
        "stale, front-loaded", {"policy": "stale"}, as_many_as="foam_relative", schedule="front_loaded",
        everywhere=False,
    ),
    "stale_front_fixed_epsilon": Method(
        "stale, front-loaded", {"policy": "stale"}, as_many_as="fixed_epsilon", schedule="front_loaded",
        everywhere=False,
    ),
    "stale_front_ungrafted": Method(
        "stale, front-loaded, p = 4, no grafting", {"policy": "stale", **NO_GRAFTING}, centre=1e-2, by_model=False,
        as_many_as="sandwich_ungrafted", schedule="front_loaded", everywhere=False,
    ),
    "soap_exact": Method("SOAP as its authors have it (ours)", SOAP_AUTHORS, by_model=False),
    "soap_fast": Method("SOAP in the basis, front-loaded (the preset)", {"preset": "soap"}, by_model=False),
    "soap_kappa": Method(
        "SOAP, refreshed where κ asks",
        {"preset": "soap", "refresh_schedule": "kappa", "check_period": 5},
        by_model=False,
    ),
    "soap_front": Method(
        "SOAP, front-loaded", {"preset": "soap"}, by_model=False, as_many_as="soap_kappa", schedule="front_loaded",
    ),
    "soap_geometric": Method(
        "SOAP, geometric", {"preset": "soap"}, by_model=False, as_many_as="soap_kappa", schedule="geometric",
        everywhere=False,
    ),
    "soap_authors": Method("SOAP, the authors' file", make=_soap_authors, cost=2.5),
}


def known() -> List[str]:
    """The methods that can be run here."""
    return [name for name in METHODS if name != "soap_authors" or soap_file()]


# ---- ablations: the default preset with one option changed

#: Options that decide about blocks alone.
LAYOUT = ("merge_dims", "keep_matrix", "even_blocks")


@functools.lru_cache(maxsize=None)
def ablations() -> Dict[str, Dict[str, Method]]:
    """For each option its variants by name, in order. The one that the default preset has is called `default` in all of
    them, and run once.
    """
    values: Dict[str, Sequence[Any]] = {
        "max_factor_dim": [64, 128, 256, 512, 1024],
        "tau": [0.1, 0.25, 0.5, 0.75, 1.0],
        "check_period": [2, 5, 10, 20, 50],
        "epsilon": [1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 1e-2],
        "epsilon_mode": ["relative", "absolute"],
        "root": [2, 4],
        "grafting": ["adam", "rmsprop", "sgd"],
        "grafting_beta2": [0.99, 0.995, 0.999],
        "grafting_epsilon": [1e-8, 1e-5],
        "normalized_grafting": ["false", "true"],
        "statistic_dtype": ["f32", "f64"],
        "policy": ["sandwich", "foam_certified", "foam_fixed_epsilon", "foam", "diagonal_residual", "stale"],
        "refresh_schedule": ["combined", "fixed", "front_loaded", "geometric"],
        "refresh_growth": [1.25, 1.5, 2.0, 3.0],
        "refresh_method": ["evd", "qr"],
        "refresh_delay": [0, 1, 10],
        "statistics_period": [1, 2, 10],
        "start_step": [1, 10],
        "cadence": ["reference", "paper"],
        "beta1": [0.8, 0.9, 0.95],
        "beta2": [0.9, 0.95, 0.99, 0.999],
        "bias_correction": ["true", "false"],
        "nadam": ["false", "true"],
        "momentum": [0.0, 0.5],
        "weight_decay": [0.0, 0.01, 0.1],
        "negative_eigenvalues": ["clamp", "shift"],
        "keep_inverse_root": ["true", "false"],
        "merge_dims": ["true", "false"],
        "keep_matrix": ["true", "false"],
        "even_blocks": ["true", "false"],
    }
    # What else a value needs: checks every second step at first; dampings in units of the squared gradient.
    more = {
        "front_loaded": {"front_period": 2, "front_steps": 20},
        "absolute": {"epsilon": 1e-9, "epsilon_max": 3e-7},
    }
    given = {**foam.defaults(), "statistic_dtype": "f32"}
    default = {
        option: value for option, some in values.items() for value in some if _equal(str(value), given[option])
    }
    named: Dict[str, Dict[str, Method]] = {}
    for option, some in values.items():
        named[option] = {
            "default" if value == default.get(option) else f"{option}={value}": Method(
                f"{option} = {value}",
                default if value == default.get(option) else {option: value, **more.get(value, {})},
                cost=2.5,
                layout=option in LAYOUT,
            )
            for value in some
        }
    named["precondition_1d"] = {
        f"precondition_1d={text}": Method(
            f"precondition_1d = {text}, no parameter left out", {"precondition_1d": text == "true"}, by_model=False
        )
        for text in ("false", "true")
    }
    return named


def _equal(a: str, b: str) -> bool:
    try:
        return float(a) == float(b)
    except ValueError:
        return a == b


def find(name: str) -> Method:
    """A method or a variant of the ablations, by name."""
    if name in METHODS:
        return METHODS[name]
    for variants in ablations().values():
        if name in variants:
            return variants[name]
    raise KeyError(f"no method '{name}': expected {', '.join(METHODS)}")
