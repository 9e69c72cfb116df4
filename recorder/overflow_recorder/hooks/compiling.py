"""Noticing that ``torch.compile`` makes code of the whole model: its own hooks do not run there."""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

from overflow_recorder.hooks.modules import modules_under_way

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


class Compiling:
    """Calls back when a model is compiled by something around it, which its own hooks cannot tell.

    Args:
        model: The root.
        seen: Called where the compiler begins with it: at the first forward, and at each that it compiles anew.
    """

    def __init__(self, model: nn.Module, seen: Callable[[], None]) -> None:
        self._model = model
        self._seen = seen
        weak = weakref.WeakMethod(self._compile_starts)  # the compiler keeps what it calls as long as the process lives

        def compile_starts(*_: Any) -> None:
            method = weak()
            if method is not None:
                method()

        self._callback = compile_starts

    def attach(self) -> None:
        """Listen to the compiler, once it is imported; called again where it may have forgotten it."""
        callbacks = _callbacks()
        if callbacks is not None and self._callback not in callbacks.start_callbacks:
            callbacks.register_start_callback(self._callback)

    def detach(self) -> None:
        """Stop listening; twice does no harm."""
        with contextlib.suppress(ValueError, AttributeError):
            _callbacks().remove_start_callback(self._callback)

    def _compile_starts(self) -> None:
        with contextlib.suppress(Exception):  # what is raised here would come out of the training's forward
            optimized = sys.modules["torch._dynamo.eval_frame"].OptimizedModule
            around = [one for one in modules_under_way() if isinstance(one, optimized) and one is not self._model]
            if any(inside is self._model for one in around for inside in one.modules()):
                self._seen()


def _callbacks() -> Any:
    return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
