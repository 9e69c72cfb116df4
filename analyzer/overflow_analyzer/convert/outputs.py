"""Files that the analyzer writes: whole under their name or not there at all, and never over another by accident."""

from __future__ import annotations

import contextlib
import os
from typing import IO, TYPE_CHECKING

from overflow_analyzer.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class OutputError(TraceError):
    """The place for the result is taken or cannot be written."""

    exit_code = 2


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken.

    Raises:
        OutputError: A directory is there, or a file that may not be replaced.
    """
    if path.is_dir():
        raise OutputError(f"{path}: is a directory; give the name of a file")
    if not overwrite and os.path.lexists(path):
        raise OutputError(f"{path}: is there already; --overwrite replaces it")


@contextlib.contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open a file for writing that gets its name when the block ends well, flushed to the disk.

    Args:
        path: The name.
        overwrite: Whether a file of that name may be replaced. It is as long as the block has not ended.

    Raises:
        OutputError: As ``refuse_existing``, or the directory refuses.
    """
    refuse_existing(path, overwrite=overwrite)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _name(temporary, path, overwrite=overwrite)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror or error})") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _name(temporary: Path, path: Path, *, overwrite: bool) -> None:
    if overwrite:
        temporary.replace(path)
        return
    try:
        # Unlike a rename, a link never replaces what came there in the meantime.
        os.link(temporary, path)
    except FileExistsError:
        raise OutputError(f"{path}: is there already; --overwrite replaces it") from None
    except (OSError, AttributeError):  # a file system or platform without hard links
        refuse_existing(path, overwrite=False)
        temporary.rename(path)
