"""What the recorder prints, raises and warns by itself, and that it is what the analyzer prints afterwards."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_analyzer import open_trace
from overflow_recorder import (
    BatchLimitReached,
    DebugUnderflowOverflow,
    NonFiniteError,
    NonFiniteWarning,
    Stop,
    TraceRecorder,
)
from overflow_recorder.builtin_callbacks import PrintFrames, PrintReport, StopAfterBatch
from overflow_recorder.events import BatchEvent, FrameEvent, NonFiniteEvent
from tests.analyzer.commands import analyze
from tests.traces import frame, tensor

if TYPE_CHECKING:
    from pathlib import Path

X = torch.ones(1, 2)
INF = X * float("inf")


@pytest.fixture
def idle() -> TraceRecorder:
    """A recorder that watches nothing: callbacks are given one."""
    return TraceRecorder(nn.Identity(), None)


# The report on stdout.


def test_a_report_stands_behind_the_bad_contexts_and_between_blank_lines(
    idle: TraceRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a window of two frames, the second with an inf in its input and a nan and an inf in its output
    first = frame(0, 3, "a", tensor("output", "output"))
    bad_input = tensor("input", "input[0]", abs_max=float("inf"), posinf_count=1)
    bad_output = tensor("output", "output", float("nan"), float("nan"), nan_count=1, neginf_count=1)
    last = frame(1, 3, "b", bad_input, bad_output)
    # WHEN it is reported
    PrintReport().on_nonfinite(idle, NonFiniteEvent(last, (first, last), 3, last.nonfinite_entries, ()))
    # THEN each bad context has its line, nans before infs, and the report follows
    assert capsys.readouterr().out == (
        "input[0] has infs\n"
        "output has nans\n"
        "output has infs\n"
        "\n"
        "Detected inf/nan during batch_number=3\n"
        "Last 2 forward frames:\n"
        "abs min  abs max  metadata\n"
        "                  a Linear\n"
        "5.00e-01 2.00e+00 output\n"
        "                  b Linear\n"
        "5.00e-01      inf input[0]\n"
        "     nan      nan output\n"
        "\n\n\n"
    )


def test_a_traced_frame_is_printed_behind_its_batch_marker_if_it_is_the_first(
    idle: TraceRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    PrintFrames().on_frame(idle, FrameEvent(frame(7, 2, "a", tensor("output", "output"), in_batch=0)))
    marker = "\n\n                  *** Starting batch number=2 ***\nabs min  abs max  metadata\n"
    assert capsys.readouterr().out == marker + "                  a Linear\n5.00e-01 2.00e+00 output\n"
    PrintFrames().on_frame(idle, FrameEvent(frame(8, 2, "b", tensor("output", "output"), in_batch=1)))
    assert capsys.readouterr().out == "                  b Linear\n5.00e-01 2.00e+00 output\n"


@pytest.mark.parametrize("options", [{}, {"trace_batch_nums": [0]}])
def test_a_broken_stdout_stops_no_training_by_itself(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN nobody can be printed to
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    model = nn.Identity()
    recorder = DebugUnderflowOverflow(model, path=tmp_path / "run.parquet", **options)
    # WHEN there is something to print
    monkeypatch.setattr(sys, "stdout", Broken())
    with contextlib.suppress(NonFiniteError):
        model(INF)
    monkeypatch.undo()
    recorder.close()
    # THEN nothing but the detection was raised, and the trace has it
    assert analyze("report", tmp_path / "run.parquet").code == 1


# Live and offline.


class Everything(nn.Module):
    """Inputs and outputs of every kind that a report has a line for."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.add_module("模块\x1b[31m", nn.Tanh())

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> dict[str, Any]:
        x = self.norm(self.linear(x))
        for _, child in list(self.named_children())[2:]:
            x = child(x)
        return {"logits": x, "states": [x, None, "text"], "empty": x[:0], "mask": mask}


def report_in(text: str) -> str:
    """The standard report in what was printed, from its first line to its last."""
    return "Detected" + text.partition("\nDetected")[2].partition("\nMade by")[0].rstrip("\n") + "\n"


@pytest.mark.parametrize("frames", [1, 2, 3, 5, 21])
@pytest.mark.parametrize("bad_batch", [0, 2])
def test_the_live_report_equals_the_offline_one(
    frames: int, bad_batch: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a run that is stopped by an inf in a keyword input of the root
    model = Everything()
    options = {"max_frames_to_save": frames, "path": tmp_path / "run.parquet"}
    DebugUnderflowOverflow(model, **options)  # type: ignore[arg-type]
    for _ in range(bad_batch):
        model(torch.randn(4, 2), mask=X > 0)
    with pytest.raises(NonFiniteError):
        model(torch.randn(4, 2), mask=INF)
    live = report_in(capsys.readouterr().out)
    # WHEN the analyzer reports the trace
    ran = analyze(tmp_path / "run.parquet", "--frames", frames)
    # THEN it prints the same bytes, and what it adds before and behind is set apart by empty lines
    assert ran.code == 1
    assert f"\n\n{live}\n" in ran.out
    assert live.startswith(f"Detected inf/nan during batch_number={bad_batch}\nLast ")


def test_a_traced_batch_is_printed_offline_as_it_was_live(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Everything()
    recorder = DebugUnderflowOverflow(model, trace_batch_nums=[1], path=tmp_path / "run.parquet")
    for _ in range(3):
        model(torch.randn(4, 2), mask=X > 0)
    recorder.close()
    live = capsys.readouterr().out
    assert "     not a tensor output[states][2]\n            empty output[empty]\n" in live
    assert analyze("batch", tmp_path / "run.parquet", 1) == (0, live, "")


# Raising and warning.


def test_a_detection_completes_the_trace_before_it_raises(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity())
    path = tmp_path / "run.parquet"
    with (
        contextlib.redirect_stdout(io.StringIO()),
        pytest.raises(NonFiniteError) as raised,
        TraceRecorder(model, path) as recorder,
    ):
        model(torch.tensor([1.0, float("nan"), float("inf"), float("-inf")]))
    # THEN the message says what, where and how to learn more, and the trace says how it ended
    assert str(raised.value) == (
        "inf/nan detected in input[0] of 0 (Identity), batch 0: 1 nan, 1 inf, 1 -inf of 4 elements; "
        f"the report of the last 1 frames is printed above; explained by: overflow-analyze {path}"
    )
    assert not recorder.is_attached
    (rank,) = open_trace(path).ranks
    assert rank.run.end is not None
    assert (rank.run.end.how, rank.run.end.batch_number, rank.run.end.frame_number) == ("detected", 0, 0)


def test_a_warning_is_given_once_a_module_and_training_goes_on(tmp_path: Path) -> None:
    # GIVEN three modules, all of which see an inf in two batches
    model = nn.Sequential(nn.Identity(), nn.Identity())
    with warnings.catch_warnings(record=True) as warned, TraceRecorder(model, tmp_path / "run", on_nonfinite="warn"):
        warnings.simplefilter("always")
        for x in (X, INF, INF):
            model(x)
    assert {one.category for one in warned} == {NonFiniteWarning}
    messages = [str(one.message) for one in warned]
    assert [message.partition(",")[0] for message in messages] == [
        "inf/nan detected in input[0] of 0 (Identity)",
        "inf/nan detected in input[0] of 1 (Identity)",
        "inf/nan detected in input[0] of the root module (Sequential)",
    ]
    assert all("batch 1" in message for message in messages)


def test_ignored_detections_are_only_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Identity()
    with TraceRecorder(model, tmp_path / "run.parquet", on_nonfinite="ignore"):
        model(INF)
    assert capsys.readouterr().out == ""
    assert analyze(tmp_path / "run.parquet").code == 1


# Stopping.


def test_a_stop_is_after_the_batch_or_any_later_one(idle: TraceRecorder) -> None:
    callback = StopAfterBatch(2)
    assert callback.on_batch_end(idle, BatchEvent(1, selected=False)) is None
    for late in (2, 5):  # a loop that numbers its batches itself may jump
        stop = callback.on_batch_end(idle, BatchEvent(late, selected=False))
        assert stop is not None
        assert (stop.how, stop.reason) == ("aborted", f"batch {late} has ended (abort_after_batch_num=2)")
        assert type(stop.error) is BatchLimitReached


def test_a_stopped_run_says_so_in_its_trace(tmp_path: Path) -> None:
    model, path = nn.Identity(), tmp_path / "run.parquet"
    with TraceRecorder(model, path, abort_after_batch_num=1):
        model(X)
        with pytest.raises(BatchLimitReached):
            model(X)
        model(X)
    (rank,) = open_trace(path).ranks
    assert rank.ended == "aborted"
    # THEN the window at that moment is in the trace: the frames of batches 0 and 1, and no other
    assert [one.batch_number for one in rank.frames()] == [0, 1]


class EndsAt:
    """Ends the run in the first batch, at an event."""

    def __init__(self, event: str, how: Any = "aborted") -> None:
        self._how = how
        setattr(self, f"on_{event}", self._stop)

    def _stop(self, recorder: TraceRecorder, event: Any) -> Stop:
        return Stop(LookupError("enough"), "the loss is low", how=self._how)


class Hears:
    """Writes down which events it hears of."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_: self.heard.append(name)


@pytest.mark.parametrize("event", ["frame", "batch_end"])
def test_a_users_stop_completes_the_trace_and_is_raised(event: str, tmp_path: Path) -> None:
    # GIVEN a callback that ends the run, and one behind it
    model, path, behind = nn.Identity(), tmp_path / "run.parquet", Hears()
    recorder = TraceRecorder(model, path, callbacks=[EndsAt(event), behind]).start()
    # WHEN the event comes, THEN the recorder raises what the callback said
    with pytest.raises(LookupError, match="enough"):
        model(X)
    # THEN the one behind has heard of it, the model is let go of and the trace is complete
    assert behind.heard == [
        "on_batch_begin",
        "on_frame",
        *(["on_batch_end"] if event == "batch_end" else []),
        "on_close",
    ]
    assert not recorder.is_attached
    (rank,) = open_trace(path).ranks
    assert rank.run.end is not None
    assert (rank.run.end.how, rank.run.end.reason) == ("aborted", "the loss is low")
    assert rank.run.end.frame_number == (0 if event == "frame" else None)


def test_a_stop_where_the_first_batch_begins_ends_the_start(tmp_path: Path) -> None:
    model = nn.Identity()
    with pytest.raises(LookupError, match="enough"):
        TraceRecorder(model, tmp_path / "run", callbacks=[EndsAt("batch_begin")]).start()
    assert not model._forward_hooks
    (run_file,) = (tmp_path / "run").glob("*/_run.json")
    assert json.loads(run_file.read_text())["end"]["reason"] == "the loss is low"


def test_a_detection_comes_before_the_batch_limit(tmp_path: Path) -> None:
    # GIVEN a model whose only batch is the last one and not finite
    model = nn.Identity()
    recorder = TraceRecorder(model, tmp_path / "run", abort_after_batch_num=0).start()
    # WHEN it runs, THEN the inf is reported, and not that the batch has ended
    with pytest.raises(NonFiniteError):
        model(INF)
    assert not recorder.is_attached


def test_a_forward_that_raises_is_not_stopped(tmp_path: Path) -> None:
    # GIVEN a forward that raises after a module in it has seen an inf
    class Raises(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise LookupError("the model's own")

    model = Raises()
    with TraceRecorder(model, tmp_path / "run", abort_after_batch_num=0) as recorder:
        # WHEN it is left, THEN its own exception goes up, without a word from torch of another one
        with pytest.raises(LookupError, match="the model's own"):
            model(INF)
        # THEN the recorder is still on
        assert recorder.is_attached
