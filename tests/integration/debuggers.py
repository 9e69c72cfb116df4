"""Running a model under this package's ``DebugUnderflowOverflow`` and under the one that transformers has."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from transformers.debug_utils import DebugUnderflowOverflow as Upstream

from overflow_recorder import DebugUnderflowOverflow as Ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Forward", "Ours", "Printed", "Upstream", "both", "figure_lines", "watch"]


class Printed(NamedTuple):
    """What a debugger made of a run."""

    text: str
    error: Exception | None
    batches: int
    """Root forwards that returned."""


class Forward(nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function: Callable[..., Any], *children: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.inner = nn.ModuleList(children)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def watch(debugger: Any, model: nn.Module, batches: Iterable[Callable[[], Any]], **options: Any) -> Printed:
    """Call the batches, one root forward each, until one raises."""
    text, done = io.StringIO(), 0
    recorder = debugger(model, **options)
    try:
        with contextlib.redirect_stdout(text):
            for batch in batches:
                batch()
                done += 1
    except Exception as error:  # noqa: BLE001  what it was is the test's to say
        return Printed(text.getvalue(), error, done)
    finally:
        if hasattr(recorder, "close"):
            recorder.close()
    return Printed(text.getvalue(), None, done)


def both(make: Callable[[], nn.Module], inputs: Iterable[tuple[Any, ...]], **options: Any) -> tuple[Printed, Printed]:
    """Run the same model with the same inputs under transformers' debugger and under ours, in this order.

    Ours does not run the origin module again: what that adds stands behind the report.
    """
    printed, inputs = [], list(inputs)
    for debugger in (Upstream, functools.partial(Ours, replay=False)):
        torch.manual_seed(0)
        model = make()
        batches = [lambda args=args, model=model: model(*args) for args in inputs]
        printed.append(watch(debugger, model, batches, **options))
    return printed[0], printed[1]


def figure_lines(text: str) -> list[str]:
    """The lines that say something about a module or a tensor: upstream's "not a tensor" says that it did not look."""
    return [line.rstrip() for line in text.splitlines() if line.strip() and "not a tensor" not in line]
