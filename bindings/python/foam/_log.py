"""What the library says goes to the logger ``"foam"``; what the logger's handlers raise goes to the caller.

The callback runs inside a native call, which an exception cannot cross. It is kept, the call ends as it would have,
and the exception is raised then: Ctrl-C during a log line stops the program after the step, not in its middle.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Iterator, Optional

from . import _structs

__all__ = ["LOG", "hearing"]

_logger = logging.getLogger("foam")
_LEVELS = {_structs.LOG_WARNING: logging.WARNING, _structs.LOG_INFO: logging.INFO}


class _Kept(threading.local):
    """What a callback of this thread raised, and how many blocks of :func:`hearing` the thread is in."""

    error: Optional[BaseException] = None
    depth = 0


_kept = _Kept()


def _native_log(_user: Any, level: int, message: bytes) -> None:
    try:
        _logger.log(_LEVELS.get(level, logging.INFO), "%s", message.decode("utf-8", "replace"))
    except BaseException as error:
        # The first one counts; a later one would hide it.
        _kept.error = _kept.error or error


#: One callback for all handles, kept for good: the library may call it as long as a handle lives.
LOG = _structs.LOG_FUNCTION(_native_log)


@contextlib.contextmanager
def hearing() -> Iterator[None]:
    """Raises, at the end of the outermost block, what a log handler raised within it."""
    _kept.depth += 1
    try:
        yield
    finally:
        _kept.depth -= 1
        if _kept.depth == 0 and _kept.error is not None:
            error, _kept.error = _kept.error, None
            raise error
