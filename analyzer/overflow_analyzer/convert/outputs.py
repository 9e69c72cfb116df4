"""Files that the analyzer writes: whole under their name or not there at all, and never into a trace."""

from __future__ import annotations

import contextlib
import os
from typing import IO, TYPE_CHECKING, Final

from overflow_analyzer.errors import TraceError
from overflow_analyzer.format.files import PART_PREFIX, RING_FILE, RUN_FILE, whole_file
from overflow_analyzer.format.origin import ORIGIN_FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_OF_A_RANK: Final = (RUN_FILE, ORIGIN_FILE, RING_FILE, f"{PART_PREFIX}*.parquet")


class OutputError(TraceError):
    """The place for the result is taken or cannot be written."""

    exit_code = 2


def refuse_traces(path: Path, reading: Path | None = None) -> None:
    """Refuse a place in a trace's directory, or the file of the trace that is read.

    Raises:
        OutputError: It is one.
    """
    place = path.resolve()
    if reading is not None and place == reading.resolve():
        raise OutputError(f"{path}: is the trace that is read; give another name")
    for directory in (place, *place.parents):
        ranks = [directory, *directory.glob("rank=*")]
        if any((one / name).exists() for one in ranks for name in _OF_A_RANK[:2]) or any(
            next(one.glob(_OF_A_RANK[2]), None) for one in ranks[1:]
        ):
            raise OutputError(f"{path}: lies in the trace {directory}; give a place outside it")


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool, reading: Path | None = None) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name when the block ends well, flushed to the disk.

    A device or a pipe is written to as it stands, and so is what a symbolic link points to: the link stays.

    Args:
        path: The name.
        overwrite: Whether a regular file of that name may be replaced. It stays until the block ends.
        reading: The trace that is read.

    Raises:
        OutputError: A trace, a directory or a file that may not be replaced is there, or the place cannot be written.
    """
    refuse_traces(path, reading)
    if path.is_dir():
        raise OutputError(f"{path}: is a directory; give the name of a file")
    place = path.resolve()
    taken = OutputError(f"{path}: is there already; --overwrite replaces it")
    if place.is_file() and not overwrite:
        raise taken
    try:
        if place.exists() and not place.is_file():
            with place.open("wb") as file:
                yield file
        else:
            temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
            with whole_file(place, temporary, replace=overwrite) as file:
                yield file
    except FileExistsError:
        raise taken from None
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error
