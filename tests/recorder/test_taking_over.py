"""A second recorder on a model takes over from the first, but only once it has a place of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_analyzer import open_trace
from overflow_recorder import RecorderWarning, TraceExistsError, TraceRecorder
from tests.recorder.recordings import frames_of, hooks_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

X = torch.ones(1, 2)


@pytest.fixture
def model() -> nn.Linear:
    return nn.Linear(2, 2)


@pytest.fixture
def first(model: nn.Linear, tmp_path: Path) -> Iterator[TraceRecorder]:
    """A recorder that is on the model and has one frame."""
    with TraceRecorder(model, tmp_path / "first", every_n_batches=1) as recorder:
        model(X)
        yield recorder


def check_that_it_goes_on(first: TraceRecorder, model: nn.Linear, trace: Path) -> None:
    assert first.is_attached
    model(X)
    first.close()
    assert len(frames_of(trace)) == 2
    assert open_trace(trace).ranks[0].run.end.reason is None  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["first", "taken"])
def test_one_that_is_refused_costs_the_first_nothing(
    name: str, first: TraceRecorder, model: nn.Linear, tmp_path: Path
) -> None:
    # GIVEN a path that is taken, by a run of old or by the first recorder itself
    with TraceRecorder(nn.Identity(), tmp_path / "taken"):
        pass
    assert (tmp_path / name).exists()

    # WHEN a second recorder wants it without overwriting, THEN it is refused, and the first goes on
    with pytest.raises(TraceExistsError):
        TraceRecorder(model, tmp_path / name).start()
    check_that_it_goes_on(first, model, tmp_path / "first")


def test_one_that_cannot_start_costs_the_first_nothing(first: TraceRecorder, model: nn.Linear, tmp_path: Path) -> None:
    # GIVEN a place where no directory can be made
    (tmp_path / "file").touch()
    second = TraceRecorder(model, tmp_path / "file" / "run")

    # WHEN
    with pytest.warns(RecorderWarning, match="could not start") as caught:
        second.start()

    # THEN
    assert len(caught) == 1
    assert not second.is_attached
    check_that_it_goes_on(first, model, tmp_path / "first")


def test_one_that_overwrites_the_firsts_own_trace(first: TraceRecorder, model: nn.Linear, tmp_path: Path) -> None:
    # WHEN a cell of a notebook runs again
    with pytest.warns(RecorderWarning, match="another recorder is on this model") as caught:
        second = TraceRecorder(model, tmp_path / "first", overwrite=True).start()
    for _ in range(3):
        model(X)
    second.close()

    # THEN the trace is the second's
    assert len(caught) == 1
    assert not first.is_attached
    assert len(frames_of(tmp_path / "first")) == 3


def test_what_the_firsts_callback_raises_goes_on(model: nn.Linear, tmp_path: Path) -> None:
    # GIVEN
    class Fails:
        def on_close(self, recorder: Any, event: Any) -> None:
            raise LookupError("a callback's")

    TraceRecorder(model, tmp_path / "first", callbacks=[Fails]).start()
    model(X)
    second = TraceRecorder(model, tmp_path / "second")

    # WHEN
    with pytest.warns(RecorderWarning, match="another recorder"), pytest.raises(LookupError, match="a callback's"):
        second.start()

    # THEN neither is on the model, and the second's path is free again
    assert hooks_on(model) == []
    assert not second.is_attached
    assert len(frames_of(tmp_path / "first")) == 1
    TraceRecorder(model, tmp_path / "second", overwrite=True).start().close()
