"""One rank's directory: claimed by one living process, its parts bounded by ``max_bytes``."""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from overflow_analyzer.errors import TraceError
from overflow_analyzer.parts import sync_directory, write_part
from overflow_analyzer.schema import NAMES_FILE, PART_PREFIX, RING_FILE, RUN_FILE
from overflow_analyzer.trace import open_trace
from overflow_recorder.errors import TraceExistsError

try:
    import fcntl
except ImportError:  # a platform without advisory locks: whether a trace's run lives cannot be told there
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from overflow_analyzer.run_info import RunInfo

__all__ = ["TraceDirectory"]

_OWN_NAMES: Final = (RUN_FILE, RING_FILE, NAMES_FILE)
_RANK_PREFIX: Final = "rank="


@dataclass
class _Part:
    path: Path
    bytes: int
    retention: int
    """0: sampled, removed first; 1: asked for by number; 2: a detection's window, never removed."""


class TraceDirectory:
    """The files of one rank, owned from construction to ``release``.

    Args:
        path: The trace's directory; made if it is not there.
        rank: This process's rank.
        max_bytes: Most bytes of sealed parts; None for no bound.
        overwrite: Replace the trace of a run that has ended.

    Raises:
        TraceExistsError: Something is there that may not be replaced.
        OSError: The directory cannot be made or written.
    """

    def __init__(self, path: Path, rank: int, *, max_bytes: int | None, overwrite: bool) -> None:
        self.path = path / f"{_RANK_PREFIX}{rank}"
        self.parts_removed = 0
        self._max_bytes = max_bytes
        self._parts: list[_Part] = []
        self._sealed = 0
        self._lock: int | None = None
        _refuse_foreign(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._claim(path, overwrite=overwrite)

    def _claim(self, trace: Path, *, overwrite: bool) -> None:
        """Become the one owner. The lock is the kernel's: it ends with the process, however that ends."""
        ring = self.path / RING_FILE
        existed = any(self.path.iterdir())
        if existed and not overwrite:
            raise TraceExistsError(f"{trace}: {_what_is_there(trace)}; choose another path or pass overwrite=True")
        self._lock = os.open(ring, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise TraceExistsError(f"{trace}: a living run is recording there; choose another path") from None
        except OSError:
            pass  # a file system without locks
        if not _is_same_file(self._lock, ring):
            self.release()
            raise TraceExistsError(f"{trace}: another run took it at the same moment; choose another path")
        for old in self.path.iterdir():
            if old != ring and _is_own(old.name):
                old.unlink()
        os.truncate(self._lock, 0)

    def clear_other_ranks(self, world_size: int) -> None:
        """Remove what a larger run left behind, so that two runs are never read as one."""
        for other in self.path.parent.glob(f"{_RANK_PREFIX}*"):
            number = other.name.removeprefix(_RANK_PREFIX)
            if number.isdigit() and int(number) >= world_size and not _is_living(other):
                shutil.rmtree(other, ignore_errors=True)

    def write_run(self, run: RunInfo) -> None:
        """Replace ``_run.json`` whole.

        Raises:
            OSError: The disk refused; the earlier one is still there.
        """
        temporary = self.path / f"{RUN_FILE}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(run.to_json())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / RUN_FILE)
        sync_directory(self.path)

    def seal(self, table: pa.Table, run: RunInfo, frames: int, retention: int) -> None:
        """Seal a part, then keep to ``max_bytes``.

        Raises:
            OSError: The disk refused; nothing that was sealed is touched.
        """
        path = self.path / f"{PART_PREFIX}{self._sealed:08}.parquet"
        size = write_part(path, [table], [run], frames)
        self._sealed += 1
        self._parts.append(_Part(path, size, retention))
        if self._max_bytes is not None:
            self._retain(self._max_bytes)

    def _retain(self, max_bytes: int) -> None:
        total = sum(part.bytes for part in self._parts)
        # Sorting is stable: within one kind the oldest goes first. The newest stays, or nothing would.
        for part in sorted(self._parts[:-1], key=lambda part: part.retention):
            if total <= max_bytes or part.retention > 1:
                break
            with contextlib.suppress(FileNotFoundError):
                part.path.unlink()
            self._parts.remove(part)
            self.parts_removed += 1
            total -= part.bytes

    def release(self) -> None:
        """Let go of the lock; the files stay."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _refuse_foreign(path: Path) -> None:
    if path.is_dir():
        strange = sorted(one.name for one in path.iterdir() if not one.name.startswith((_RANK_PREFIX, ".")))
        if strange:
            raise TraceExistsError(f"{path}: a directory that holds something else ({strange[0]}); choose another path")
    elif path.exists() or path.is_symlink():
        raise TraceExistsError(f"{path}: a file is there; choose another path")


def _is_own(name: str) -> bool:
    return name in _OWN_NAMES or name.startswith((PART_PREFIX, f"_{PART_PREFIX}", f"{RUN_FILE}."))


def _what_is_there(trace: Path) -> str:
    try:
        found = open_trace(trace).ranks[0]
    except TraceError as error:
        return f"a trace is there already ({type(error).__name__.removesuffix('Error')})"
    parts = len(found.footers)
    return f"holds the trace of a run of {found.run.model_class or 'a model'} ({found.ended}, {parts} sealed parts)"


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _is_living(directory: Path) -> bool:
    try:
        descriptor = os.open(directory / RING_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
