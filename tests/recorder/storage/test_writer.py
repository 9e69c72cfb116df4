"""The writer: what has left the window is sealed once, in few large parts."""

from __future__ import annotations

import gc
import time
import weakref
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from overflow_recorder.storage.writer import PartWriter
from tests.recorder.writers import PATIENCE, bench, eventually
from tests.windows import RUN, append, copy_as_killed, read_left

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.recorder.writers import Bench

__all__ = ["bench"]


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
    monkeypatch.setattr("overflow_recorder.storage.writer._ROWS_AT_ONCE", 16)
    monkeypatch.setattr("overflow_recorder.storage.writer._GROUP_ROWS", 40)
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
    monkeypatch.setattr("overflow_recorder.storage.writer._ROWS_AT_ONCE", 16)
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
    assert one.window.kept_windows == []

    # AND where nothing is ever removed there is no need for it
    other = bench(capacity=256)
    for at in range(30):
        append(other.window, at * 10.0)
        if at == 14:
            other.window.keep_window()
    other.writer.seal(other.window.published)
    assert [(first, last) for first, last, _ in other.parts()] == [(0, 29)]


@pytest.mark.parametrize(("numbered", "retention"), [((), 0), ((3,), 1), ((7,), 0)])
def test_a_part_with_a_batch_that_was_asked_for_outlives_others(
    numbered: tuple[int, ...], retention: int, bench: Callable[..., Bench]
) -> None:
    one = bench(capacity=256, max_bytes=1 << 20, numbered=numbered)
    for at in range(6):
        append(one.window, at * 10.0, batch=at)
    one.writer.seal(one.window.published)
    assert [part.retention for part in one.directory._parts] == [retention]


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
