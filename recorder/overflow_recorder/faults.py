"""Exceptions inside the recorder: its own faults become one warning, what a signal handler raises goes on."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import warnings
from typing import TYPE_CHECKING, Any

from overflow_recorder.errors import RecorderWarning

if TYPE_CHECKING:
    from types import CodeType


_LONGEST = 500


def describe_error(error: BaseException) -> str:
    """Return an exception's type and message in one bounded line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]


def warn(message: str) -> None:
    """Give a ``RecorderWarning``; where warnings are errors, print a line on stderr: no error may come from us."""
    try:
        warnings.warn(message, RecorderWarning, stacklevel=3)
    except Exception:  # noqa: BLE001  as an error, or by whatever shows warnings here
        with contextlib.suppress(Exception):
            print(f"overflow-trace: {message}", file=sys.stderr)  # noqa: T201


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether an exception comes from a signal handler that interrupted the code in whose traceback it stands.

    Python runs a handler between any two steps of the main thread. A launcher that raises from one, to stop a training
    before its time is up, means the training, also where that is in one of the recorder's hooks just then.
    """
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)  # a method's
    if callable(function) and not hasattr(function, "__code__"):
        function = type(function).__call__  # an object's that can be called
    code: CodeType | None = getattr(function, "__code__", None)
    return code
