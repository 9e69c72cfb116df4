"""No disk can hold up training: one that fails, hangs or is slow is waited for a bounded time, or not at all."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.recorder.writers import PATIENCE, bench, eventually
from tests.windows import append, read_left

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.recorder.writers import Bench

__all__ = ["bench"]


def test_a_disk_that_fails_is_reported_once_and_costs_nothing(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a disk that takes no part
    one = bench()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(one.directory, "seal", full)
    one.writer.start()
    one.fill()

    # THEN who records is told, the thread has ended, and every row is still in the ring
    eventually(lambda: not one.writer._thread.is_alive())
    assert [str(error) for error in one.errors] == ["[Errno 28] No space left on device"]
    assert read_left(one.path).values == {at: at * 10.0 for at in range(20)}
    one.writer.stop()


def test_waiting_for_room_ends(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk that hangs until it is told otherwise
    one = bench()
    _, answers = one.hang(monkeypatch)
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
    one = bench()
    begun, answers = one.hang(monkeypatch)
    one.writer.start()
    one.fill()
    assert begun.wait(PATIENCE)
    threading.Timer(0.05, answers.set).start()
    one.writer.stop()
    assert len(one.parts()) == 1
    one.writer.seal(one.window.published)
    assert read_left(one.path).values == {at: at * 10.0 for at in range(20)}


def test_stopping_gives_up_on_a_disk_that_never_answers(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overflow_recorder.storage.writer._STOP_SECONDS", 0.05)
    one = bench()
    begun, answers = one.hang(monkeypatch)
    one.writer.start()
    one.fill()
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
