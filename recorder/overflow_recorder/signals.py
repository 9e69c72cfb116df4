"""Exceptions of signal handlers: what one raises in the middle of the recorder is not the recorder's fault."""

from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

__all__ = ["raised_by_signal_handler"]


def raised_by_signal_handler(error: BaseException) -> bool:
    """Whether an exception comes from a signal handler that interrupted the code in whose traceback it stands.

    Python runs a handler between any two steps of the main thread. A launcher that raises from one, to stop a training
    before its time is up, means the training, also where that is in one of the recorder's hooks just then.
    """
    handlers = set(_code_of_handlers())
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in handlers:
            return True
        traceback = traceback.tb_next
    return False


def _code_of_handlers() -> Iterator[CodeType]:
    for number in signal.valid_signals():
        code = _code(signal.getsignal(number))
        if code is not None:
            yield code


def _code(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = getattr(handler, "__func__", handler)  # a method's
    if callable(function) and not hasattr(function, "__code__"):
        function = type(function).__call__  # an object's that can be called
    code: CodeType | None = getattr(function, "__code__", None)
    return code
