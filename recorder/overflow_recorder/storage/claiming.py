"""Taking a trace's directory: refusing what is not ours to replace, and one living process a rank."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, Final

from overflow_analyzer.errors import EmptyTraceError, TraceError
from overflow_analyzer.format.files import NAMES_FILE, PART_PREFIX, RING_FILE, RUN_FILE
from overflow_analyzer.format.modules import MODULES_FILE
from overflow_analyzer.format.origin import ORIGIN_FILE
from overflow_analyzer.format.run_info import RunInfo
from overflow_analyzer.trace.opening import open_trace
from overflow_recorder.errors import TraceExistsError

try:
    import fcntl
except ImportError:  # Windows: whether a trace's run lives cannot be told there
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


RING_TEMPORARY: Final = f"{RING_FILE}.tmp"
_RANK_DIRECTORY: Final = re.compile(r"rank=(\d+)")
_OWN_FILE: Final = re.compile(
    rf"{PART_PREFIX}\d{{8,}}\.parquet|_{PART_PREFIX}\d{{8,}}\.parquet\.tmp|_{re.escape(RUN_FILE)}\.tmp|"
    rf"_{re.escape(ORIGIN_FILE)}\.tmp|_{re.escape(MODULES_FILE)}\.tmp|"
    + "|".join(map(re.escape, (RUN_FILE, ORIGIN_FILE, MODULES_FILE, RING_FILE, NAMES_FILE, RING_TEMPORARY)))
)
_ATTEMPTS: Final = 10
_PAUSE_SECONDS: Final = 0.02


def check_no_foreign_files(trace: Path) -> None:
    """Refuse a path that has something else than a trace.

    Raises:
        TraceExistsError: It has; nothing was touched.
    """
    if trace.is_dir():
        names = sorted(one.name for one in trace.iterdir())
        strange = [name for name in names if not (_RANK_DIRECTORY.fullmatch(name) or name.startswith("."))]
        if strange:
            raise TraceExistsError(
                f"{trace}: a directory that holds something else ({strange[0]}); choose another path"
            )
    elif trace.exists() or trace.is_symlink():
        raise TraceExistsError(f"{trace}: a file is there; choose another path")


def claim(directory: Path, *, overwrite: bool) -> int | None:
    """Become the one owner of a rank's directory, whose own files of an earlier run are gone then.

    The lock is the kernel's: it ends with the process, however that ends. A system without such locks is one that
    neither removes nor replaces a file that is open, as the ring of a living run is.

    Args:
        directory: It is there.
        overwrite: Whether an ended run's trace may be replaced.

    Returns:
        A descriptor of the new, empty ring, which holds the lock until it is closed; None without locks.

    Raises:
        TraceExistsError: A run lives there, or has ended there and may not be replaced; nothing was touched.
        OSError: The directory cannot be written.
    """
    if not overwrite and any(directory.iterdir()):
        raise TraceExistsError(_refusal(directory.parent))
    if fcntl is None:
        try:
            (directory / RING_FILE).unlink(missing_ok=True)
        except PermissionError:
            raise _is_living(directory.parent) from None
        clear(directory)
        return None
    ring = directory / RING_FILE
    old = _lock(ring)
    try:
        if not overwrite and any(one != ring for one in directory.iterdir()):  # a run came and ended in between
            ring.unlink()
            raise TraceExistsError(_refusal(directory.parent))
        return _start_anew(directory)
    finally:
        os.close(old)


def claim_again(directory: Path, run_id: str) -> int | None:
    """Become the owner of a rank's directory again, in which this run's trace was completed.

    Returns:
        As ``claim``.

    Raises:
        TraceExistsError: Another run has taken it since.
        OSError: The directory is gone, or the trace in it could not be completed.
    """
    described, ring = directory / RUN_FILE, directory / RING_FILE
    if RunInfo.from_json(described.read_bytes(), described).run_id != run_id:
        raise TraceExistsError(f"{directory.parent}: another run was recorded there since; choose another path")
    if ring.exists():
        raise FileExistsError(f"{ring}: what was recorded before is not sealed yet")
    return None if fcntl is None else _lock(ring)


def _start_anew(directory: Path) -> int:
    """Put a new ring in the old one's place: where locks do not work, a living run still maps the old one."""
    fresh = directory / RING_TEMPORARY
    descriptor = _lock(fresh)  # a run that is closing has it under this name at last
    try:
        os.ftruncate(descriptor, 0)
        clear(directory, keep=(fresh.name, RING_FILE))
        fresh.replace(directory / RING_FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _lock(ring: Path) -> int:
    """Lock the ring's file; what reads a trace takes the lock for a moment too, to see whether its run lives."""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        descriptor = os.open(ring, os.O_RDWR | os.O_CREAT, 0o666)
        if _try_to_lock(descriptor) and is_claimed(descriptor, ring):
            return descriptor
        os.close(descriptor)
    raise _is_living(ring.parent.parent)


def _try_to_lock(descriptor: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks
    return True


def is_claimed(descriptor: int | None, ring: Path) -> bool:
    """Whether the ring is still the one that ``claim`` returned."""
    if descriptor is None:
        return fcntl is None
    try:
        return os.path.samestat(os.fstat(descriptor), ring.stat())
    except OSError:
        return False


def clear(directory: Path, keep: tuple[str, ...] = ()) -> None:
    """Remove the files that a recorder wrote, and no others.

    Raises:
        OSError: One cannot be removed.
    """
    for one in directory.iterdir():
        if one.name not in keep and _OWN_FILE.fullmatch(one.name):
            one.unlink()


def other_ranks(trace: Path, world_size: int) -> Iterator[Path]:
    """Yield directories of ranks that a run of this size does not have: a larger one left them.

    Raises:
        TraceExistsError: A run lives in one.
    """
    for other in sorted(trace.iterdir()):
        match = _RANK_DIRECTORY.fullmatch(other.name)
        if match and int(match[1]) >= world_size and other.is_dir():
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(other / RING_FILE, os.O_RDWR)
                locked = _try_to_lock(descriptor)
                os.close(descriptor)
                if not locked:
                    raise _is_living(trace)
            yield other


def _is_living(trace: Path) -> TraceExistsError:
    return TraceExistsError(f"{trace}: a living run is recording there; choose another path")


def _refusal(trace: Path) -> str:
    return f"{trace}: {_what_is_there(trace)}; choose another path or pass overwrite=True"


def _what_is_there(trace: Path) -> str:
    try:
        ranks = open_trace(trace).ranks
    except EmptyTraceError:
        return "a trace in which nothing was recorded is there"
    except TraceError:
        return "a trace is there that cannot be read"
    found, parts = ranks[0], sum(len(rank.footers) for rank in ranks)
    return f"holds the trace of a run of {found.run.model_class or 'a model'} ({found.ended}, {parts} sealed parts)"
