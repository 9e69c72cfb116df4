"""Whose exception it is: a signal handler's that interrupted the recorder, or the recorder's own."""

from __future__ import annotations

import functools
import os
import pkgutil
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch

from overflow_recorder import TraceRecorder
from overflow_recorder.faults import raised_by_signal_handler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class PreemptedError(Exception):
    """What a launcher raises in a training whose time is up."""


def function(number: int, _: Any) -> None:
    through_another(number)


def through_another(number: int) -> None:
    raise PreemptedError(number)


class Handlers:
    """Handlers of other kinds."""

    def method(self, number: int, _: Any) -> None:
        raise PreemptedError(number)

    def __call__(self, number: int, _: Any) -> None:
        raise PreemptedError(number)


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    "handler",
    [
        function,
        functools.partial(functools.partial(function)),
        Handlers().method,
        Handlers(),
        lambda *_: function(0, 0),
    ],
    ids=["function", "partial", "method", "object", "lambda"],
)
def test_a_handlers_exception_is_known(handler: Any) -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(PreemptedError) as raised:
        os.kill(os.getpid(), signal.SIGUSR1)
    assert raised_by_signal_handler(raised.value)


def test_other_exceptions_are_not_a_handlers() -> None:
    signal.signal(signal.SIGUSR1, Handlers().method)
    with pytest.raises(PreemptedError) as raised:
        through_another(1)
    assert not raised_by_signal_handler(raised.value)
    assert not raised_by_signal_handler(ValueError("never raised"))


@pytest.mark.parametrize(
    "inside",
    [
        "overflow_recorder.recording.measuring.describe",
        "overflow_recorder.recording.measuring.measure",
        "overflow_recorder.recording.frame_builder.walk",
        "overflow_recorder.storage.window.Window.append",
        "overflow_recorder.storage.storage.Storage.publish",
    ],
)
def test_what_a_handler_raises_goes_on_into_the_training(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a handler whose signal comes while the recorder is at work
    signal.signal(signal.SIGUSR1, function)
    original, armed = pkgutil.resolve_name(inside), [False]

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        if armed[0]:
            armed[0] = False
            os.kill(os.getpid(), signal.SIGUSR1)
        return original(*arguments, **keywords)

    monkeypatch.setattr(inside, interrupted)
    model = torch.nn.Sequential(torch.nn.LSTM(4, 4), torch.nn.Identity())

    # WHEN it raises, THEN the training sees it, as without a recorder, and the recorder goes on
    with TraceRecorder(model, tmp_path / "run.parquet", every_n_batches=1) as recorder:
        model(torch.ones(2, 3, 4))
        armed[0] = True
        with pytest.raises(PreemptedError):
            model(torch.ones(2, 3, 4))
        model(torch.ones(2, 3, 4))
        assert recorder.is_attached
