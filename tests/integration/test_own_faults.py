"""A fault of the recorder's own is one warning, and training ends with the same bits."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import warnings
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from overflow_analyzer import open_trace
from overflow_recorder import DebugUnderflowOverflow, RecorderWarning, TraceRecorder
from tests.recorder.recordings import EVERYTHING, global_hooks, hooks_on

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FLOORS = {
    "hooks, nested calls": ("recording.session.calls_itself", 0),
    "hooks, a changed model": ("hooks.modules.ModuleHooks.attach_new", 3),
    "hooks, fused layers": ("hooks.fused_layers.FusedLayers.step_aside", 3),
    "batches": ("recording.batches.BatchCounter.root_ends", 3),
    "frames, entering": ("recording.frame_builder.FrameBuilder.enter", 3),
    "frames, leaving": ("recording.frame_builder.FrameBuilder.leave", 3),
    "values of inputs": ("recording.frame_builder.walk_inputs", 3),
    "values of outputs": ("recording.frame_builder.walk", 3),
    "measuring": ("recording.measuring.Measuring.__call__", 30),
    "descriptions": ("recording.measuring.describe", 30),
    "statistics": ("recording.measuring.measure", 30),
    "packing": ("storage.packed_tensor.TensorPacker.__call__", 30),
    "names": ("storage.name_dictionary.NameDictionary.position", 30),
    "window": ("storage.window.Window.append", 3),
    "storage": ("storage.storage.Storage.publish", 3),
    "gradients of inputs": ("hooks.gradients.Gradients.await_inputs", 3),
    "gradients of outputs": ("hooks.gradients.Gradients.await_outputs", 3),
    "gradients, arriving": ("recording.session.Session._batch_now", 30),
    "gradients of parameters": ("hooks.gradients.Gradients.attach", 3),
    "gradients of a batch": ("recording.session.call_at_backward", 2),
    "loss scale": ("hooks.loss_scale.LossScale.current", 1),
    "optimizers, counting": ("hooks.optimizer_steps.OptimizerSteps._is_ours", 1),
    "optimizers, state": ("hooks.gradients.Gradients.states_of", 1),
    "unseen": ("recording.blind_spots.BlindSpots.warn_once", 0),
    "seal": ("storage.writer.PartWriter.seal", 0),
    "parts": ("storage.directory.TraceDirectory.seal", 0),
    "closing": ("storage.directory.TraceDirectory.write_run", 2),  # behind the start's and the optimizer's
    "end": ("recording.session.Session.publish_rest", 0),
}
"""What fails, and at which call: in the middle of training where there are several."""
AT_THE_START = {
    "run": "trace_recorder.describe_run",
    "storage": "storage.storage.Storage.__init__",
    "window": "storage.window.Window.__init__",
    "session": "recording.session.Session.__init__",
    "hooks": "hooks.modules.ModuleHooks.attach",
    "optimizers": "hooks.optimizer_steps.OptimizerSteps.attach",
}


def alternating(floors: Iterable[str]) -> list[tuple[str, str]]:
    """Each floor, with warnings shown and with warnings as errors in turn."""
    return [(floor, ["always", "error"][position % 2]) for position, floor in enumerate(floors)]


class InjectedError(Exception):
    """Stands for anything that this package does not foresee."""


@contextlib.contextmanager
def fault_in(target: str, at_call: int) -> Iterator[list[int]]:
    """Let a function of the package fail at its n-th call and ever after."""
    path, _, name = f"overflow_recorder.{target}".rpartition(".")
    owner: Any = _resolve(path)
    real, calls = getattr(owner, name), itertools.count()
    failed: list[int] = []

    def failing(*args: Any, **kwargs: Any) -> Any:
        number = next(calls)
        if number >= at_call:
            failed.append(number)
            raise InjectedError("injected")
        return real(*args, **kwargs)

    with patch.object(owner, name, failing):
        yield failed


def _resolve(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.1)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, deeper: bool = False) -> dict[str, torch.Tensor]:
        if deeper:
            return self(x)  # type: ignore[no-any-return]
        return {"loss": self.head(self.encoder(x)).square().mean()}


def train(model: nn.Module, steps: int = 3) -> list[torch.Tensor]:
    """Train with everything that the recorder listens to; returns all bits that came of it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    torch.manual_seed(2)
    bits = []
    for step in range(steps):
        x = torch.randn(2, 3, 4, requires_grad=True)
        loss = model(x, deeper=step == 1)["loss"]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        with torch.no_grad():
            evaluated = model.eval()(x)["loss"]
        model.train()
        bits += [loss.detach(), evaluated, torch.get_rng_state()]
    return [*bits, *(parameter.detach().clone() for parameter in model.parameters())]


def made() -> Model:
    torch.manual_seed(0)
    return Model()


