"""What becomes of a process's recorders at its end and in its children."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from overflow_recorder.trace_recorder import AttachedRecorders

if TYPE_CHECKING:
    from collections.abc import Iterator


class FakeRecorder:
    """Stands for a recorder on a model."""

    def __init__(self, model: object = None, error: Exception | None = None) -> None:
        self.model = model
        self.is_attached = True
        self.closed: list[dict[str, Any]] = []
        self.abandoned = 0
        self._error = error

    def close(self, **how: Any) -> None:
        self.closed.append(how)
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        self.abandoned += 1
        if self._error is not None:
            raise self._error


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A list of recorders that the interpreter's own end leaves alone."""
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    return AttachedRecorders()  # type: ignore[return-value]


def test_at_the_end_every_recorder_is_closed_whatever_one_says(recorders: Any) -> None:
    # GIVEN three recorders, one whose callbacks raise
    all_of_them = [FakeRecorder(object()), FakeRecorder(object(), ValueError("a callback's")), FakeRecorder(object())]
    for one in all_of_them:
        recorders.replace(one)

    # WHEN the interpreter ends, THEN all are closed, and the error is shown as any at exit
    with pytest.raises(ValueError, match="a callback's"):
        recorders._close_all()
    assert [one.closed for one in all_of_them] == [[{}], [{}], [{}]]


def test_after_an_unhandled_exception_the_trace_says_so(recorders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", RuntimeError("CUDA out of memory"), raising=False)
    one = FakeRecorder()
    recorders.replace(one)
    recorders._close_all()
    assert one.closed == [{"how": "exception", "reason": "RuntimeError: CUDA out of memory"}]


def test_a_forked_child_abandons_every_recorder(recorders: Any) -> None:
    all_of_them = [FakeRecorder(object(), ValueError("no")), FakeRecorder(object())]
    for one in all_of_them:
        recorders.replace(one)
    recorders._abandon_all()
    recorders._close_all()
    assert [(one.abandoned, one.closed) for one in all_of_them] == [(1, []), (1, [])]


def test_a_recorder_that_was_thrown_away_is_not_kept(recorders: Any) -> None:
    one = FakeRecorder()
    recorders.replace(one)
    del one
    recorders._close_all()
    assert len(recorders._attached) == 0
