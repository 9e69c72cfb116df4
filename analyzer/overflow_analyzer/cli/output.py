"""Where results go: stdout, which gets nothing else and whose reader may go away, or what ``-o`` names."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import IO, TYPE_CHECKING

from overflow_analyzer.text.escape import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def write(text: str | Iterable[str]) -> None:
    """Write a result, whole or in pieces; where its reader has gone (``| head -1``), no more of them are asked for.

    Raises:
        OSError: stdout refuses (a full disk, say).
    """
    if sys.stdout is None:
        return
    try:
        for piece in [text] if isinstance(text, str) else text:
            sys.stdout.write(piece)
    except BrokenPipeError:
        forget_stdout()


@contextlib.contextmanager
def open_output(path: str, *, overwrite: bool, reading: Path) -> Iterator[IO[bytes]]:
    """Open what ``-o`` names: ``-`` is stdout, everything else goes through ``convert.outputs.new_file``.

    Raises:
        OutputError: The place is taken, lies in a trace, or cannot be written.
    """
    from pathlib import Path

    from overflow_analyzer.convert.outputs import new_file

    if path != "-":
        with new_file(Path(path), overwrite=overwrite, reading=reading) as file:
            yield file
        return
    sys.stdout.flush()
    yield sys.stdout.buffer


def say_done(path: str, text: str) -> None:
    """Say on stdout what was written, unless the result itself went there."""
    if path != "-":
        write(f"{path}: {text}\n")


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
        forget_stdout()


def forget_stdout() -> None:
    """Let what is still buffered, and whatever follows, go nowhere: the interpreter flushes once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
