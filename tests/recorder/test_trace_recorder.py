"""``TraceRecorder`` as its users know it."""

from __future__ import annotations

import gc
import json
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from overflow_analyzer import open_trace
from overflow_recorder import (
    BatchLimitReached,
    EvalPrediction,
    NonFiniteError,
    NonFiniteWarning,
    TraceExistsError,
    TraceRecorder,
)
from tests.recorder.recordings import EVERYTHING, Forward, entry, frames_of, global_hooks, hooks_on, record, recording

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.run_info import EndInfo

X = torch.ones(1, 2)
NAN, INF = float("nan"), float("inf")


def end_of(path: Path) -> EndInfo:
    end = open_trace(path).ranks[0].run.end
    assert end is not None
    return end


# Values from outside of modules.


def test_record_makes_a_frame_of_any_values(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)

    # WHEN
    with recording(model, tmp_path / "run") as (recorder, frames):
        loss = model(X).sum()
        recorder.record(
            "step",
            loss=loss,
            learning_rate=1e-300,
            step=7,
            scores=np.array([1.0, -INF], np.float32),
            batch={"ids": torch.tensor([3]), "parts": (np.float16(2), "text", None)},
        )

    # THEN
    frame = frames[-1]
    assert (frame.module_name, frame.module_class, frame.phase) == ("step", "record", "manual")
    assert [(one.context, one.kind, one.dtype, one.abs_max, one.role) for one in frame.entries] == [
        ("loss", "tensor", "float32", abs(loss.item()), "value"),
        ("learning_rate", "tensor", "float64", 1e-300, "value"),
        ("step", "tensor", "int64", 7.0, "value"),
        ("scores", "tensor", "float32", INF, "value"),
        ("batch[ids]", "tensor", "int64", 3.0, "value"),
        ("batch[parts][0]", "tensor", "float16", 2.0, "value"),
        ("batch[parts][1]", "other", None, None, "value"),
        ("batch[parts][2]", "none", None, None, "value"),
    ]
    assert entry(frame, "scores").neginf_count == 1


