"""What an alarm says of the last batches: which tensors have jumped or grown, in order of execution."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_analyzer import open_trace
from overflow_recorder import NonFiniteError, TraceRecorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overflow_analyzer.format.origin import Change


def scaled(weight: float) -> nn.Linear:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, weight)
    return layer


def changes_of(path: Path, model: nn.Module, train: Callable[[], Any]) -> tuple[Change, ...]:
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(NonFiniteError), TraceRecorder(model, path):
        train()
    origin = open_trace(path).ranks[0].origin
    assert origin is not None
    return origin.changes


def test_a_weight_that_jumped_comes_first_with_its_gradient_and_learning_rate(tmp_path: Path) -> None:
    # GIVEN three layers, trained by steps of nearly nothing
    second = scaled(1.0)
    model = nn.Sequential(scaled(2.0), second, scaled(1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)

    def train() -> None:
        for batch in range(4):
            if batch == 3:
                # WHEN something else than the optimizer writes the second weight, and the third makes an inf of it
                with torch.no_grad():
                    second.weight.fill_(5e37)
            out = model(torch.full((1, 1), 4.0))
            optimizer.zero_grad()
            out.sum().backward()
            optimizer.step()

    # THEN: 4 x 2 = 8 goes through the first; 8 x 5e37 overflows float32 in the second
    (weight,) = changes_of(tmp_path / "run", model, train)
    assert (weight.module_name, weight.role, weight.context) == ("1", "weight", "weight")
    assert (weight.batch_before, weight.before) == (2, 1.0)
    assert weight.now == pytest.approx(5e37, rel=1e-6)
    assert weight.gradient == 8.0  # d out / d w1 = w2 * 8 = 8, made by the backward of batch 2
    assert weight.learning_rate == 1e-9


def test_what_grows_little_by_little_is_told_since_the_earliest_batch_that_is_remembered(tmp_path: Path) -> None:
    # GIVEN inputs that double in every batch, for 12 batches, and an exponential that does not fit at last
    model = nn.Sequential(scaled(1.0))

    def train() -> None:
        for batch in range(13):
            out = model(torch.full((1, 1), 2.0 ** (batch - 5)))
            torch.exp(out).sum().backward()  # type: ignore[no-untyped-call]

    # THEN the twelfth input, 2 ** 7 = 128, is compared with the one of eight batches before
    (grown,) = changes_of(tmp_path / "run", model, train)
    assert (grown.module_name, grown.context) == ("0", "input[0]")
    assert (grown.batch_before, grown.before, grown.now) == (4, 0.5, 128.0)
    assert (grown.gradient, grown.learning_rate) == (None, None)


def test_an_output_that_died_is_named(tmp_path: Path) -> None:
    model = nn.Sequential(scaled(1.0), nn.ReLU())

    def train() -> None:
        for sign in (1.0, 1.0, -1.0):
            out = model(torch.full((1, 1), sign))
            (1 / out).sum().backward()

    (died,) = changes_of(tmp_path / "run", model, train)
    assert (died.module_name, died.context, died.before, died.now) == ("1", "output", 1.0, 0.0)


def test_a_steady_training_has_no_change(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

    def train() -> None:
        for batch in range(6):
            loss = model(torch.ones(2, 3)).sum() * (1.0 if batch < 5 else float("nan"))
            loss.backward()

    assert changes_of(tmp_path / "run", model, train) == ()


def test_the_first_batch_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    assert changes_of(tmp_path / "run", model, lambda: model(torch.full((1, 1), float("inf")))) == ()


def test_a_second_block_is_not_compared_with_the_first(tmp_path: Path) -> None:
    # GIVEN a recorder whose first block saw a small input, which its second layer could multiply
    model = nn.Sequential(scaled(1.0), scaled(3e38))
    recorder = TraceRecorder(model, tmp_path / "run")
    with recorder:
        model(torch.full((1, 1), 1.0))
    # WHEN the second block, whose window has names of its own, sees a large one, which it cannot
    with contextlib.redirect_stdout(io.StringIO()), recorder, pytest.raises(NonFiniteError):
        model(torch.full((1, 1), 100.0))
    # THEN nothing is called changed
    origin = open_trace(tmp_path / "run").ranks[0].origin
    assert origin is not None
    assert origin.changes == ()
