"""The one place where an error becomes a message on stderr and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Final

import click

from overflow_analyzer.cli.output import forget_stdout, note
from overflow_analyzer.errors import TraceError

TRACEBACK_VARIABLE: Final = "OVERFLOW_ANALYZE_TRACEBACK"
"""Environment variable: set to 1, an unexpected error shows its traceback too."""

_USAGE, _UNREADABLE, _INTERRUPTED = 2, 3, 130


def exit_code_for(error: BaseException) -> int:
    """Say on stderr what ended a command and return the exit code for it."""
    if isinstance(error, click.ClickException):
        error.show(file=sys.stderr)
        return _USAGE
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return _INTERRUPTED
    if isinstance(error, BrokenPipeError):  # the reader of stdout has gone: it has what it wanted
        forget_stdout()
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else _UNREADABLE
    message, code = _explained(error)
    note(message)
    return code


def _explained(error: BaseException) -> tuple[str, int]:
    if isinstance(error, TraceError):
        return str(error), error.exit_code
    if isinstance(error, OSError) and error.strerror:
        return ": ".join(part for part in (str(error.filename or ""), error.strerror) if part), _UNREADABLE
    if isinstance(error, MemoryError):
        return "not enough memory", _UNREADABLE
    if os.environ.get(TRACEBACK_VARIABLE, "") not in ("", "0"):
        traceback.print_exception(error)
    kind = f"{type(error).__name__}: {error}"
    return f"an error of its own ({kind}); please report it with what {TRACEBACK_VARIABLE}=1 shows", _UNREADABLE
