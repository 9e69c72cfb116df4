"""The writer: what has left the window is sealed once, in few large parts, and no disk can hold up training."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from overflow_analyzer.parts import read_footer
from overflow_recorder.trace_directory import TraceDirectory
from overflow_recorder.window import Window
from overflow_recorder.writer import PartWriter
from tests.windows import RUN, append, copy_as_killed, read_left

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE = 60.0
"""Seconds after which something that must happen has not; nothing is measured with it."""


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.005)


class Bench:
    """A window, a directory and a writer whose thread is started by who needs it."""

    def __init__(self, path: Path, capacity: int, window_frames: int, max_bytes: int | None, **options: Any) -> None:
        self.path = path
        self.errors: list[Exception] = []
        self.directory = TraceDirectory(path, 0, 1, max_bytes=max_bytes, overwrite=False)
        self.directory.write_run(RUN)
        self.window = Window(self.directory.path, capacity, window_frames)
        self.writer = PartWriter(
            self.window, self.directory, RUN, options.pop("asked_for", ()), self.errors.append, **options
        )

    def parts(self) -> list[tuple[int, int, int]]:
        """First frame, last frame and rows of each row group of each part."""
        footers = [read_footer(one) for one in sorted(self.directory.path.glob("part-*.parquet"))]
        return [(group.first_frame, group.last_frame, group.rows) for one in footers for group in one.row_groups]

    def files(self) -> int:
        return len(list(self.directory.path.glob("part-*.parquet")))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """``bench(capacity=64, window_frames=3)`` makes one; all are stopped at the end."""
    made: list[Bench] = []

    def make(capacity: int = 64, window_frames: int = 3, max_bytes: int | None = None, **options: Any) -> Bench:
        made.append(Bench(tmp_path / f"run{len(made)}.parquet", capacity, window_frames, max_bytes, **options))
        return made[-1]

    yield make
    for one in made:
        one.writer.stop()
        one.window.close()
        one.directory.release()


def test_what_is_wanted_below_a_row_is_sealed_once(bench: Callable[..., Bench]) -> None:
    # GIVEN ten frames of two rows, every other selected
    one = bench()
    for at in range(10):
        append(one.window, at * 10.0, kept=at % 2 == 0)

    # WHEN what is behind the window is sealed, twice
    one.writer.seal(one.window.window_start)
    one.writer.seal(one.window.window_start)

    # THEN the selected frames before the window are in one part, and their slots are free
    assert one.parts() == [(0, 6, 8)]
    assert one.window.released == one.window.window_start == 14
    assert read_left(one.path).values == {**{at: at * 10.0 for at in (0, 2, 4, 6)}, 7: 70.0, 8: 80.0, 9: 90.0}


def test_nothing_wanted_is_no_part(bench: Callable[..., Bench]) -> None:
    one = bench()
    for at in range(10):
        append(one.window, at * 10.0, kept=False)
    one.writer.seal(one.window.window_start)
    assert one.parts() == []
    assert one.window.released == 14


def test_frames_do_not_lie_across_row_groups(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN frames of five rows, copied some rows at a time into groups of about forty
    monkeypatch.setattr("overflow_recorder.writer._ROWS_AT_ONCE", 16)
    monkeypatch.setattr("overflow_recorder.writer._GROUP_ROWS", 40)
    one = bench(capacity=512)
    for at in range(60):
        append(one.window, at * 10.0, rows=5)

    # WHEN they are sealed, THEN each group has whole frames, and one file has them all
    one.writer.seal(one.window.published)
    assert [rows % 5 for _, _, rows in one.parts()] == [0] * len(one.parts())
    assert [first for first, _, _ in one.parts()][1:] == [last + 1 for _, last, _ in one.parts()][:-1]
    assert one.files() == 1
    assert len(one.parts()) == 300 // 45 + 1
    assert read_left(one.path).values == {at: at * 10.0 for at in range(60)}


def test_columns_have_one_dictionary_a_row_group(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN rows that become Arrow columns in several pieces, each with names of its own
    monkeypatch.setattr("overflow_recorder.writer._ROWS_AT_ONCE", 16)
    one = bench(capacity=512)
    for at in range(60):
        append(one.window, at * 10.0, rows=1 + at % 5)
    one.writer.seal(one.window.published)

    # THEN their column is dictionary-encoded throughout: a changed dictionary would fall back to plain text
    metadata = pq.ParquetFile(next(one.directory.path.glob("part-*.parquet"))).metadata
    columns = [metadata.row_group(0).column(at) for at in range(metadata.num_columns)]
    (context,) = (column for column in columns if column.path_in_schema == "context")
    assert context.has_dictionary_page
    assert "PLAIN_DICTIONARY" not in context.encodings
    assert set(context.encodings) == {"PLAIN", "RLE", "RLE_DICTIONARY"}
    assert context.total_compressed_size < 200


def test_parts_are_few_however_many_frames_pass(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a ring of 4096 rows and a disk that takes its time
    one = bench(capacity=4096)
    seal, slowly = one.directory.seal, 0.02

    def slow_seal(*arguments: Any) -> None:
        time.sleep(slowly)
        seal(*arguments)

    monkeypatch.setattr(one.directory, "seal", slow_seal)
    one.writer.start()

    # WHEN twenty rings' worth of frames passes, and training waits where it has to
    for at in range(4096 * 10):
        while append(one.window, at * 10.0) is None:
            assert one.writer.wait_for_room(one.window.released, PATIENCE)
        one.writer.notice()

    # THEN a part has at least an eighth of the ring, and is about half of it where the disk keeps up
    one.writer.stop()
    assert one.errors == []
    assert one.files() <= 8 * 20
    assert min(rows for _, _, rows in one.parts()) >= 4096 // 8
    one.writer.seal(one.window.published)
    assert read_left(one.path).values == {at: at * 10.0 for at in range(4096 * 10)}


def test_a_window_of_half_the_ring_makes_no_tiny_parts(bench: Callable[..., Bench]) -> None:
    # GIVEN a window that is larger than the ring
    one = bench(capacity=1024, window_frames=10_000)
    one.writer.start()
    for at in range(5000):
        while append(one.window, at * 10.0) is None:
            assert one.writer.wait_for_room(one.window.released, PATIENCE)
        one.writer.notice()
    one.writer.stop()

    # THEN parts are still some hundred rows each
    assert min(rows for _, _, rows in one.parts()) >= 1024 // 8
    one.writer.seal(one.window.published)
    assert read_left(one.path).values == {at: at * 10.0 for at in range(5000)}


def test_a_slow_runs_rows_do_not_wait_for_the_ring_to_fill(bench: Callable[..., Bench]) -> None:
    # GIVEN a few rows in a large ring, and a time after which they are sealed in any case
    one = bench(capacity=4096, seal_seconds=0.05)
    one.writer.start()
    for at in range(10):
        append(one.window, at * 10.0)

    # THEN they are sealed, all but the window, without anyone noticing a full ring
    eventually(lambda: one.window.released == one.window.window_start)
    assert [(first, last) for first, last, _ in one.parts()][-1][1] == 6
    assert read_left(copy_as_killed(one.path, one.path.with_name("copy"))).values == {at: at * 10.0 for at in range(10)}


def test_a_kept_window_is_a_part_of_its_own_where_parts_are_removed(bench: Callable[..., Bench]) -> None:
    # GIVEN a detection's window in the middle of selected frames
    one = bench(capacity=256, max_bytes=1 << 20)
    for at in range(30):
        append(one.window, at * 10.0)
        if at == 14:
            one.window.keep_window()

    # WHEN all is sealed, THEN the window's three frames are a part of their own
    one.writer.seal(one.window.published)
    assert [(first, last) for first, last, _ in one.parts()] == [(0, 11), (12, 14), (15, 29)]
    assert [part.retention for part in one.directory._parts] == [0, 2, 0]
    assert one.window.protected == []

    # AND where nothing is ever removed there is no need for it
    other = bench(capacity=256)
    for at in range(30):
        append(other.window, at * 10.0)
        if at == 14:
            other.window.keep_window()
    other.writer.seal(other.window.published)
    assert [(first, last) for first, last, _ in other.parts()] == [(0, 29)]


@pytest.mark.parametrize(("asked_for", "retention"), [((), 0), ((3,), 1), ((7,), 0)])
def test_a_part_with_a_batch_that_was_asked_for_outlives_others(
    asked_for: tuple[int, ...], retention: int, bench: Callable[..., Bench]
) -> None:
    one = bench(capacity=256, max_bytes=1 << 20, asked_for=asked_for)
    for at in range(6):
        append(one.window, at * 10.0, batch=at)
    one.writer.seal(one.window.published)
    assert [part.retention for part in one.directory._parts] == [retention]


def test_a_disk_that_fails_is_reported_once_and_costs_nothing(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a disk that takes no part
    one = bench()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(one.directory, "seal", full)
    one.writer.start()
    for at in range(20):
        append(one.window, at * 10.0)
        one.writer.notice()

    # THEN who records is told, the thread has ended, and every row is still in the ring
    eventually(lambda: not one.writer._thread.is_alive())
    assert [str(error) for error in one.errors] == ["[Errno 28] No space left on device"]
    assert read_left(one.path).values == {at: at * 10.0 for at in range(20)}
    one.writer.stop()


def test_waiting_for_room_ends(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk that hangs until it is told otherwise
    one, answers = bench(), threading.Event()
    seal = one.directory.seal

    def hanging_seal(*arguments: Any) -> None:
        assert answers.wait(PATIENCE)
        seal(*arguments)

    monkeypatch.setattr(one.directory, "seal", hanging_seal)
    one.writer.start()
    at = 0
    while append(one.window, at * 10.0) is not None:
        at += 1

    # THEN a wait for it is in vain
    assert not one.writer.wait_for_room(one.window.released, 0.01)

    # UNTIL it moves; a wait for what has moved already is none
    answers.set()
    assert one.writer.wait_for_room(0, PATIENCE)
    assert one.writer.wait_for_room(0, 0.0)
    assert append(one.window, at * 10.0) == at


def test_nobody_waits_for_a_disk_that_has_failed(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a full ring, and a disk that fails while a frame waits for it
    one, fails = bench(), threading.Event()

    def failing_seal(*_: object) -> None:
        assert fails.wait(PATIENCE)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(one.directory, "seal", failing_seal)
    while append(one.window, 0.0) is not None:
        pass
    one.writer.start()
    wait = one.writer._moved.wait

    def waits(seconds: float) -> bool:
        fails.set()
        return wait(seconds)

    monkeypatch.setattr(one.writer._moved, "wait", waits)

    # THEN the wait ends with the thread, in vain, and no frame waits ever after
    assert not one.writer.wait_for_room(one.window.released, 1e6)
    monkeypatch.setattr(one.writer._moved, "wait", pytest.fail)
    assert not one.writer.wait_for_room(one.window.released, 1e6)


def test_stopping_waits_for_the_part_that_is_being_sealed(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, begun, answers = bench(), threading.Event(), threading.Event()
    seal = one.directory.seal

    def hanging_seal(*arguments: Any) -> None:
        begun.set()
        assert answers.wait(PATIENCE)
        seal(*arguments)

    monkeypatch.setattr(one.directory, "seal", hanging_seal)
    one.writer.start()
    for at in range(20):
        append(one.window, at * 10.0)
        one.writer.notice()
    assert begun.wait(PATIENCE)
    threading.Timer(0.05, answers.set).start()
    one.writer.stop()
    assert len(one.parts()) == 1
    one.writer.seal(one.window.published)
    assert read_left(one.path).values == {at: at * 10.0 for at in range(20)}


def test_stopping_gives_up_on_a_disk_that_never_answers(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overflow_recorder.writer._STOP_SECONDS", 0.05)
    one, begun, answers = bench(), threading.Event(), threading.Event()

    def hanging_seal(*_: Any) -> None:
        begun.set()
        assert answers.wait(PATIENCE)

    monkeypatch.setattr(one.directory, "seal", hanging_seal)
    one.writer.start()
    for at in range(20):
        append(one.window, at * 10.0)
        one.writer.notice()
    assert begun.wait(PATIENCE)
    with pytest.raises(TimeoutError, match="has not answered"):
        one.writer.stop()
    answers.set()
    eventually(lambda: not one.writer._thread.is_alive())


def test_a_signal_handler_in_the_middle_of_a_frame_can_stop_the_writer(bench: Callable[..., Bench]) -> None:
    # GIVEN a writer that needs the window's lock, which this thread has, as in the middle of a frame
    one = bench()
    one.writer.start()
    for at in range(20):
        append(one.window, at * 10.0)
    with one.window.lock:
        one.writer.notice()
        time.sleep(0.05)

        # WHEN a handler closes the recorder, THEN neither waits for the other for ever
        one.writer.stop()
        one.writer.seal(one.window.published)
    assert read_left(one.path).values == {at: at * 10.0 for at in range(20)}


def test_sealing_in_the_middle_of_sealing_is_refused(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a part in the middle of which the recorder is closed, on the same thread, as garbage collection may do
    one = bench()
    for at in range(20):
        append(one.window, at * 10.0)
    seal = one.directory.seal

    def interrupted(*arguments: Any) -> None:
        with pytest.raises(RuntimeError, match="was being sealed"):
            one.writer.seal(one.window.published)
        seal(*arguments)

    monkeypatch.setattr(one.directory, "seal", interrupted)
    one.writer.seal(one.window.published)

    # THEN no frame is there twice
    assert read_left(one.path).values == {at: at * 10.0 for at in range(20)}


def test_whoever_is_told_of_failures_is_not_kept_alive(bench: Callable[..., Bench]) -> None:
    # GIVEN a recorder that hands a method of its own to a living thread
    class Recorder:
        def failed(self, error: Exception) -> None:
            raise error

    recorder = Recorder()
    one = bench()
    writer = PartWriter(one.window, one.directory, RUN, (), recorder.failed)
    writer.start()

    # WHEN it is thrown away, THEN it is gone, though the thread still runs
    alive = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert alive() is None
    writer.stop()
