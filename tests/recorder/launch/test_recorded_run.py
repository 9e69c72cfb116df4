from __future__ import annotations

import atexit
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_analyzer import open_trace
from overflow_analyzer.trace.coverage import coverage_of
from overflow_recorder import RecorderArguments, TraceRecorder
from overflow_recorder.launch.recorded_run import RecordedRun, say
from tests.recorder.recordings import frames_of, global_hooks, hooks_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

X = torch.ones(1, 2)


class Script:
    """A script in this process: it has imported torch; what it would have registered for its end is called by hand."""

    def __init__(self, directory: Path) -> None:
        self.main = ModuleType("__main__")
        self.output = directory / "run"
        self.at_exit: list[Callable[[], None]] = []
        self.in_child: list[Callable[[], None]] = []
        self.runs: list[RecordedRun] = []

    def begin(self, model: str | None = None, **options: Any) -> None:
        run = RecordedRun(self.output, model, RecorderArguments(**{"every_n_batches": 1, **options}))
        run.begin()
        self.runs.append(run)

    def end(self) -> None:
        for run in self.runs:
            if run.recorder is not None:
                run.recorder.close()
        while self.at_exit:
            self.at_exit.pop()()
        while self.in_child:
            self.in_child.pop()()


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Script]:
    before = global_hooks()
    made = Script(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", made.main)
    monkeypatch.setattr(atexit, "register", made.at_exit.append)
    for name in ("execv", "execve"):
        monkeypatch.setattr(os, name, getattr(os, name))
    monkeypatch.setattr(os, "register_at_fork", lambda *, after_in_child: made.in_child.append(after_in_child))
    yield made
    made.end()
    assert global_hooks() == before


def _said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""  # stdout is the script's
    return err.splitlines()


def _batches(path: Path) -> list[tuple[int, str]]:
    return [(frame.batch_number, frame.module_name) for frame in frames_of(path)]


def test_the_model_is_recorded_and_named(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN
    script.main.net = model = nn.Sequential(nn.Linear(2, 2))  # type: ignore[attr-defined]
    script.begin()

    # WHEN
    for _ in range(2):
        model(X)
    script.end()

    # THEN
    (line,) = _said(capsys)
    assert line == (
        "overflow-record: recording Sequential (net), the first module called that has trainable parameters, "
        f"to {script.output}"
    )
    assert _batches(script.output) == [(0, "0"), (0, ""), (1, "0"), (1, "")]
    assert hooks_on(model) == []


@pytest.mark.parametrize("calls", [1, 2])
def test_of_two_models_the_first_is_recorded_and_the_other_named(
    script: Script, capsys: pytest.CaptureFixture[str], calls: int
) -> None:
    # GIVEN
    script.main.critic, script.main.maker = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)  # type: ignore[attr-defined]
    script.begin()

    # WHEN both are called once a batch, also where there is but one
    for _ in range(calls):
        script.main.critic(X)
        script.main.maker(X)
    script.end()

    # THEN
    _, others = _said(capsys)
    assert others == (
        "overflow-record: not recorded, though called too: Linear (maker); --model NAME (a class, or a variable of "
        "the script) records another one"
    )
    assert _batches(script.output) == [(batch, name) for batch in range(calls) for name in ("0", "")]


def test_a_model_that_a_loop_makes_anew_is_another(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a script with a model a fold, always in the same variable
    script.begin()

    # WHEN each is called
    for _ in range(3):
        script.main.model = nn.Linear(2, 2)  # type: ignore[attr-defined]
        script.main.model(X)
    script.end()

    # THEN the first is recorded, and the others are named as others
    recorded, others = _said(capsys)
    assert recorded.startswith("overflow-record: recording Linear (model), ")
    assert others.startswith("overflow-record: not recorded, though called too: another Linear (model); ")
    assert _batches(script.output) == [(0, "")]
    assert list(open_trace(script.output).ranks[0].run.notes) == [
        "another Linear (model): called by the script, but not part of the model that is recorded"
    ]


def test_beside_a_chosen_model_the_others_are_named_too(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.main.critic, script.main.maker = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)  # type: ignore[attr-defined]
    script.begin("maker")

    for _ in range(2):
        script.main.critic(X)
        script.main.maker(X)
    script.end()

    chosen, others = _said(capsys)
    assert others.startswith("overflow-record: not recorded, though called too: Sequential (critic); --model NAME")
    assert chosen == f"overflow-record: recording Linear (maker), as --model says, to {script.output}"
    assert _batches(script.output) == [(0, ""), (1, "")]


def test_other_models_stand_in_the_trace_as_soon_as_they_are_called(script: Script) -> None:
    # GIVEN a script that trains one model after the other
    script.begin()

    # WHEN it has not ended, or has
    notes: list[tuple[str, ...]] = []
    for number in range(12):
        setattr(script.main, f"net{number}", nn.Linear(2, 2))
        getattr(script.main, f"net{number}")(X)
    notes.append(open_trace(script.output).ranks[0].run.notes)
    script.end()
    notes.append(open_trace(script.output).ranks[0].run.notes)

    # THEN each is named, up to a number
    named = [*(f"Linear (net{number})" for number in range(1, 9)), "more models"]
    said = tuple(f"{name}: called by the script, but not part of the model that is recorded" for name in named)
    assert notes == [said, said]
    assert {f"Not seen: {one}." for one in said} <= set(coverage_of(open_trace(script.output)))


def test_a_script_that_becomes_another_program_says_so(
    script: Script, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN what replaces the process would do so
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(os, "execv", lambda *what: calls.append(what))
    script.begin()
    nn.Linear(2, 2)(X)

    # WHEN
    os.execl("/usr/bin/python", "python", "train.py")
    script.end()

    # THEN
    said = "the script replaced its process with another program (/usr/bin/python), which is not recorded"
    assert calls == [("/usr/bin/python", ("python", "train.py"))]
    assert _said(capsys)[1] == f"overflow-record: {said} unless overflow-record starts it"
    assert open_trace(script.output).ranks[0].run.notes == (said,)


def test_parts_called_without_their_model_make_a_batch_an_optimizer_step(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN an autoencoder whose own forward is never called, and two micro-batches a step
    script.main.model = model = nn.ModuleDict({"encoder": nn.Linear(2, 1), "decoder": nn.Linear(1, 2)})  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    script.begin("model")

    # WHEN
    for _ in range(2):
        for _ in range(2):
            model["decoder"](model["encoder"](X)).sum().backward()
        optimizer.step()
    script.end()

    # THEN
    both = ["encoder", "decoder"] * 2
    assert _batches(script.output) == [(batch, name) for batch in range(2) for name in both]
    assert [frame.optimizer_step for frame in frames_of(script.output)] == [0] * 4 + [1] * 4


def test_a_part_called_first_and_then_the_model_itself(script: Script) -> None:
    # GIVEN
    script.main.model = model = nn.Sequential(nn.Linear(2, 2))  # type: ignore[attr-defined]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    script.begin("model")

    # WHEN a part is looked at, and then the model is trained, in two micro-batches a step
    model[0](X)
    for _ in range(2):
        for _ in range(2):
            model(X).sum().backward()
        optimizer.step()
    script.end()

    # THEN its calls are the batches, as always
    assert _batches(script.output) == [(0, "0"), *((batch, name) for batch in range(4) for name in ("0", ""))]


# Where there is nothing.


def test_a_script_that_calls_nothing(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.begin()
    script.end()

    (line,) = _said(capsys)
    assert line.startswith("overflow-record: nothing was recorded: no module was called in this process, or only")
    assert "torchrun ... -m overflow_recorder train.py" in line
    assert not script.output.exists()


def test_a_script_that_calls_only_what_is_frozen(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.main.net = nn.Linear(2, 2).requires_grad_(requires_grad=False)  # type: ignore[attr-defined]
    script.begin()

    script.main.net(X)
    script.end()

    (line,) = _said(capsys)
    assert line == (
        "overflow-record: nothing was recorded: no module with trainable parameters was called; there were calls of "
        "Linear (net); --model NAME (a class, or a variable of the script) records another one"
    )


def test_a_name_that_nothing_has_is_said_while_the_script_runs(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main.net = nn.Linear(2, 2)  # type: ignore[attr-defined]
    script.begin("GPT")

    script.main.net(X)
    script.main.net(X)

    (line,) = _said(capsys)
    assert line == (
        "overflow-record: nothing is recorded so far: no module that is or belongs to 'GPT' was called; there were "
        "calls of Linear (net); --model NAME (a class, or a variable of the script) records another one"
    )


def test_a_name_that_nothing_has(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script.main.net = nn.Linear(2, 2)  # type: ignore[attr-defined]
    script.begin("GPT")

    script.main.net(X)
    script.end()

    (line,) = _said(capsys)
    assert "no module that is or belongs to 'GPT' was called; there were calls of Linear (net)" in line


def test_a_trace_that_has_appeared_meanwhile_does_not_stop_the_script(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN
    model = nn.Linear(2, 2)
    script.begin()
    (script.output / "rank=0").mkdir(parents=True)
    (script.output / "rank=0/_run.json").write_text("{}")

    # WHEN
    model(X)
    script.end()

    # THEN
    (line,) = _said(capsys)
    assert line.startswith(f"overflow-record: nothing is recorded: {script.output}: a trace")
    assert hooks_on(model) == []


def test_a_script_that_records_its_model_itself_is_left_alone(
    script: Script, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # GIVEN a model inside of a wrapper
    model = nn.Linear(2, 2)
    script.main.wrapper = nn.Sequential(model)  # type: ignore[attr-defined]
    script.begin()

    # WHEN
    with TraceRecorder(model, tmp_path / "own", every_n_batches=1):
        script.main.wrapper(X)
    script.end()

    # THEN
    assert _said(capsys) == ["overflow-record: the script records Sequential (wrapper) itself, and is left alone"]
    assert _batches(tmp_path / "own") == [(0, "")]
    assert not script.output.exists()


def test_ranks_other_than_the_first_are_silent(
    script: Script, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    script.begin()

    nn.Linear(2, 2)(X)
    script.end()

    assert _said(capsys) == []
    assert (script.output / "rank=1").is_dir()


def test_a_forked_child_does_not_look_for_a_model(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a child, in which the functions for it have been called
    script.begin()
    while script.in_child:
        script.in_child.pop()()

    # WHEN
    nn.Linear(2, 2)(X)

    # THEN
    assert _said(capsys) == []
    assert not script.output.exists()


def test_a_closed_stderr_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)

    say("to nobody")
