"""Running a model until an inf/nan is detected, and the module again that made it."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

from torch import nn

from overflow_recorder import NonFiniteError, RecorderCallback, TraceRecorder
from overflow_recorder.replay import find_operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from overflow_analyzer.format.origin import Operation, Origin
    from overflow_recorder import NonFiniteEvent


class FindOperation(RecorderCallback):
    """Keeps what running the origin module again has shown."""

    origin: Origin | None = None

    def on_nonfinite(self, recorder: TraceRecorder, event: NonFiniteEvent) -> None:
        self.origin = find_operation(recorder.model, event.frame)


class Calling(nn.Module):
    """Applies a function and passes its result on to another module: it is made between modules."""

    def __init__(self, function: Callable[..., Any], *children: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.kids = nn.ModuleList(children)
        self.last = nn.Identity()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.last(self.function(*args, **kwargs))


def origin_of(model: nn.Module, *args: Any, run: Callable[[], Any] | None = None, **kwargs: Any) -> Origin:
    find = FindOperation()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(NonFiniteError),
        TraceRecorder(model, None, replay=False, callbacks=[find]),
    ):
        _ = run() if run is not None else model(*args, **kwargs)
    assert find.origin is not None, "nothing was detected"
    return find.origin


def operation_of(model: nn.Module, *args: Any, **kwargs: Any) -> Operation:
    origin = origin_of(model, *args, **kwargs)
    assert origin.operation is not None, origin.reason
    assert origin.reason is None
    return origin.operation


def reason_of(model: nn.Module, *args: Any, **kwargs: Any) -> str:
    origin = origin_of(model, *args, **kwargs)
    assert origin.operation is None, origin.operation
    assert origin.reason is not None
    return origin.reason
