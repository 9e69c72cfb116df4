"""The rolling window: what is published is in the file, whole; what is wanted is never overwritten."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.format.columns import FORMAT_VERSION
from overflow_analyzer.format.files import NAMES_FILE, RING_FILE
from overflow_analyzer.format.frames import frames_from_tables
from overflow_analyzer.format.ring import RingContents, read_ring
from overflow_analyzer.format.ring_layout import (
    RING_DROPPED_OFFSET,
    RING_HEADER_SIZE,
    RING_MAGIC,
    RING_PUBLISHED_OFFSET,
    RING_ROW,
)
from overflow_analyzer.format.run_info import EndInfo
from overflow_recorder.storage.window import Window
from tests.windows import append, copy_as_killed, entries_of, head_of, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def window(tmp_path: Path) -> Iterator[Window]:
    """A ring of 64 rows in the directory "run", with a window of three frames."""
    (tmp_path / "run").mkdir()
    made = Window(tmp_path / "run", 64, 3)
    yield made
    made.close()


def ring_of(directory: Path) -> RingContents:
    return read_ring(directory / RING_FILE, directory / NAMES_FILE)


def left_in(directory: Path) -> dict[int, float]:
    """Frame numbers and values of the trace that the ring alone makes."""
    frames = frames_from_tables([ring_of(directory).kept_after(-1)])
    return {frame.frame_number: value_of(frame) for frame in frames}


def header_number(directory: Path, offset: int) -> int:
    return int.from_bytes((directory / RING_FILE).read_bytes()[offset : offset + 8], "little")


def test_the_file_is_as_the_contract_says(window: Window, tmp_path: Path) -> None:
    # GIVEN two frames of two and three rows
    append(window, 1.0)
    append(window, 5.0, rows=3)

    # THEN the file's bytes, read by offset, are header and rows
    data = (tmp_path / "run" / RING_FILE).read_bytes()
    assert data[:8] == RING_MAGIC
    assert np.frombuffer(data[8:16], "<u4").tolist() == [FORMAT_VERSION, RING_ROW.itemsize]
    assert np.frombuffer(data[16:32], "<u8").tolist() == [64, 3]
    assert header_number(tmp_path / "run", RING_PUBLISHED_OFFSET) == 5
    rows = np.frombuffer(data, RING_ROW, 5, RING_HEADER_SIZE)
    assert rows["row_number"].tolist() == [0, 1, 2, 3, 4]
    assert rows["frame_number"].tolist() == [0, 0, 1, 1, 1]
    assert rows["row_in_frame"].tolist() == [0, 1, 0, 1, 2]
    assert rows["rows_in_frame"].tolist() == [2, 2, 3, 3, 3]
    assert rows["abs_max"].tolist() == [1.0, 2.0, 5.0, 6.0, 7.0]


def test_all_blocks_are_there_from_the_start(tmp_path: Path, window: Window) -> None:
    # A sparse file on a disk that fills up is a SIGBUS.
    status = (tmp_path / "run" / RING_FILE).stat()
    assert status.st_size == RING_HEADER_SIZE + 64 * RING_ROW.itemsize
    assert status.st_blocks * 512 >= status.st_size


def test_all_blocks_are_there_without_posix_fallocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    made = Window(tmp_path, 8192, 3)
    append(made, 1.0)
    assert left_in(tmp_path) == {0: 1.0}
    status = (tmp_path / RING_FILE).stat()
    assert status.st_blocks * 512 >= status.st_size == RING_HEADER_SIZE + 8192 * RING_ROW.itemsize
    made.close()


class DiedError(Exception):
    """The process, at some store."""


class DyingMemory:
    """A mapping whose process dies at the n-th store into it; what was stored before is in the file."""

    def __init__(self, memory: Any, stores: int) -> None:
        self._memory, self._left = memory, stores

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._left == 0:
            raise DiedError
        self._left -= 1
        self._memory[key] = value


@pytest.mark.parametrize("stores", range(12))
def test_a_kill_at_any_store_leaves_whole_frames(stores: int, window: Window, tmp_path: Path) -> None:
    # GIVEN a process that dies somewhere in the middle of appending frames of three rows
    window._map = DyingMemory(window._map, stores)  # type: ignore[assignment]
    returned: dict[int, float] = {}
    with contextlib.suppress(DiedError):
        for value in range(0, 100, 10):
            number = append(window, float(value), rows=3)
            returned[number] = float(value)
    assert len(returned) < 10

    # THEN every frame whose append had returned is in the trace, and whatever else is there is whole and true
    left = left_in(tmp_path / "run")
    assert returned.items() <= left.items()
    assert left.items() <= {number: 10.0 * number for number in range(10)}.items()
    assert len(left) <= len(returned) + 1
    assert ring_of(tmp_path / "run").lost == ()
    window._map = window._map._memory  # type: ignore[attr-defined]


def test_an_unselected_frame_leaves_the_trace_with_the_window(window: Window, tmp_path: Path) -> None:
    for value in range(7):
        append(window, value * 10.0, kept=value == 1)
    assert left_in(tmp_path / "run") == {1: 10.0, 4: 40.0, 5: 50.0, 6: 60.0}


@settings(max_examples=30)
@given(frames=st.lists(st.tuples(st.integers(1, 16), st.booleans()), min_size=1, max_size=60))
def test_wanted_rows_are_never_overwritten_and_the_window_is_always_whole(
    tmp_path_factory: pytest.TempPathFactory, frames: list[tuple[int, bool]]
) -> None:
    # GIVEN frames of any size, some of them selected, and a disk that takes none of them
    directory = tmp_path_factory.mktemp("ring")
    window = Window(directory, 64, 3)
    appended: list[tuple[int, float, bool, int]] = []
    for at, (rows, kept) in enumerate(frames):
        number = append(window, at * 100.0, rows=rows, kept=kept)
        if number is None:
            window.drop_frame()
        else:
            appended.append((number, at * 100.0, kept, rows))

        # THEN after each of them the trace has all selected frames that found room, and the window
        left = left_in(directory)
        wanted = {number: value for number, value, kept, _ in appended if kept}
        recent, room = {}, 32
        for number, value, _, size in reversed(appended[-3:]):  # a window larger than half the ring is cut to that
            room -= size
            if room < 0:
                break
            recent[number] = value
        assert wanted.items() <= left.items()
        assert recent.items() <= left.items()
        assert left.items() <= {number: value for number, value, _, _ in appended}.items()
    assert header_number(directory, RING_DROPPED_OFFSET) == len(frames) - len(appended)
    window.close()


def test_a_full_ring_takes_no_more_but_one_that_is_urgent(window: Window, tmp_path: Path) -> None:
    # GIVEN a ring full of selected rows, of which a quarter is left free
    numbers = [append(window, at * 10.0) for at in range(24)]
    assert numbers == list(range(24))
    assert append(window, 1000.0) is None
    assert append(window, 1000.0, kept=False) is None

    # WHEN a detection's frame comes, THEN it has room, and no other frame lost anything
    assert append(window, 5000.0, urgent=True, kept=False) == 24
    assert left_in(tmp_path / "run") == {**{at: at * 10.0 for at in range(24)}, 24: 5000.0}

    # WHEN rows are sealed, THEN there is room again
    window.release(10)
    assert append(window, 250.0) == 25


def test_numbers_of_frames_that_are_not_kept_are_missing(window: Window, tmp_path: Path) -> None:
    append(window, 0.0)
    window.skip_frame()
    window.drop_frame()
    assert append(window, 30.0) == 3
    assert left_in(tmp_path / "run") == {0: 0.0, 3: 30.0}
    assert window.dropped_frames == header_number(tmp_path / "run", RING_DROPPED_OFFSET) == 1

    # AND looking how many there were takes none
    assert [window.frames_seen(), window.frames_seen()] == [4, 4]
    assert append(window, 40.0) == 4


def test_the_last_frames_as_objects(window: Window) -> None:
    for value in range(5):
        append(window, value * 10.0)
    assert [value_of(frame) for frame in window.last_frames()] == [20.0, 30.0, 40.0]


def test_a_window_is_never_more_than_half_the_ring(tmp_path: Path) -> None:
    # GIVEN a window of a thousand frames in a ring of 64 rows
    window = Window(tmp_path, 64, 1000)
    for value in range(100):
        append(window, value * 10.0, kept=False)

    # THEN the last sixteen frames, half the ring, are it, and new ones still find room
    assert [value_of(frame) for frame in window.last_frames()] == [value * 10.0 for value in range(84, 100)]
    assert append(window, 1.0) == 100
    window.close()


def test_kept_windows_that_overlap_are_one(window: Window, tmp_path: Path) -> None:
    # GIVEN windows that were kept at frames 2, 3 and 9
    for value in range(10):
        append(window, value * 10.0, kept=False)
        if value in {2, 3, 9}:
            window.keep_window()

    # THEN their rows are protected as two ranges, and stay in the trace
    assert window.kept_windows == [(0, 8), (14, 20)]
    append(window, 100.0, kept=False)
    assert left_in(tmp_path / "run") == {**{at: at * 10.0 for at in (0, 1, 2, 3, 7, 8, 9)}, 10: 100.0}

    # WHEN the first is sealed, THEN only the other is left
    window.release(8)
    assert window.kept_windows == [(14, 20)]


@pytest.mark.parametrize("reason", [None, "short", "\N{PILE OF POO}" * 5000, 'a"\\' * 4000])
def test_how_it_ended_always_fits_into_the_header(reason: str | None, window: Window, tmp_path: Path) -> None:
    # GIVEN a reason of any length
    end = EndInfo("exception", 5, batch_number=2**62, frame_number=2**62, reason=reason, frames_seen=2**62)

    # WHEN it is noted, THEN the reader finds it, cut where it is long
    window.write_end(end)
    found = ring_of(tmp_path / "run").end
    assert found is not None
    assert replace(found, reason=None) == replace(end, reason=None)
    assert found.reason == reason if reason in {None, "short"} else (reason or "").startswith(found.reason or "?")

    # AND a row that is published later leaves it alone
    append(window, 1.0)
    assert ring_of(tmp_path / "run").end == found


class CallsBack(list[Any]):
    """Entries in the middle of which a signal handler runs."""

    def __init__(self, entries: list[Any], handler: Any) -> None:
        super().__init__(entries)
        self._handler = handler

    def __iter__(self) -> Iterator[Any]:
        for at, entry in enumerate(list.__iter__(self)):
            if at == 1:
                self._handler()
            yield entry


def test_a_handler_that_records_in_the_middle_of_a_frame_records_nothing(window: Window, tmp_path: Path) -> None:
    # GIVEN a handler that appends a frame of its own
    inner: list[Any] = []
    entries = CallsBack(entries_of(window, 10.0), lambda: inner.append(append(window, 99.0)))

    # WHEN it interrupts a frame, THEN nobody waits for a lock, and the frame is what it was
    assert window.append(head_of(window), entries, kept=True) == 0
    assert inner == [None]
    assert left_in(tmp_path / "run") == {0: 10.0}


def test_a_handler_that_raises_in_the_middle_of_a_frame_costs_that_frame(window: Window, tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    append(window, 0.0)
    with pytest.raises(KeyboardInterrupt):
        window.append(head_of(window), CallsBack(entries_of(window, 10.0, 4), interrupt), kept=True)
    assert append(window, 20.0) == 2
    assert left_in(tmp_path / "run") == {0: 0.0, 2: 20.0}


def test_a_handler_that_closes_in_the_middle_of_a_frame(window: Window, tmp_path: Path) -> None:
    # GIVEN a handler that closes the recorder, as for SIGTERM
    append(window, 0.0)
    entries = CallsBack(entries_of(window, 10.0), window.close)

    # THEN the frame is not recorded, nor is any later one, and nothing raises
    assert window.append(head_of(window), entries, kept=True) is None
    assert append(window, 20.0) is None
    window.drop_frame()
    assert window.last_frames() == []
    assert left_in(tmp_path / "run") == {0: 0.0}


def test_in_memory_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = Window(None, 64, 3)
    for value in range(100):
        assert append(made, value * 10.0, kept=False) == value
    assert [value_of(frame) for frame in made.last_frames()] == [970.0, 980.0, 990.0]
    made.keep_window()
    made.write_end(EndInfo("closed", 1))
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_the_files_is_what_a_kill_leaves(window: Window, tmp_path: Path) -> None:
    # The other tests take a copy of a living ring for what the kernel keeps: a mapping that was never flushed.
    for value in range(10):
        append(window, value * 10.0, kept=False)
    assert left_in(copy_as_killed(tmp_path / "run", tmp_path / "copy")) == left_in(tmp_path / "run")


def test_a_directory_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Window(tmp_path / "not there", 64, 3)
