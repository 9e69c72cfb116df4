"""Opening what lies under a name in a trace: regular files of a sane size, never a pipe or a device that has no end."""

from __future__ import annotations

import errno
import os
import stat
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa


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
    """Return the bytes of a regular file.

    Args:
        path: The file.
        limit: The most bytes that a recorder can have written there.

    Raises:
        OSError: As ``open_regular``, or the file is larger.
    """
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return data
