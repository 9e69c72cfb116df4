"""Where frames go: nothing that was asked for is lost, nothing waits for long, nothing grows beyond its bound."""

from __future__ import annotations

import itertools
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer.format.files import NAMES_FILE, RING_FILE, RUN_FILE
from overflow_analyzer.format.run_info import EndInfo
from overflow_analyzer.trace.opening import open_trace
from overflow_recorder.errors import TraceExistsError
from overflow_recorder.recorder_arguments import RecorderArguments
from overflow_recorder.storage.storage import Storage, ring_capacity
from tests.windows import RUN, append, bytes_of, copy_as_killed, make_storage, publish, read_left, value_of

if TYPE_CHECKING:
    from pathlib import Path

CLOSED = EndInfo("closed", 1)
PATIENCE = 60.0


@pytest.mark.parametrize(
    ("options", "rows_per_frame", "staging", "rows"),
    [
        ({}, 10, False, 4096),
        ({"max_frames_to_save": 1000}, 10, False, 20_000),
        ({"every_n_batches": 1}, 10, True, 131_072 + 2 * 21 * 10),
        ({"max_frames_to_save": 10**6}, 100, True, 1 << 20),
        ({"max_bytes": 1 << 20}, 10, True, (1 << 18) // 264),
        ({"max_bytes": 1 << 16}, 10, True, 64),
        ({"max_bytes": 1 << 30}, 10, False, 4096),
    ],
)
def test_the_rings_size(options: dict[str, Any], rows_per_frame: int, staging: bool, rows: int) -> None:
    assert ring_capacity(RecorderArguments(**options), rows_per_frame, staging=staging) == rows


def test_a_clean_close_leaves_parts_and_the_run_alone(tmp_path: Path) -> None:
    # GIVEN frames, some of them selected
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1)
    for at in range(40):
        publish(storage, at * 10.0, selected=at < 5)
    storage.notes = ("a compiled model was not seen",)

    # WHEN it is closed
    storage.close(CLOSED)

    # THEN the selected frames and the window are in parts, the run says how it ended, and no other file is left
    left = read_left(path)
    assert left.values == {**{at: at * 10.0 for at in range(5)}, **{at: at * 10.0 for at in range(19, 40)}}
    assert (left.ended, left.lost, left.dropped) == ("closed", (), 0)
    assert sorted(one.name for one in (path / "rank=0").iterdir()) == [RUN_FILE, "part-00000000.parquet"]
    run = json.loads((path / "rank=0" / RUN_FILE).read_text())
    assert run["end"]["how"] == "closed"
    assert run["notes"] == ["a compiled model was not seen"]


def test_without_a_close_the_same_frames_are_there(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1)
    for at in range(40):
        publish(storage, at * 10.0, selected=at < 5)
    left = read_left(copy_as_killed(path, tmp_path / "copy"))
    assert left.values == {**{at: at * 10.0 for at in range(5)}, **{at: at * 10.0 for at in range(19, 40)}}
    assert left.ended == "killed"
    assert left.lost == ()
    storage.close(CLOSED)


