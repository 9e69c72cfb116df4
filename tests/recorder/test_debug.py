from __future__ import annotations

import contextlib
import gc
import inspect
import io
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from transformers.debug_utils import DebugUnderflowOverflow as Upstream

from overflow_analyzer import open_trace
from overflow_recorder import BatchLimitReached, DebugUnderflowOverflow, NonFiniteError, TraceExistsError, TraceRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

X = torch.ones(1, 2)
INF = X * float("inf")


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def test_the_arguments_are_those_that_existing_calls_pass() -> None:
    # GIVEN the signature that code in the field was written for
    def parameters(debugger: Any) -> list[tuple[str, Any]]:
        # [] is the default of older releases for None.
        return [(one.name, one.default or None) for one in inspect.signature(debugger).parameters.values()]

    # THEN ours has the same names in the same order with the same defaults, and ours after them
    theirs = parameters(Upstream)
    assert parameters(DebugUnderflowOverflow) == [*theirs, ("path", None), ("replay", True)]


def test_it_is_a_recorder_that_is_attached_when_it_is_made(model: nn.Sequential) -> None:
    debugger = DebugUnderflowOverflow(model)
    assert isinstance(debugger, TraceRecorder)
    assert debugger.is_attached
    model(X)
    debugger.close()
    assert not debugger.is_attached
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    debugger.close()


def test_it_stays_attached_while_nobody_holds_it(model: nn.Sequential, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN the usual call, whose result is not kept
    DebugUnderflowOverflow(model)
    gc.collect()
    # THEN it detects all the same
    with pytest.raises(NonFiniteError):
        model(INF)
    assert "Detected inf/nan during batch_number=0" in capsys.readouterr().out


@pytest.mark.parametrize("none", [None, [], ()])
def test_no_batches_to_trace_is_detection(model: nn.Sequential, none: Any) -> None:
    DebugUnderflowOverflow(model, trace_batch_nums=none)
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(NonFiniteError):
        model(INF)


def test_batches_to_trace_may_be_any_iterable(model: nn.Sequential, capsys: pytest.CaptureFixture[str]) -> None:
    def numbers() -> Iterator[int]:
        yield from (0, 2)

    debugger = DebugUnderflowOverflow(model, trace_batch_nums=numbers())
    for _ in range(3):
        model(X)
    debugger.close()
    out = capsys.readouterr().out
    assert [batch for batch in range(3) if f"batch number={batch} ***" in out] == [0, 2]


def test_an_alarm_leaves_the_model_as_it_was(model: nn.Sequential) -> None:
    before = model(X)
    debugger = DebugUnderflowOverflow(model)
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(NonFiniteError):
        model(INF)
    assert not debugger.is_attached
    assert torch.equal(model(X), before)
    model(INF)  # and it raises no more


@pytest.mark.parametrize("options", [{}, {"trace_batch_nums": [0]}])
def test_early_stop_ends_either_mode(model: nn.Sequential, options: dict[str, Any]) -> None:
    debugger = DebugUnderflowOverflow(model, abort_after_batch_num=1, **options)
    with contextlib.redirect_stdout(io.StringIO()):
        model(X)
        with pytest.raises(BatchLimitReached):
            model(X)
    assert not debugger.is_attached


def test_without_a_path_nothing_is_written(
    model: nn.Sequential, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    DebugUnderflowOverflow(model)
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(NonFiniteError) as raised:
        model(INF)
    assert os.listdir(tmp_path) == []  # noqa: PTH208  names only
    assert "overflow-analyze" not in str(raised.value)


def test_with_a_path_the_window_is_a_trace(model: nn.Sequential, tmp_path: Path) -> None:
    # GIVEN a window of two frames
    DebugUnderflowOverflow(model, max_frames_to_save=2, path=tmp_path / "run.parquet")
    with contextlib.redirect_stdout(io.StringIO()):
        model(X)
        model(X)
        with pytest.raises(NonFiniteError):
            model(INF)
    # THEN the trace has the last two frames, the root's of batch 1 and the first of batch 2, and the call around it
    (rank,) = open_trace(tmp_path / "run.parquet").ranks
    assert [(one.batch_number, one.module_name) for one in rank.frames()] == [(1, ""), (2, "0"), (2, "")]


def test_a_path_that_is_taken_is_refused_and_nothing_is_attached(model: nn.Sequential, tmp_path: Path) -> None:
    first = DebugUnderflowOverflow(model, path=tmp_path / "run.parquet")
    model(X)
    first.close()
    with pytest.raises(TraceExistsError, match=r"run\.parquet"):
        DebugUnderflowOverflow(model, path=tmp_path / "run.parquet")
    assert not any(module._forward_hooks for module in model.modules())
