"""Writing a result to stdout: nothing else goes there, and a reader that goes away is no error."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from overflow_analyzer.text.escape import escape

if TYPE_CHECKING:
    from collections.abc import Iterable


def write(text: str | Iterable[str]) -> None:
    """Write a result, whole or piece by piece.

    Args:
        text: Text with its line ends. Where the reader has gone (``| head -1``) the remaining pieces are not asked for,
            and the command goes on to its exit code.

    Raises:
        OSError: stdout refuses (a full disk, say).
    """
    if sys.stdout is None:
        return
    try:
        for piece in [text] if isinstance(text, str) else text:
            sys.stdout.write(piece)
    except BrokenPipeError:
        _forget_stdout()


def note(text: str) -> None:
    """Say something beside the result, as one line on stderr."""
    if sys.stderr is not None:
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.write(f"overflow-analyze: {escape(text)}\n")


def finish() -> None:
    """Flush stdout, so that what it refuses is known before the interpreter ends."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()


def _forget_stdout() -> None:
    """Let what is still buffered, and whatever follows, go nowhere: the interpreter flushes once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