def recorded_training(path: Path) -> tuple[Model, list[torch.Tensor]]:
    """Train under a recorder that uses every floor there is."""
    model = made()
    recorder = TraceRecorder(model, path, every_n_batches=1, on_nonfinite="ignore", roles=EVERYTHING, statistics="full")
    with recorder:
        bits = train(model)
    return model, bits


@pytest.fixture(scope="module")
def plain() -> list[torch.Tensor]:
    return train(made())


def told(caught: list[warnings.WarningMessage], stderr: str) -> list[str]:
    """What the user was told, by warnings or, where these are errors, on stderr."""
    assert all(issubclass(one.category, RecorderWarning) for one in caught), [str(one.message) for one in caught]
    return [*(str(one.message) for one in caught), *stderr.splitlines()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(map(torch.equal, first, second))


@pytest.mark.parametrize(("floor", "action"), alternating(FLOORS))
def test_one_warning_the_same_bits_and_a_readable_trace(
    floor: str, action: Any, plain: list[torch.Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN
    target, at_call = FLOORS[floor]

    # WHEN
    with warnings.catch_warnings(record=True) as caught, fault_in(target, at_call) as failed:
        warnings.simplefilter(action)
        model, bits = recorded_training(tmp_path / "run")

    # THEN
    assert failed
    assert same(bits, plain)
    (message,) = told(caught, capsys.readouterr().err)
    assert "InjectedError: injected" in message
    assert hooks_on(model) == []
    assert global_hooks() == []
    rank = open_trace(tmp_path / "run").ranks[0]
    assert list(rank.frames())
    assert rank.ended == ("closed" if floor in {"closing", "seal", "parts"} else "switched off")


@pytest.mark.parametrize(("floor", "action"), alternating(AT_THE_START))
def test_a_recorder_that_cannot_start(
    floor: str, action: Any, plain: list[torch.Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # WHEN
    with warnings.catch_warnings(record=True) as caught, fault_in(AT_THE_START[floor], at_call=0) as failed:
        warnings.simplefilter(action)
        model, bits = recorded_training(tmp_path / "run")

    # THEN
    assert failed
    assert same(bits, plain)
    (message,) = told(caught, capsys.readouterr().err)
    assert "could not start (InjectedError: injected)" in message
    assert hooks_on(model) == []
    assert global_hooks() == []


def test_a_fault_while_a_batch_is_printed(plain: list[torch.Tensor], capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN
    model = made()

    def run() -> list[torch.Tensor]:
        with contextlib.closing(DebugUnderflowOverflow(model, trace_batch_nums=[0, 1])):
            return train(model)

    # WHEN
    with (
        pytest.warns(RecorderWarning, match="injected") as caught,
        fault_in("builtin_callbacks.render_batch", at_call=3),
    ):
        bits = run()

    # THEN
    assert len(caught) == 1
    assert same(bits, plain)
    assert capsys.readouterr().out.count("abs min  abs max") <= 1
    assert hooks_on(model) == []


def test_a_report_that_cannot_be_printed_still_stops_the_run() -> None:
    # GIVEN
    model = nn.Linear(2, 2)
    recorder = DebugUnderflowOverflow(model)

    # WHEN
    with (
        pytest.warns(RecorderWarning, match="injected") as caught,
        fault_in("builtin_callbacks.render_report", at_call=0),
        pytest.raises(ValueError, match="inf/nan detected"),
    ):
        model(torch.full((1, 2), float("nan")))
    recorder.close()

    # THEN
    assert len(caught) == 1
    assert hooks_on(model) == []


def test_a_window_that_cannot_be_read_stops_nothing() -> None:
    # GIVEN
    model = nn.Linear(2, 2)
    recorder = DebugUnderflowOverflow(model)

    # WHEN
    with (
        pytest.warns(RecorderWarning, match="injected") as caught,
        fault_in("storage.window.Window.last_frames", at_call=0),
    ):
        model(torch.full((1, 2), float("nan")))
    recorder.close()

    # THEN
    assert len(caught) == 1
    assert hooks_on(model) == []


def test_what_a_users_callback_raises_is_no_fault(tmp_path: Path) -> None:
    # GIVEN
    class Stop:
        def on_frame(self, recorder: Any, event: Any) -> None:
            if event.frame.batch_number == 1:
                raise StopIteration("enough")

    model = nn.Linear(2, 2)
    recorder = TraceRecorder(model, tmp_path / "run", every_n_batches=1, callbacks=[Stop]).start()

    # WHEN, THEN it goes up to whom it is meant for, and the recorder goes on
    model(torch.ones(1, 2))
    with pytest.raises(StopIteration, match="enough"):
        model(torch.ones(1, 2))
    model(torch.ones(1, 2))
    recorder.close()
    assert len(list(open_trace(tmp_path / "run").ranks[0].frames())) == 3
