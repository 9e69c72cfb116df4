"""Runs a module as Windows would, as far as that can be shown elsewhere: ``python -m tests.integration.windows NAME``.

Gone is what Windows does not have of ``os``, ``signal``, ``mmap`` and the standard library; a directory is not opened,
and a file that a process of this kind has open or mapped is neither removed nor replaced.
"""

from __future__ import annotations

import asyncio  # noqa: F401  has a part for each system, which it takes as it is imported
import errno
import mmap
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch  # noqa: F401  has its own ways of telling systems apart

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = "tests.integration.windows"
_ABSENT = {
    os: """
        pwrite pread posix_fallocate fork forkpty register_at_fork sysconf geteuid getuid getgid statvfs mkfifo killpg
        setsid sched_getaffinity fchmod O_NONBLOCK O_CLOEXEC O_DIRECTORY O_NOFOLLOW WNOHANG
    """,
    signal: "SIGKILL SIGHUP SIGQUIT SIGXCPU SIGALRM SIGPIPE SIGUSR1 SIGUSR2 setitimer alarm pthread_kill sigwait",
    mmap: "MADV_DONTNEED MADV_WILLNEED MAP_SHARED MAP_PRIVATE PROT_READ PROT_WRITE",
}


def become_windows() -> None:
    """Take away what Windows does not have, and open files as it does."""
    for module, names in _ABSENT.items():
        for name in names.split():
            delattr(module, name)
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None  # type: ignore[assignment]  # importing it fails
    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, _refusing_open_files(getattr(os, name)))
    os.open = _refusing_directories(os.open)


def _refusing_open_files(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*paths: Any, **named: Any) -> Any:
        for path in paths:
            if os.path.lexists(path) and _is_open(Path(path)):
                raise PermissionError(errno.EACCES, "another process uses the file", str(path))
        return function(*paths, **named)

    return checked


def _refusing_directories(function: Callable[..., int]) -> Callable[..., int]:
    def checked(path: Any, *arguments: Any, **named: Any) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "a directory", str(path))
        return function(path, *arguments, **named)

    return checked


def _is_open(path: Path) -> bool:
    name = str(path.resolve())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if _NAME.encode() not in (process / "cmdline").read_bytes().split(b"\0"):
                continue
            opened = [str(one.readlink()) for one in (process / "fd").iterdir()]
            mapped = (process / "maps").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended
            continue
        if name in opened or f" {name}\n" in mapped:
            return True
    return False


if __name__ == "__main__":
    become_windows()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
