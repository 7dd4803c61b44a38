"""FOAM: the Shampoo optimizer whose damping and eigendecompositions are steered by a measured error.

>>> import numpy, foam
>>> w = numpy.ones((8, 4), numpy.float32)
>>> optimizer = foam.Optimizer({"w": w}, lr=0.01)
>>> skipped = optimizer.step({"w": 2 * w})      # w is updated in place

``foam.torch.FOAM`` is a ``torch.optim.Optimizer``. On the command line: ``python -m foam doctor | plot |
report | replay``. The work is done by the shared library ``libfoam``; this package needs nothing but it and Python.
``FOAM_LIBRARY`` in the environment names the library to use.
"""

from . import errors
from ._handle import defaults
from ._version import __version__
from .errors import *  # noqa: F403
from .optimizer import Optimizer, Param, plan

__all__ = ["Optimizer", "Param", "defaults", "plan", "build_info", "library_path", "__version__"]
__all__ += errors.__all__


def build_info() -> str:
    """One line about the library in use: version, ABI, target and backends."""
    from ._library import load

    return load().build_info


def library_path() -> str:
    """The file of the library in use."""
    from ._library import load

    return load().path