def test_without_a_path_frames_never_run_out_of_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a recorder without a trace whose batches are all selected
    monkeypatch.chdir(tmp_path)
    storage = make_storage(None, every_n_batches=1)

    # WHEN more rows pass than its ring has, THEN none is dropped, and nothing is written anywhere
    for at in range(3 * storage.window.capacity // 2):
        assert publish(storage, at * 10.0) == at
    assert storage.window.dropped_frames == 0
    assert value_of(storage.window.last_frames()[-1]) == 10.0 * (3 * storage.window.capacity // 2 - 1)
    storage.close(CLOSED)
    assert list(tmp_path.iterdir()) == []


class SlowDisk:
    """Stands in for a storage's disk: a part takes as long as the test says."""

    def __init__(self, storage: Storage) -> None:
        assert storage._directory is not None
        self.answers = threading.Event()
        self._seal = storage._directory.seal
        storage._directory.seal = self  # type: ignore[method-assign,assignment]

    def __call__(self, *arguments: Any) -> None:
        assert self.answers.wait(PATIENCE)
        self._seal(*arguments)


def fill(storage: Storage) -> int:
    """Publish selected frames until one is dropped; returns how many were not."""
    for at in itertools.count():
        if publish(storage, at * 10.0) is None:
            return at
    raise AssertionError


def test_a_disk_that_hangs_costs_one_wait_and_then_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk that hangs, and a record of the waits for it
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1, max_bytes=1 << 20)
    disk, waits = SlowDisk(storage), []
    assert storage._writer is not None
    wait = storage._writer.wait_for_room

    def recorded(released: int, seconds: float) -> bool:
        waits.append(seconds)
        return wait(released, 0.01)

    monkeypatch.setattr(storage._writer, "wait_for_room", recorded)

    # WHEN more is published than the ring holds
    published = fill(storage)
    for at in range(50):
        assert publish(storage, 9e9 + 10 * at) is None
        assert publish(storage, 8e9 + 10 * at, selected=False) is None

    # THEN training has waited once, for a quarter of a second at most, and the frames that gave way are counted
    assert waits == [0.25]
    left = read_left(copy_as_killed(path, tmp_path / "copy"))
    assert left.values == {at: at * 10.0 for at in range(published)}
    assert left.dropped == 101

    # WHEN the disk answers, THEN frames are recorded again, numbered as if none had been lost
    disk.answers.set()
    assert wait(0, PATIENCE)
    assert publish(storage, 7e9) == published + 101
    storage.close(CLOSED)
    left = read_left(path)
    assert left.values == {**{at: at * 10.0 for at in range(published)}, published + 101: 7e9}
    assert left.dropped == 101


def test_all_waits_together_are_a_small_share_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a clock that only waiting moves, and a disk that moves after 0.2 seconds each time
    clock = [0.0]
    monkeypatch.setattr("overflow_recorder.storage.storage.time.monotonic", lambda: clock[0])
    storage = make_storage(tmp_path / "run.parquet", every_n_batches=1, max_bytes=1 << 20)
    assert storage._writer is not None
    writer, waits = storage._writer, []

    def moves(released: int, seconds: float) -> bool:
        waits.append(seconds)
        clock[0] += min(0.2, seconds)
        return seconds >= 0.2

    monkeypatch.setattr(writer, "wait_for_room", moves)

    # WHEN training would wait again and again, THEN after a second in all it does not
    for _ in range(100):
        storage.window.released += 1
        storage._wait_for_disk(writer)
    assert waits[:4] == [0.25] * 4
    assert clock[0] < 1.1

    # WHEN ten seconds have passed without a wait, THEN it may wait half a second more, a twentieth
    before, clock[0] = clock[0], clock[0] + 10
    for _ in range(100):
        storage.window.released += 1
        storage._wait_for_disk(writer)
    assert 0.4 < clock[0] - before - 10 < 0.6
    storage.abandon()


def test_a_frame_that_found_room_after_a_wait_is_not_counted_as_dropped(tmp_path: Path) -> None:
    # GIVEN a disk that answers while training waits for it
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1, max_bytes=1 << 20)
    disk = SlowDisk(storage)
    while append(storage.window, storage.window.published * 5.0) is not None:
        pass
    assert storage._writer is not None
    wait = storage._writer.wait_for_room

    def answered(released: int, seconds: float) -> bool:
        disk.answers.set()
        return wait(released, PATIENCE)

    storage._writer.wait_for_room = answered  # type: ignore[method-assign]

    # WHEN a selected frame waits, THEN it has the next number and nothing is dropped
    number = storage.window.published // 2
    assert publish(storage, number * 10.0) == number
    storage.close(CLOSED)
    left = read_left(path)
    assert left.values == {at: at * 10.0 for at in range(number + 1)}
    assert left.dropped == 0


def test_a_detection_finds_room_whatever_the_disk_does(tmp_path: Path) -> None:
    # GIVEN a full ring in front of a disk that hangs
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1, max_bytes=1 << 20)
    disk = SlowDisk(storage)
    published = fill(storage)

    # WHEN the frame of a detection comes, THEN it is recorded, and so it is in the window that is reported
    assert publish(storage, 5e9, selected=False, urgent=True) == published + 1
    assert value_of(storage.window.last_frames()[-1]) == 5e9
    left = read_left(copy_as_killed(path, tmp_path / "copy"))
    assert left.values == {**{at: at * 10.0 for at in range(published)}, published + 1: 5e9}
    disk.answers.set()
    storage.close(CLOSED)


def test_a_disk_that_takes_nothing_at_the_end_leaves_the_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk without room for a part
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1)
    for at in range(40):
        publish(storage, at * 10.0)
    assert storage._directory is not None

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage._directory, "seal", full)

    # WHEN it is closed, THEN the caller is told, and all is readable, with how the run ended
    with pytest.raises(OSError, match="No space left"):
        storage.close(EndInfo("exception", 1, reason="ValueError: x"))
    left = read_left(path)
    assert left.values == {at: at * 10.0 for at in range(40)}
    assert left.ended == "exception"
    assert (path / "rank=0" / RING_FILE).exists()

    # AND its lock is gone: the next run is refused for what is there, not for a run that lives
    with pytest.raises(TraceExistsError, match="exception"):
        make_storage(path)


