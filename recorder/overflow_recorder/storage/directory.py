"""One rank's directory: claimed by one living process, its size bounded by ``max_bytes``."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from overflow_analyzer.format.files import NAMES_FILE, PART_PREFIX, RING_FILE, RUN_FILE
from overflow_analyzer.format.modules import MODULES_FILE, MOST_MODULES_BYTES
from overflow_analyzer.format.origin import ORIGIN_FILE
from overflow_recorder.errors import TraceExistsError
from overflow_recorder.storage.claiming import (
    RING_TEMPORARY,
    check_no_foreign_files,
    claim,
    claim_again,
    clear,
    is_claimed,
    other_ranks,
)
from overflow_recorder.storage.sealing import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from overflow_analyzer.format.modules import Modules
    from overflow_analyzer.format.origin import Origin
    from overflow_analyzer.format.run_info import RunInfo


SAMPLED, NUMBERED, WINDOW = range(3)
"""What a part holds: sampled batches go first, then batches that were selected by number; a kept window stays."""
_END_BYTES: Final = 1024  # how much longer the run's description may become when it says how the run ended


@dataclass
class _Part:
    path: Path
    bytes: int
    retention: int


class TraceDirectory:
    """The files of one rank, owned from construction to ``release``, and again after ``reopen``.

    Args:
        trace: The trace's directory; made if it is not there.
        rank: This process's rank. Rank 0 also removes what a larger run left behind.
        world_size: Ranks of this run.
        max_bytes: Most bytes of everything in the rank's directory; None for no bound.
        overwrite: Replace the trace of a run that has ended.

    Raises:
        TraceExistsError: Something is there that may not be replaced.
        OSError: The directory cannot be made or written.
    """

    def __init__(self, trace: Path, rank: int, world_size: int, *, max_bytes: int | None, overwrite: bool) -> None:
        self.path = trace / f"rank={rank}"
        self.parts_removed = 0
        self._max_bytes = max_bytes
        self._parts: list[_Part] = []
        self._sealed = 0
        self._lock: int | None = None
        check_no_foreign_files(trace)
        others = list(other_ranks(trace, world_size)) if rank == 0 and trace.is_dir() else []
        if others and not overwrite:
            raise TraceExistsError(
                f"{trace}: a run of more than {world_size} ranks left {others[0].name} there; "
                "choose another path or pass overwrite=True"
            )
        # Every rank makes the directory for itself: nobody waits for a rank that has died.
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = claim(self.path, overwrite=overwrite)
        for other in others:  # two runs must never be read as one
            with contextlib.suppress(OSError):  # something that is not ours is in it, and stays
                clear(other)
                other.rmdir()

    def reopen(self, run_id: str) -> None:
        """Own the files again after ``release``, where they are still this run's.

        Raises:
            TraceExistsError: They are another run's, or not complete.
            OSError: They are gone.
        """
        self._lock = claim_again(self.path, run_id)

    @property
    def is_bounded(self) -> bool:
        """Whether parts can be removed."""
        return self._max_bytes is not None

    def write_run(self, run: RunInfo) -> None:
        """Replace ``_run.json`` whole.

        Raises:
            OSError: The disk refused; the earlier one is still there.
        """
        write_whole(self.path / RUN_FILE, run.to_json().encode())

    def write_origin(self, origin: Origin) -> None:
        """Replace ``_origin.json`` whole.

        Raises:
            OSError: The disk refused.
        """
        write_whole(self.path / ORIGIN_FILE, origin.to_json().encode())

    @property
    def most_modules_bytes(self) -> int:
        """The most bytes of ``_modules.json``."""
        return MOST_MODULES_BYTES if self._max_bytes is None else min(MOST_MODULES_BYTES, self._max_bytes // 32)

    def write_modules(self, modules: Modules) -> None:
        """Replace ``_modules.json`` whole.

        Raises:
            OSError: The disk refused; the earlier one is still there.
        """
        write_whole(self.path / MODULES_FILE, modules.to_json().encode())

    def seal(self, data: pa.Buffer, retention: int) -> None:
        """Seal a part, within ``max_bytes``: others make room for it, or it is not written at all.

        Args:
            data: The part's bytes.
            retention: SAMPLED, NUMBERED or WINDOW.

        Raises:
            OSError: The disk refused; nothing that was sealed is touched.
        """
        if self._max_bytes is not None and not self._make_room(data.size, retention, self._max_bytes):
            self.parts_removed += 1
            return
        path = self.path / f"{PART_PREFIX}{self._sealed:08}.parquet"
        write_whole(path, data)
        self._sealed += 1
        if self._max_bytes is not None:  # a list of all parts would grow with the run
            self._parts.append(_Part(path, data.size, retention))

    def _make_room(self, size: int, retention: int, max_bytes: int) -> bool:
        """Remove parts of no higher worth, the least and the oldest first; says whether ``size`` bytes fit then."""
        room = max_bytes - self._other_bytes() - sum(part.bytes for part in self._parts)
        # Sorting is stable: of one kind the oldest goes first.
        for part in sorted(self._parts, key=lambda part: part.retention):
            if room >= size or part.retention > min(retention, NUMBERED):
                break
            with contextlib.suppress(FileNotFoundError):
                part.path.unlink()
            self._parts.remove(part)
            self.parts_removed += 1
            room += part.bytes
        return room >= size or retention == WINDOW

    def _other_bytes(self) -> int:
        sizes = [_size(self.path / name) for name in (RING_FILE, NAMES_FILE, ORIGIN_FILE, RUN_FILE)]
        # For a moment a run has two descriptions, and its modules too, which may still change.
        return sum(sizes) + sizes[-1] + _END_BYTES + 2 * self.most_modules_bytes

    def remove_ring(self) -> None:
        """Remove the ring and its names, which are closed, unless another run's are there by now."""
        ring, last = self.path / RING_FILE, self.path / RING_TEMPORARY
        if is_claimed(self._lock, ring):
            with contextlib.suppress(OSError):
                # In this order: who has read the ring and misses its names sees that the ring is gone too, so that all
                # is sealed; and a run that starts here waits for the lock of the last of the three.
                ring.replace(last)
                (self.path / NAMES_FILE).unlink()
                last.unlink()

    def release(self) -> None:
        """Let go of the lock; the files stay."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