def test_a_non_finite_value_is_detected(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with TraceRecorder(model, tmp_path / "run") as recorder:
        model(X)
        with pytest.raises(NonFiniteError, match=r'loss of record\("validation"\), batch 0: 1 nan of 1 element'):
            recorder.record("validation", loss=NAN)
    assert entry(frames_of(tmp_path / "run")[-1], "loss").nan_count == 1


def test_values_belong_to_the_batch_whose_forward_was_called_last(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with recording(model, tmp_path / "run") as (recorder, frames):
        recorder.record("before", value=0.0)
        for number in range(2):
            model(X)
            recorder.record("loss", value=float(number))
    assert [(frame.module_name, frame.batch_number) for frame in frames] == [
        ("before", 0),
        ("", 0),
        ("loss", 0),
        ("", 1),
        ("loss", 1),
    ]


def test_the_same_name_twice_is_counted(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with recording(model, tmp_path / "run") as (recorder, frames):
        for _ in range(2):
            recorder.record("loss", value=1.0)
        model(X)
    assert [frame.call_index for frame in frames if frame.module_name == "loss"] == [0, 1]


def test_batches_that_were_not_asked_for_record_no_values(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with recording(model, tmp_path / "run", every_n_batches=None, trace_batch_nums=[1]) as (recorder, frames):
        for _ in range(3):
            model(X)
            recorder.record("loss", value=1.0)
    assert [(frame.module_name, frame.batch_number) for frame in frames] == [("", 1), ("loss", 1)]


def test_recording_a_value_keeps_nothing_alive(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with recording(model, tmp_path / "run") as (recorder, _):
        loss = model(X).sum()
        probe = Events()
        loss.grad_fn.metadata["probe"] = probe  # it lives as long as the graph
        graph, alive = weakref.ref(probe), weakref.ref(loss)
        recorder.record("loss", loss=loss, nested=[{"loss": loss}])
        del loss, probe
        gc.collect()
        assert alive() is None
        assert graph() is None


def test_an_evaluation(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)
    prediction = EvalPrediction((np.array([1.0, NAN]), np.array([[2.0]])), np.array([-100, 3]), losses=np.array([0.5]))

    # WHEN
    with recording(model, tmp_path / "run") as (recorder, frames):
        recorder.record_evaluation(prediction)

    # THEN
    assert frames[0].module_name == "evaluation"
    assert [(one.context, one.abs_max) for one in frames[0].entries][1:] == [
        ("predictions[1]", 2.0),
        ("label_ids", 100.0),
        ("losses", 0.5),
    ]
    assert entry(frames[0], "predictions[0]").nan_count == 1


# Batches as the loop says.


def test_step_counts_for_a_loop_that_never_calls_the_root(tmp_path: Path) -> None:
    # GIVEN
    model = nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Linear(2, 2)})

    # WHEN
    with recording(model, tmp_path / "run") as (recorder, frames):
        for number in range(3):
            assert recorder.batch_number == number
            model["second"](model["first"](X))
            recorder.step()

    # THEN
    assert [(frame.batch_number, frame.module_name) for frame in frames] == [
        (number, name) for number in range(3) for name in ("first", "second")
    ]


def test_a_run_that_resumes_counts_on_from_the_number_it_sets(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with recording(model, tmp_path / "run") as (recorder, frames):
        recorder.batch_number = 100
        for _ in range(3):
            model(X)
    assert [(frame.batch_number, frame.call_index) for frame in frames] == [(100, 0), (101, 0), (102, 0)]


def test_a_number_set_for_each_batch_is_its_number(tmp_path: Path) -> None:
    # GIVEN a loop that sets the number for each batch, and calls the root more often from the second batch on
    model = nn.Linear(2, 2)
    with recording(model, tmp_path / "run") as (recorder, frames):
        for number, calls in ((7, 1), (9, 2), (11, 3)):
            recorder.batch_number = number
            for _ in range(calls):
                model(X)
    # THEN calls no longer count once the loop has set the number twice
    assert [frame.batch_number for frame in frames] == [7, 9, 9, 11, 11, 11]


def test_a_loop_that_begins_its_batches(tmp_path: Path) -> None:
    # GIVEN a run that was resumed at batch 1000 and calls the root twice a batch
    model = nn.Linear(2, 2)

    # WHEN
    with recording(model, tmp_path / "run", every_n_batches=None, trace_batch_nums=[1000, 1002]) as (recorder, frames):
        for number in range(1000, 1004):
            recorder.begin_batch(number)
            model(X)
            model(X)

    # THEN
    assert [(frame.batch_number, frame.call_index) for frame in frames] == [(1000, 0), (1000, 1), (1002, 0), (1002, 1)]


class Events:
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def on_batch_begin(self, recorder: Any, event: Any) -> None:
        self.seen.append(("begin", event.batch_number))

    def on_batch_end(self, recorder: Any, event: Any) -> None:
        self.seen.append(("end", event.batch_number))


def test_each_batch_begins_and_ends_once(tmp_path: Path) -> None:
    # GIVEN
    model, events = nn.Linear(2, 2), Events()

    # WHEN the loop counts only from its second batch on, and calls the root any number of times
    with recording(model, tmp_path / "run", callbacks=[events]) as (recorder, _):
        for calls in (1, 0, 3):
            for _ in range(calls):
                model(X)
            recorder.step()
        recorder.batch_number = 9
        model(X)

    # THEN
    assert events.seen == [(what, number) for number in (0, 1, 2) for what in ("begin", "end")] + [
        ("begin", 3),
        ("end", 3),
        ("begin", 9),
        ("end", 9),
    ]


@pytest.mark.parametrize("call", ["root", "part"])
def test_abort_after_a_batch(call: str, tmp_path: Path) -> None:
    # GIVEN
    model = nn.Sequential(nn.Linear(2, 2))
    module = model if call == "root" else model[0]
    done = []

    # WHEN
    def run(recorder: TraceRecorder) -> None:
        for number in range(10):
            module(X)
            recorder.step()
            done.append(number)

    with (
        recording(model, tmp_path / "run", abort_after_batch_num=2) as (recorder, _),
        pytest.raises(BatchLimitReached, match="batch 2 has ended"),
    ):
        run(recorder)

    # THEN
    assert done == [0, 1]
    assert sorted({frame.batch_number for frame in frames_of(tmp_path / "run")}) == [0, 1, 2]
    assert (end_of(tmp_path / "run").how, end_of(tmp_path / "run").batch_number) == ("aborted", 2)
    assert hooks_on(model) == []


# How a run ends.


def test_a_detection_raises_before_the_loop_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN
    model = nn.Sequential(nn.Linear(2, 2), Forward(lambda x: x * INF), nn.Linear(2, 2))

    # WHEN
    with pytest.raises(NonFiniteError, match=r"output of 1 \(Forward\), batch 0: .* of 2 elements"):
        record(model, tmp_path / "run", lambda: model(X), on_nonfinite="raise")

    # THEN nothing behind the module has run, and the call around it has a frame of what it was given
    frames = frames_of(tmp_path / "run")
    assert [frame.module_name for frame in frames] == ["0", "1", ""]
    assert [(one.context, one.note) for one in frames[-1].entries] == [
        ("input[0]", None),
        ("output", "forward raised NonFiniteError"),
    ]
    assert (end_of(tmp_path / "run").how, end_of(tmp_path / "run").frame_number) == ("detected", 1)
    assert "Detected inf/nan during batch_number=0" in capsys.readouterr().out
    assert hooks_on(model) == []
    assert model(X).shape == (1, 2)


def test_a_warning_comes_once_a_module(tmp_path: Path) -> None:
    model = nn.Sequential(Forward(lambda x: x * INF), nn.Identity())
    with pytest.warns(NonFiniteWarning) as caught:
        record(model, tmp_path / "run", lambda: [model(X) for _ in range(3)], on_nonfinite="warn")
    assert [str(one.message).partition(", batch")[0].rpartition(" of ")[2] for one in caught] == [
        "0 (Forward)",
        "1 (Identity)",
        "the root module (Sequential)",
    ]


def test_tracing_does_not_detect(tmp_path: Path) -> None:
    model = Forward(lambda x: x * INF)
    frames = record(
        model, tmp_path / "run", lambda: model(X), on_nonfinite="raise", every_n_batches=None, trace_batch_nums=[0]
    )
    assert entry(frames[0], "output").posinf_count == 2


def test_an_exception_in_the_block_is_the_reason(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)

    def run() -> None:
        model(X)
        raise LookupError("out of\ndata")

    with pytest.raises(LookupError):
        record(model, tmp_path / "run", run)
    assert (end_of(tmp_path / "run").how, end_of(tmp_path / "run").reason) == ("exception", "LookupError: out of data")


def test_without_a_path_only_the_window_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Forward(lambda x: x * INF))
    with pytest.raises(NonFiniteError, match=r"printed above$"), TraceRecorder(model, None):
        model(X)
    assert "Detected inf/nan" in capsys.readouterr().out


def test_a_model_that_is_thrown_away_with_its_recorder(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)
    TraceRecorder(model, tmp_path / "run", every_n_batches=1).start()
    model(X)
    alive = weakref.ref(model)

    # WHEN
    del model
    gc.collect()

    # THEN
    assert alive() is None
    assert global_hooks() == []
    assert end_of(tmp_path / "run").how == "closed"


def test_a_path_that_is_taken_is_refused_and_nothing_is_attached(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    record(model, tmp_path / "run", lambda: model(X))
    with pytest.raises(TraceExistsError):
        TraceRecorder(model, tmp_path / "run").start()
    assert hooks_on(model) == []
    assert len(frames_of(tmp_path / "run")) == 1


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model: function is not a torch.nn.Module"):
        TraceRecorder(lambda x: x, None)  # type: ignore[arg-type]


def test_notes_and_options_are_in_the_trace(tmp_path: Path) -> None:
    # WHEN
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with recording(model, tmp_path / "run", roles=EVERYTHING):
        model[0](X)

    # THEN
    stored = json.loads((tmp_path / "run" / "rank=0" / "_run.json").read_text())
    assert stored["options"]["roles"] == list(EVERYTHING)
    assert any(note.startswith("1: never called by itself") for note in stored["notes"])
    assert open_trace(tmp_path / "run").ranks[0].run.notes == tuple(stored["notes"])