def test_a_disk_that_does_not_take_the_runs_end_leaves_the_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1)
    publish(storage, 10.0)
    assert storage._directory is not None

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage._directory, "write_run", full)
    with pytest.raises(OSError, match="No space left"):
        storage.close(CLOSED)
    left = read_left(path)
    assert (left.values, left.ended) == ({0: 10.0}, "closed")
    assert (path / "rank=0" / RING_FILE).exists()


def test_what_is_abandoned_stays_as_it_is(tmp_path: Path) -> None:
    # GIVEN what a forked child does with its copy
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1)
    publish(storage, 10.0)
    before = sorted((one.name, one.stat().st_size) for one in (path / "rank=0").iterdir())
    storage.abandon()
    storage.abandon()

    # THEN no file has changed, and frames that still come do nothing
    assert publish(storage, 20.0) is None
    assert sorted((one.name, one.stat().st_size) for one in (path / "rank=0").iterdir()) == before
    assert read_left(path).values == {0: 10.0}


def test_a_start_that_fails_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk without room for the ring
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "run.parquet"
    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full)
        with pytest.raises(OSError, match="No space left"):
            make_storage(path)
    make_storage(path, overwrite=True).close(CLOSED)


@pytest.mark.parametrize("max_bytes", [1 << 16, 1 << 17, 1 << 18])
def test_the_directory_never_outgrows_max_bytes(max_bytes: int, tmp_path: Path) -> None:
    # GIVEN a long run, and someone who looks at its size all the while
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1, max_bytes=max_bytes)
    sizes, done = [], threading.Event()

    def watch() -> None:
        while not done.is_set():
            sizes.append(bytes_of(path))

    watching = threading.Thread(target=watch)
    watching.start()

    # WHEN many times as many rows pass as fit
    frames = 10_000
    try:
        kept = [publish(storage, at * 10.0, batch=at // 100) for at in range(frames)]
        storage.close(CLOSED)
    finally:
        done.set()
        watching.join()

    # THEN it never had more bytes, numbers are absolute, and the last frames are the ones that are left
    assert max(sizes) <= max_bytes
    left = read_left(path)
    assert left.values == {number: left.values[number] for number in left.values if kept[number] == number}
    assert all(value == number * 10.0 for number, value in left.values.items())
    assert {number for number in kept if number is not None and number >= frames - 21} <= set(left.values)
    (rank,) = open_trace(path).ranks
    assert rank.run.end is not None
    assert rank.run.end.parts_removed > 0


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training that waits for the disk as long as it takes."""
    monkeypatch.setattr("overflow_recorder.storage.storage._WAIT_SECONDS", PATIENCE)
    monkeypatch.setattr("overflow_recorder.storage.storage._WAIT_SHARE", 1e9)


@pytest.mark.usefixtures("_patient")
def test_a_detections_window_outlives_everything(tmp_path: Path) -> None:
    # GIVEN a window that was kept early in a long run
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1, max_bytes=1 << 18, max_frames_to_save=5)
    for at in range(8000):
        publish(storage, at * 10.0)
        if at == 1000:
            storage.window.keep_window()
    storage.close(CLOSED)

    # THEN its frames are there, though those around it are gone
    left = read_left(path).values
    assert {996, 997, 998, 999, 1000} <= set(left)
    assert 994 not in left
    assert 1002 not in left


@pytest.mark.usefixtures("_patient")
def test_batches_asked_for_by_number_outlive_sampled_ones(tmp_path: Path) -> None:
    # GIVEN batches of 200 frames, of which the second was asked for by number
    path = tmp_path / "run.parquet"
    storage = make_storage(path, every_n_batches=1, trace_batch_nums=[1], max_bytes=1 << 18)
    for at in range(8000):
        publish(storage, at * 10.0, batch=at // 200)
    storage.close(CLOSED)
    left = read_left(path).values
    assert set(range(200, 400)) <= set(left)
    assert 0 not in left


def test_names_are_bounded_with_max_bytes(tmp_path: Path) -> None:
    # GIVEN names that never end
    path = tmp_path / "run.parquet"
    storage = make_storage(path, max_bytes=1 << 18)
    for at in range(10_000):
        storage.window.position(f"a name that is there once {at}")
    assert (path / "rank=0" / NAMES_FILE).stat().st_size <= 1 << 16
    storage.close(CLOSED)


def test_a_second_run_on_a_living_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    storage = make_storage(path)
    publish(storage, 10.0)
    for overwrite in (False, True):
        with pytest.raises(TraceExistsError, match=r"still running|a living run"):
            make_storage(path, overwrite=overwrite)
    assert publish(storage, 20.0) == 1
    storage.close(CLOSED)
    assert read_left(path).values == {0: 10.0, 1: 20.0}
    assert RUN.run_id == open_trace(path).ranks[0].run.run_id
