"""The statement that computed a loss is run again, and names its operation; what may do more is not run."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from overflow_analyzer import open_trace
from overflow_recorder import NonFiniteError, TraceRecorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overflow_analyzer.format.origin import Origin

X = torch.ones(2, 3)
CALLS: list[str] = []


def origin_of(path: Path, train: Callable[[nn.Module, TraceRecorder], Any]) -> Origin:
    """What the recorder writes of a training that ends at a loss."""
    model = nn.Linear(3, 4)
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(NonFiniteError):  # noqa: SIM117  one block to read
        with TraceRecorder(model, path) as recorder:
            train(model, recorder)
    origin = open_trace(path).ranks[0].origin
    assert origin is not None
    return origin


def code_of(origin: Origin) -> tuple[str, str, str]:
    assert origin.operation is not None, origin.reason
    assert origin.operation.source is not None
    return origin.operation.name, origin.operation.source.code, origin.operation.source.function


def no_label(model: nn.Module, _: TraceRecorder) -> None:
    logits, labels = model(X), torch.full((2,), -100)
    loss = functional.cross_entropy(logits, labels)
    loss.backward()  # type: ignore[no-untyped-call]


def test_the_operation_and_its_line(tmp_path: Path) -> None:
    origin = origin_of(tmp_path / "run", no_label)
    assert code_of(origin) == (
        "torch.nn.functional.cross_entropy",
        "loss = functional.cross_entropy(logits, labels)",
        "no_label",
    )
    assert origin.operation is not None
    assert (origin.operation.cause, origin.operation.evidence) == (
        "division-by-zero",
        ("2 of 2 labels are ignored (-100): 0 / 0",),
    )


def two_terms(model: nn.Module, _: TraceRecorder) -> None:
    out = model(X)
    first = out.square().mean()
    variance = (out.detach() * 0).sum(1)
    second = (1 / variance).mean()
    loss = first + 0.1 * second
    loss.backward()


def test_a_term_is_followed_to_the_statement_that_made_it(tmp_path: Path) -> None:
    origin = origin_of(tmp_path / "run", two_terms)
    assert code_of(origin) == ("torch.div", "second = (1 / variance).mean()", "two_terms")
    assert origin.operation is not None
    assert origin.operation.evidence == ("2 of 2 divisors are 0",)


def own_loss(out: torch.Tensor) -> torch.Tensor:
    shifted = out - out
    return torch.log(shifted).mean()


def in_a_function(model: nn.Module, _: TraceRecorder) -> None:
    loss = own_loss(model(X))
    loss.backward()  # type: ignore[no-untyped-call]


def test_a_call_of_the_recorded_model_is_not_run_again(tmp_path: Path) -> None:
    origin = origin_of(tmp_path / "run", in_a_function)
    assert origin.operation is None
    assert origin.reason is not None
    assert origin.reason.startswith("it comes out of model(...), line ")


def in_a_function_of_tensors(model: nn.Module, _: TraceRecorder) -> None:
    out = model(X)
    loss = own_loss(out)
    loss.backward()  # type: ignore[no-untyped-call]


def test_a_function_of_the_program_is_run_again(tmp_path: Path) -> None:
    origin = origin_of(tmp_path / "run", in_a_function_of_tensors)
    assert code_of(origin) == ("torch.log", "return torch.log(shifted).mean()", "own_loss")


def criterion_of_its_own(model: nn.Module, _: TraceRecorder) -> None:
    criterion = nn.MSELoss()
    out, target = model(X), torch.full((2, 4), 3e38)
    loss = criterion(out, target)
    loss.backward()


def test_a_loss_module_is_run_again(tmp_path: Path) -> None:
    origin = origin_of(tmp_path / "run", criterion_of_its_own)
    name, code, _ = code_of(origin)
    assert (name, code) == ("torch.nn.functional.mse_loss", "loss = criterion(out, target)")


def scaled(model: nn.Module, _: TraceRecorder) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    out = model(X)
    loss = (out * 1e30).square().sum()
    scaler.scale(loss).backward()


def test_a_loss_that_is_scaled(tmp_path: Path) -> None:
    name, code, _ = code_of(origin_of(tmp_path / "run", scaled))
    assert (name, code) == ("torch.square", "loss = (out * 1e30).square().sum()")


def recorded(model: nn.Module, recorder: TraceRecorder) -> None:
    out = model(X)
    ratio = out / torch.zeros(4)
    recorder.record("ratio", ratio=ratio)


def test_a_value_that_is_recorded(tmp_path: Path) -> None:
    name, code, _ = code_of(origin_of(tmp_path / "run", recorded))
    assert (name, code) == ("torch.div", "ratio = out / torch.zeros(4)")


def counted(out: torch.Tensor) -> torch.Tensor:
    CALLS.append("counted")
    return out.mean() * float("inf")


def with_effects(model: nn.Module, _: TraceRecorder) -> None:
    out = model(X)
    losses = [counted(out)]
    loss = losses.pop()
    loss.backward()  # type: ignore[no-untyped-call]


def in_place(model: nn.Module, _: TraceRecorder) -> None:
    out = model(X)
    total = torch.zeros(())
    loss = total.add_(out.mean() * float("inf"))
    loss.backward()  # type: ignore[no-untyped-call]


def augmented(model: nn.Module, _: TraceRecorder) -> None:
    loss = model(X).mean()
    loss /= 0
    loss.backward()


def unpacked(model: nn.Module, _: TraceRecorder) -> None:
    out = model(X)
    loss, _rest = out.mean() / 0, out
    loss.backward()


def unnamed(model: nn.Module, _: TraceRecorder) -> None:
    (model(X).mean() / 0).backward()


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (with_effects, "it comes out of losses.pop(...), line "),
        (in_place, "line "),
        (augmented, "it was made outside the modules: how loss was computed, at line "),
        (unpacked, "it was made outside the modules: how loss was computed, at line "),
        (unnamed, "it was made outside the modules, and no variable of the program holds it"),
    ],
)
def test_what_is_not_run_again(train: Callable[[nn.Module, TraceRecorder], Any], reason: str, tmp_path: Path) -> None:
    CALLS.clear()
    origin = origin_of(tmp_path / "run", train)
    assert origin.operation is None
    assert origin.reason is not None
    assert origin.reason.startswith(reason)
    assert ["counted"] * (train is with_effects) == CALLS


def test_random_states_are_as_they_were(tmp_path: Path) -> None:
    # GIVEN a loss with random numbers in it
    def noisy(model: nn.Module, _: TraceRecorder) -> None:
        out = model(X)
        loss = (out + torch.rand(())).mean() / 0
        states.append(torch.get_rng_state())
        loss.backward()

    states: list[torch.Tensor] = []
    # WHEN
    origin = origin_of(tmp_path / "run", noisy)
    # THEN
    assert code_of(origin)[0] == "torch.div"
    assert torch.equal(torch.get_rng_state(), states[0])


def test_replay_switched_off_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(3, 4)
    with pytest.raises(NonFiniteError), TraceRecorder(model, tmp_path / "run", replay=False) as recorder:
        no_label(model, recorder)
    origin = open_trace(tmp_path / "run").ranks[0].origin
    assert origin is not None
    assert (origin.operation, origin.reason) == (None, "replay=False")
    assert "Made by" not in capsys.readouterr().out
