"""A recorder that is started again goes on in the same trace."""

from __future__ import annotations

import os
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_analyzer import open_trace
from overflow_recorder import NonFiniteError, RecorderWarning, TraceExistsError, TraceRecorder
from tests.recorder.recordings import Forward, frames_of, hooks_on, notes_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

X = torch.ones(1, 2)
NAN = X * float("nan")


def train(model: nn.Module, batches: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(batches):
        model(X).sum().backward()
        optimizer.step()


def twice(recorder: TraceRecorder, run: Callable[[], Any]) -> None:
    """Use a recorder in two blocks."""
    for _ in range(2):
        with recorder:
            run()


@pytest.mark.parametrize("every_n_batches", [None, 1])
def test_a_block_an_epoch(every_n_batches: int | None, tmp_path: Path) -> None:
    # GIVEN a recorder that is used in a block for each epoch
    model, path = nn.Sequential(nn.Linear(2, 2), nn.Tanh()), tmp_path / "run"
    recorder = TraceRecorder(model, path, every_n_batches=every_n_batches)
    for _ in range(3):
        with recorder:
            train(model, 2)
        # WHEN the model runs between the blocks, THEN nothing is recorded
        assert hooks_on(model) == []
        model(X)
    # THEN batches, frames and steps are counted on through all of them, in one complete trace
    frames = frames_of(path)
    assert [frame.frame_number for frame in frames] == list(range(18))
    assert [frame.batch_number for frame in frames if not frame.module_name] == list(range(6))
    assert [frame.optimizer_step for frame in frames if not frame.module_name] == list(range(6))
    (rank,) = open_trace(path).ranks
    assert rank.ended == "closed"
    assert rank.run.end is not None
    assert rank.run.end.frames_seen == 18
    assert list(path.glob("*/_window*")) == []
    assert notes_of(path) == []


def test_while_it_goes_on_the_trace_has_both_parts(tmp_path: Path) -> None:
    # GIVEN
    model, path = nn.Linear(2, 2), tmp_path / "run"
    recorder = TraceRecorder(model, path)
    with recorder:
        model(X)
    with recorder:
        model(X)
        # WHEN the process is killed here, THEN what a reader finds is this
        shutil.copytree(path, tmp_path / "copy")
    (rank,) = open_trace(tmp_path / "copy").ranks
    assert [frame.batch_number for frame in rank.frames()] == [0, 1]
    assert rank.run.end is None


def test_without_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Identity()
    recorder = TraceRecorder(model, None)
    with recorder:
        model(X)
    with pytest.raises(NonFiniteError, match="batch 1"), recorder:
        model(NAN)
    assert "Last 1 forward frames" in capsys.readouterr().out


def test_what_was_detected_is_detected_again(tmp_path: Path) -> None:
    model, path = nn.Identity(), tmp_path / "run"
    recorder = TraceRecorder(model, path)
    for batch in range(2):
        with pytest.raises(NonFiniteError, match=f"batch {batch}:"), recorder:
            model(NAN)
    assert [frame.batch_number for frame in frames_of(path)] == [0, 1]


def test_a_loop_that_counts_goes_on_counting(tmp_path: Path) -> None:
    model, path = nn.Identity(), tmp_path / "run"
    recorder = TraceRecorder(model, path)
    for block in range(2):
        with recorder:
            if not block:
                recorder.begin_batch(5)
            for _ in range(2):
                model(X)
                model(X)
                recorder.step()
    assert [frame.batch_number for frame in frames_of(path)] == [5, 5, 6, 6, 7, 7, 8, 8]


def test_each_close_is_an_event(tmp_path: Path) -> None:
    class Closes:
        def __init__(self) -> None:
            self.reasons: list[Any] = []

        def on_close(self, recorder: TraceRecorder, event: Any) -> None:
            self.reasons.append(event.how)

    closes = Closes()
    model = nn.Identity()
    recorder = TraceRecorder(model, tmp_path / "run", callbacks=[closes])
    for _ in range(2):
        with recorder:
            model(X)
        recorder.close()
    assert closes.reasons == ["closed", "closed"]


def test_another_runs_trace_is_refused(tmp_path: Path) -> None:
    # GIVEN
    model, path = nn.Identity(), tmp_path / "run"
    recorder = TraceRecorder(model, path)
    with recorder:
        model(X)
    # WHEN another run has replaced the trace
    with TraceRecorder(model, path, overwrite=True):
        model(X)
    # THEN
    with pytest.raises(TraceExistsError, match="another run was recorded there since"):
        recorder.start()
    assert hooks_on(model) == []
    assert len(frames_of(path)) == 1


@pytest.mark.parametrize("gone", ["directory", "ring that was not sealed"])
def test_where_it_cannot_go_on_training_does(gone: str, tmp_path: Path) -> None:
    # GIVEN
    model, path = nn.Identity(), tmp_path / "run"
    recorder = TraceRecorder(model, path)
    with recorder:
        model(X)
    # WHEN the trace is not there any more, or the disk has refused its last part
    if gone == "directory":
        shutil.rmtree(path)
    else:
        (path / "rank=0" / "_window.ring").write_bytes(b"rows")
    # THEN it is said, once
    with pytest.warns(RecorderWarning, match="the recorder could not start") as caught:
        twice(recorder, lambda: model(NAN))
    assert len(caught) == 1
    assert hooks_on(model) == []


def test_a_recorder_that_has_switched_itself_off_stays_off(tmp_path: Path) -> None:
    model, path = nn.Identity(), tmp_path / "run"
    recorder = TraceRecorder(model, path)
    with pytest.warns(RecorderWarning, match="switched itself off") as caught:
        twice(recorder, lambda: (model(X), recorder.switch_off(LookupError("ours"))))  # type: ignore[func-returns-value]
    assert len(caught) == 1
    assert len(frames_of(path)) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_in_a_forked_child_the_trace_stays_the_parents(tmp_path: Path) -> None:
    # GIVEN
    model, path = nn.Identity(), tmp_path / "run"
    recorder = TraceRecorder(model, path)
    with recorder:
        model(X)
    reading, writing = os.pipe()
    # WHEN a child uses the parent's recorder
    child = os.fork()
    if not child:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with recorder:
                model(X)
        os.write(writing, "\n".join(str(one.message) for one in caught).encode())
        os._exit(0)
    os.waitpid(child, 0)
    # THEN it is told so
    assert os.read(reading, 1000).decode() == (
        "the recorder belongs to the process that this one was forked from: nothing is recorded here"
    )
    assert len(frames_of(path)) == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_every_kind_of_module_has_hooks_again(tmp_path: Path) -> None:
    # GIVEN a model with a script, and a layer that may fuse
    layer = nn.TransformerEncoderLayer(2, 2, 4, batch_first=True)
    model = nn.Sequential(layer, torch.jit.trace(nn.Tanh(), X))  # type: ignore[no-untyped-call]  # torch leaves it untyped
    recorder = TraceRecorder(model.eval(), tmp_path / "run", every_n_batches=1)
    hooks: list[int] = []
    # WHEN
    with torch.no_grad(), pytest.warns(RecorderWarning, match="ScriptModule"):
        twice(recorder, lambda: (model(X[None]), hooks.append(len(layer._forward_hooks))))  # type: ignore[func-returns-value]
    # THEN
    names = [frame.module_name for frame in frames_of(tmp_path / "run")]
    assert names == ["0", "1", ""] * 2
    assert hooks == [1, 1]


def test_a_module_that_ran_in_the_first_block_alone_was_called(tmp_path: Path) -> None:
    # GIVEN a model whose first part runs in the first block only
    first = [True]
    model = Forward(lambda a, b, x: b(a(x)) if first[0] else b(x), nn.Linear(2, 2), nn.Linear(2, 2))
    recorder = TraceRecorder(model, tmp_path / "run")
    for first[0] in (True, False):
        with recorder:
            model(X)
    # THEN
    assert notes_of(tmp_path / "run") == []
