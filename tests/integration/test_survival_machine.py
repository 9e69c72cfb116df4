"""Any order of recording, sealing, keeping, killing, closing, reading and starting again, against a simple model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from overflow_analyzer.format.run_info import EndInfo
from overflow_recorder.errors import TraceExistsError
from overflow_recorder.storage import storage as storage_room
from tests.windows import bytes_of, copy_as_killed, make_storage, publish, read_left

if TYPE_CHECKING:
    from overflow_recorder.storage.storage import Storage
    from overflow_recorder.storage.writer import PartWriter

WINDOW = 4
CAPACITY = 64
MAX_BYTES = 1 << 16


class Recording(RuleBasedStateMachine):
    """One trace's life. The writer's thread is stopped: rows are sealed when the machine says so."""

    storage: Storage

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "run.parquet"
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(storage_room, "_WINDOW_ROWS", CAPACITY)
        self.patch.setattr(storage_room, "_STAGING_ROWS", 0)
        self.patch.setattr(storage_room, "_WAIT_TOTAL_SECONDS", 0.0)
        self.patch.setattr(storage_room, "_WAIT_SHARE", 0.0)

    @initialize(bounded=st.booleans())
    def start(self, *, bounded: bool) -> None:
        """Start the first run, with or without a bound on the disk."""
        self.bounded = bounded
        self._start_run(overwrite=False)

    def _start_run(self, *, overwrite: bool) -> None:
        self.storage = make_storage(
            self.path,
            every_n_batches=1,
            max_frames_to_save=WINDOW,
            max_bytes=MAX_BYTES if self.bounded else None,
            overwrite=overwrite,
        )
        assert self.storage.window.capacity == CAPACITY
        self.writer.stop()
        self.count = 0
        self.frames: dict[int, tuple[int, bool]] = {}
        """Rows of each frame that found room, and whether it is to be sealed."""
        self.protected: set[int] = set()
        self.sealed_below = 0

    @property
    def writer(self) -> PartWriter:
        """The writer, whose thread does nothing."""
        assert self.storage._writer is not None
        return self.storage._writer

    @rule(rows=st.integers(1, 16), selected=st.booleans(), urgent=st.booleans())
    def record(self, rows: int, *, selected: bool, urgent: bool) -> None:
        """A hook publishes a frame; without room it is dropped, and its number is missing."""
        number = publish(self.storage, self.count * 100.0, rows=rows, selected=selected, urgent=urgent)
        wanted = {at for at, (_, kept) in self.frames.items() if kept} | self.protected
        if number is None:
            assert any(at >= self.sealed_below for at in wanted), "there was nothing to wait for"
        else:
            assert number == self.count
            self.frames[number] = (rows, selected)
        self.count += 1

    @rule()
    def skip(self) -> None:
        """A hook of a batch that nobody asked for."""
        self.storage.window.skip_frame()
        self.count += 1

    @rule()
    def keep(self) -> None:
        """A detection keeps the window."""
        self.storage.window.keep_window()
        self.protected |= self._window()

    @rule()
    def seal(self) -> None:
        """The writer finds time."""
        self.writer.seal(self.storage.window.window_start)
        self.sealed_below = min(self._window(), default=self.count)

    @rule()
    def kill_and_look(self) -> None:
        """What the kernel would keep."""
        self._check(copy_as_killed(self.path, self.directory / "copy"), "killed")

    @rule()
    def look(self) -> None:
        """Someone opens the living run's trace."""
        self._check(self.path, "still running")

    @rule(overwrite=st.booleans())
    def start_another(self, *, overwrite: bool) -> None:
        """A second recorder wants the path of the living run."""
        with pytest.raises(TraceExistsError):
            make_storage(self.path, overwrite=overwrite)

    @rule()
    def kill_and_start_again(self) -> None:
        """The process dies; the next run is refused unless it may overwrite."""
        self.storage.abandon()
        with pytest.raises(TraceExistsError):
            make_storage(self.path)
        self._check(self.path, "killed")
        self._start_run(overwrite=True)

    @rule()
    def close_and_start_again(self) -> None:
        """The run ends well, and another takes its place."""
        self.protected |= self._window()
        self.storage.close(EndInfo("closed", 1))
        self._check(self.path, "closed")
        self._start_run(overwrite=True)

    @invariant()
    def stays_within_its_bound(self) -> None:
        """The directory never outgrows max_bytes, kept windows aside."""
        if getattr(self, "bounded", False) and not self.protected:
            assert bytes_of(self.path) <= MAX_BYTES

    def _window(self) -> set[int]:
        window: set[int] = set()
        room = CAPACITY // 2
        for number in sorted(self.frames, reverse=True)[:WINDOW]:
            room -= self.frames[number][0]
            if room < 0:
                break
            window.add(number)
        return window

    def _check(self, path: Path, ended: str) -> None:
        left = read_left(path)
        wanted = {number for number, (_, kept) in self.frames.items() if kept} | self.protected | self._window()
        there = set(left.values)
        assert left.values == {number: number * 100.0 for number in there}
        # Half a ring is promised to the window; a ring that is left shows as many of its frames as still lie in it.
        in_ring = set() if ended == "closed" else set(sorted(self.frames)[-WINDOW:])
        assert there <= wanted | in_ring
        assert self.protected | self._window() <= there
        missing = wanted - there
        if not self.bounded:
            assert missing == set()
        if not self.protected:
            found = there & wanted
            assert max(missing, default=-1) < min(found, default=0) or not found
        assert left.lost == ()
        assert left.ended == (ended if there else "empty")
        assert left.dropped == self.storage.window.dropped_frames

    def teardown(self) -> None:
        """Leave nothing behind."""
        if hasattr(self, "storage"):
            self.storage.abandon()
        self.patch.undo()
        shutil.rmtree(self.directory)


TestRecording = Recording.TestCase
TestRecording.settings = settings(
    max_examples=25, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
