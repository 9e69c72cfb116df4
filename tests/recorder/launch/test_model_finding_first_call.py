"""The call that the model is found by: hooks that are attached then count for it too, and nothing is left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from overflow_recorder import RecorderWarning, TraceRecorder
from tests.recorder.finding import Heard, Net, X, watched
from tests.recorder.recordings import entry, frames_of, global_hooks, hooks_on

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def heard() -> Iterator[Heard]:
    before = global_hooks()
    yield Heard()
    assert global_hooks() == before, "a test has left its finder armed"


def test_the_first_call_is_recorded_whole(heard: Heard, tmp_path: Path) -> None:
    # GIVEN a recorder that is attached when the model is found
    model, value = Net(), torch.tensor([[-9.0, 1.0]])
    recorders: list[TraceRecorder] = []
    heard.when_found = lambda model: recorders.append(TraceRecorder(model, tmp_path / "run", every_n_batches=1).start())

    # WHEN
    watched(heard.finder(), lambda: model(value=value), lambda: model(X, value=X))
    recorders[0].close()

    # THEN both calls are batches with the same frames, and the first one's input is as it was before the forward
    frames = frames_of(tmp_path / "run")
    assert [(frame.batch_number, frame.module_name) for frame in frames] == [
        (0, "linear"), (0, ""), (1, "linear"), (1, ""),
    ]  # fmt: skip
    given = entry(frames[1], "input[value]")
    assert (given.abs_min, given.abs_max) == (1.0, 9.0)
    assert value.tolist() == [[0.0, 1.0]]


def test_nothing_remains_behind_on_the_model(heard: Heard) -> None:
    model = Net()

    watched(heard.finder(), lambda: model(X), lambda: model(X))

    assert hooks_on(model) == []
    assert not model._forward_pre_hooks_with_kwargs


def test_hooks_that_were_there_before_are_called_once(heard: Heard) -> None:
    # GIVEN
    model, seen = Net(), list[str]()
    model.register_forward_pre_hook(lambda *_: seen.append("old"))
    heard.when_found = lambda model: model.register_forward_pre_hook(lambda *_: seen.append("new"), with_kwargs=True)

    # WHEN
    watched(heard.finder(), lambda: model(X))

    # THEN the new one too, though torch had listed this call's hooks already
    assert sorted(seen) == ["new", "old"]


def test_what_a_hook_raises_on_purpose_goes_up(heard: Heard) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("on purpose")

    model = Net()
    heard.when_found = lambda model: model.register_forward_pre_hook(refuse, with_kwargs=True)

    with pytest.raises(ValueError, match="on purpose"):
        watched(heard.finder(), lambda: model(X))


def test_a_fault_of_ours_is_a_warning_and_the_end_of_watching(heard: Heard) -> None:
    # GIVEN
    def fail(model: nn.Module) -> None:
        raise RuntimeError("broken")

    model, finder = Net(), heard.finder()
    heard.when_found = fail
    before = global_hooks()
    finder.arm()

    # WHEN
    with pytest.warns(RecorderWarning, match=r"the model could not be found \(RuntimeError: broken\); training goes"):
        output = model(X)

    # THEN
    assert torch.equal(output, model(X))
    assert global_hooks() == before


def test_a_fault_of_ours_with_the_model_found_leaves_the_recording_alone(heard: Heard) -> None:
    # GIVEN
    model, other, finder = Net(), Net(), heard.finder()
    before = global_hooks()
    finder._other = fail_on_label
    finder.arm()
    model(X)

    # WHEN
    with pytest.warns(
        RecorderWarning, match=r"other models are not named \(RuntimeError: Net\); training and recording"
    ):
        output = other(X)

    # THEN
    assert torch.equal(output, other(X))
    assert global_hooks() == before


def fail_on_label(label: str) -> None:
    raise RuntimeError(label)
