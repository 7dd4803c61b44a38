"""What can go wrong: one exception for each status of the library, all of them a :class:`FoamError`."""

from __future__ import annotations

from typing import Dict, Optional, Type

from . import _structs

__all__ = [
    "FoamError",
    "InvalidArgumentError",
    "UnsupportedError",
    "ShapeMismatchError",
    "OutOfMemoryError",
    "DeviceError",
    "NotFiniteError",
    "NoConvergenceError",
    "IoError",
    "BadCheckpointError",
    "CollectiveError",
    "CancelledError",
    "BusyError",
    "PoisonedError",
    "PanicError",
    "LibraryError",
]


class FoamError(Exception):
    """Base of all errors of this package.

    Attributes:
        code: the status, a ``FOAM_*`` number; 0 if the error did not come with one.
        status: its name, for example ``"FOAM_SHAPE_MISMATCH"``.
        param_index: index of the parameter concerned, or None.
        axis: axis of the block concerned, or None.
        native_code: error number of the operating system or the device, or 0.
        message: a sentence that names the parameter or the option and says what was expected.
    """

    #: The status that an instance has unless another is given.
    default_code = 0

    def __init__(
        self,
        message: str,
        code: Optional[int] = None,
        param_index: Optional[int] = None,
        axis: Optional[int] = None,
        native_code: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = self.default_code if code is None else code
        self.param_index = param_index
        self.axis = axis
        self.native_code = native_code

    @property
    def status(self) -> str:
        """The name of :attr:`code`."""
        known = 0 < self.code < len(_structs.STATUS_NAMES)
        return _structs.STATUS_NAMES[self.code] if known else "FOAM_UNKNOWN"

    def __reduce__(self):
        # Errors travel between processes (data loaders, launchers): keep what they say.
        return type(self), (self.message, self.code, self.param_index, self.axis, self.native_code)


class InvalidArgumentError(FoamError, ValueError):
    """An argument or option is out of range, or contradicts another; a parameter cannot be written."""

    default_code = 1


class UnsupportedError(FoamError, TypeError):
    """A legal request that is not served: an element type, a device, a tensor that is not contiguous."""

    default_code = 2


class ShapeMismatchError(FoamError, ValueError):
    """A tensor's shape, element type or device is not the one declared at creation."""

    default_code = 3


class OutOfMemoryError(FoamError, MemoryError):
    """Memory for the state could not be had."""

    default_code = 4


class DeviceError(FoamError):
    """The device reported an error; ``native_code`` holds its number."""

    default_code = 5


class NotFiniteError(FoamError, ArithmeticError):
    """A gradient is not finite. The step changed nothing; ``nonfinite="skip"`` skips such steps instead."""

    default_code = 6


class NoConvergenceError(FoamError, ArithmeticError):
    """An eigendecomposition of a diagnostic failed on every path."""

    default_code = 7


class IoError(FoamError):
    """A file could not be read or written; ``native_code`` holds the system's error number."""

    default_code = 8


class BadCheckpointError(FoamError, ValueError):
    """A checkpoint is truncated, foreign, or belongs to another model."""

    default_code = 9


class CollectiveError(FoamError):
    """A collective callback failed."""

    default_code = 10


class CancelledError(FoamError):
    """The caller asked to stop."""

    default_code = 11


class BusyError(FoamError):
    """Another thread is inside a call on the same optimizer."""

    default_code = 12


class PoisonedError(FoamError):
    """An earlier panic left the optimizer unusable; only its statistics can still be read."""

    default_code = 13


class PanicError(FoamError):
    """An internal error of the library; the optimizer is now poisoned."""

    default_code = 14


class LibraryError(FoamError, ImportError):
    """``libfoam`` could not be found, loaded or used; the message lists everything that was tried."""

    # ImportError's own initialiser would swallow the message.
    def __str__(self) -> str:
        return self.message


_BY_STATUS: Dict[int, Type[FoamError]] = {
    kind.default_code: kind for kind in FoamError.__subclasses__() if kind.default_code
}


def from_record(record: _structs.Error, status: int) -> FoamError:
    """The exception for a failed call, from its ``foam_error``."""
    message = record.message.decode("utf-8", "replace") or f"the library returned status {status}"
    kind = _BY_STATUS.get(status, FoamError)
    return kind(
        message,
        code=status,
        param_index=None if record.param_index < 0 else record.param_index,
        axis=None if record.axis < 0 else record.axis,
        native_code=record.native_code,
    )
