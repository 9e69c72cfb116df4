"""What a fault of the recorder's own looks like from outside: one warning, never an exception."""

from __future__ import annotations

import contextlib
import sys
import warnings

from overflow_recorder.errors import RecorderWarning

__all__ = ["describe_error", "warn"]

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
