"""Files of a trace: read only where they are regular and of a sane size, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa


PART_PREFIX: Final = "part-"
RUN_FILE: Final = "_run.json"
RING_FILE: Final = "_window.ring"
NAMES_FILE: Final = "_window.names"

# Opening a pipe would wait for its writer; a platform that has no such flag has no such pipes.
_AT_ONCE: Final = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file, through symbolic links.

    Raises:
        OSError: Nothing is there, it may not be read, or it is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | _AT_ONCE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def open_arrow(path: Path) -> pa.NativeFile:
    """Open a regular file for Arrow, whose threads then read it without Python, which may have ended before them.

    Raises:
        OSError: As ``open_regular``.
    """
    import pyarrow as pa

    open_regular(path).close()
    # Of bytes alone Arrow takes names that are no UTF-8; Windows has no such names.
    return pa.OSFile(os.fsencode(path) if os.name == "posix" else str(path))


def read_regular(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file; ``limit`` is the most that a recorder can have written there.

    Raises:
        OSError: As ``open_regular``, or the file is larger.
    """
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return data


@contextlib.contextmanager
def whole_file(path: Path, temporary: Path, *, replace: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that gets its name, flushed to the disk, when the block ends well: who sees the name sees all of it.

    Args:
        path: The name.
        temporary: The name until then, in the same directory. It is gone at the end if the disk lets it be removed.
        replace: Whether a file of that name is replaced.

    Raises:
        FileExistsError: A file has the name and is not to be replaced.
        OSError: The disk refused; what had the name is untouched.
    """
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            _name_new(temporary, path)
    except BaseException:
        _remove(temporary)
        raise
    sync_directory(path.parent)


def _name_new(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # unlike a rename, a link never replaces what came there in the meantime
    except FileExistsError:
        raise
    except (OSError, AttributeError):  # a file system or platform without hard links
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.rename(path)
    else:
        _remove(temporary)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def sync_directory(path: Path) -> None:
    """Make renames in a directory durable; where the platform cannot, there is nothing to do."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
