"""Who listens to events: the recorder's own behaviour, and a user's, is built of callbacks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from overflow_recorder.events import Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from overflow_recorder.events import BatchEvent, CloseEvent, FrameEvent, NonFiniteEvent
    from overflow_recorder.trace_recorder import TraceRecorder


class RecorderCallback:
    """Base class of callbacks: override the events of interest; the others do nothing and cost nothing.

    The events of a training loop take whatever the loop passes, as keywords. The recorder's own take the recorder and
    a frozen event object.

    To end the run, a method of a recorder's event returns a ``Stop``. The other callbacks still hear of the event. Then
    the recorder completes the trace and raises. While a forward that has raised is left, a ``Stop`` does nothing: that
    exception is on its way already.

    An exception raised in a method is the callback's own. It goes up through the training loop, the callbacks behind
    it do not hear of the event, and the recorder stays on.

    Example:
        ``class Print(RecorderCallback): ...`` with ``def on_batch_end(self, recorder, event): print(event)``
    """

    def on_init_end(self, **kwargs: Any) -> None:
        """The trainer has been set up."""

    def on_train_begin(self, **kwargs: Any) -> None:
        """Training begins."""

    def on_train_end(self, **kwargs: Any) -> None:
        """Training has ended."""

    def on_epoch_begin(self, **kwargs: Any) -> None:
        """An epoch begins."""

    def on_epoch_end(self, **kwargs: Any) -> None:
        """An epoch has ended."""

    def on_step_begin(self, **kwargs: Any) -> None:
        """A training step begins: one optimizer step, of several batches where gradients are accumulated."""

    def on_substep_end(self, **kwargs: Any) -> None:
        """A batch of a step with accumulated gradients has ended, and it was not the last."""

    def on_step_end(self, **kwargs: Any) -> None:
        """A training step has ended."""

    def on_evaluate(self, **kwargs: Any) -> None:
        """An evaluation has ended."""

    def on_log(self, **kwargs: Any) -> None:
        """The last logs were written."""

    def on_save(self, **kwargs: Any) -> None:
        """A checkpoint was saved."""

    def on_batch_begin(self, recorder: TraceRecorder, event: BatchEvent) -> Stop | None:
        """The root model's forward was called, or the loop said that a batch begins."""

    def on_frame(self, recorder: TraceRecorder, event: FrameEvent) -> Stop | None:
        """A frame was measured. A listener makes every frame a Python object, which training then waits for."""

    def on_nonfinite(self, recorder: TraceRecorder, event: NonFiniteEvent) -> Stop | None:
        """An inf or nan was found in a frame."""

    def on_batch_end(self, recorder: TraceRecorder, event: BatchEvent) -> Stop | None:
        """The batch's forward has ended, or the next one was begun."""

    def on_close(self, recorder: TraceRecorder, event: CloseEvent) -> None:
        """The recorder is closed: the trace is complete."""


class CallbackHandler:
    """Calls a list of callbacks, in order.

    A callback is any object with methods ``on_<event>``; ``RecorderCallback`` has them all. There is one callback of
    a class: a second one is warned about and not added, whatever its settings, so that nothing runs twice. To have
    two of a kind, subclass it; to change settings, ``pop_callback`` the first.

    Args:
        callbacks: Instances, or classes that are made without arguments.

    Example:
        ``CallbackHandler([PrintReport, StopEarly(batch_number=3)]).call_event("train_begin")``
    """

    def __init__(self, callbacks: Iterable[object] = ()) -> None:
        self._callbacks: list[Any] = []
        self._listened: dict[str, bool] = {}
        for callback in callbacks:
            self.add_callback(callback, _stacklevel=3)

    @property
    def callbacks(self) -> tuple[Any, ...]:
        """The callbacks, in the order in which they are called."""
        return tuple(self._callbacks)

    @property
    def callback_list(self) -> str:
        """The callbacks' class names, in order, a line each."""
        return "\n".join(type(callback).__name__ for callback in self._callbacks)

    def add_callback(self, callback: object, *, _stacklevel: int = 2) -> None:
        """Add a callback, an instance or a class that is made without arguments, after the others.

        Warns:
            UserWarning: There is one of this class already; the new one is not added (a class is not even made).
        """
        kind = callback if isinstance(callback, type) else type(callback)
        if any(type(present) is kind for present in self._callbacks):
            message = (
                f"there is already a {kind.__name__} among the callbacks; the second one is not added "
                "(pop_callback the first to change its settings, or subclass to have two)"
            )
            warnings.warn(message, UserWarning, stacklevel=_stacklevel)
            return
        self._callbacks.append(callback() if isinstance(callback, type) else callback)
        self._listened.clear()

    def pop_callback(self, callback: object) -> Any:
        """Remove a callback and return it; None where there is no such callback.

        Args:
            callback: An instance, or a class: the first instance of it, or of a subclass, is taken.
        """
        for index, present in enumerate(self._callbacks):
            if _is_meant(present, callback):
                self._listened.clear()
                return self._callbacks.pop(index)
        return None

    def remove_callback(self, callback: object) -> None:
        """Remove a callback.

        Args:
            callback: As for ``pop_callback``.

        Raises:
            ValueError: The instance is not there. A class without an instance is no error.
        """
        if self.pop_callback(callback) is None and not isinstance(callback, type):
            raise ValueError(f"{callback!r} is not among the callbacks: {self.callback_list or 'there are none'}")

    def call_event(self, event: str, /, *args: Any, **kwargs: Any) -> Stop | None:
        """Call ``on_<event>`` of each callback that has it, in order, with these arguments.

        Where no callback has such a method, nothing is called. An exception goes up at once: the callbacks after that
        one are not called.

        Args:
            event: The event's name, with or without ``on_``.
            *args: Passed on.
            **kwargs: Passed on.

        Returns:
            The first ``Stop`` that a method returned; None where none did. Anything else that they return is not used.
        """
        name, stop = _method_name(event), None
        for callback in tuple(self._callbacks):  # a callback may remove itself
            method = getattr(callback, name, None)
            if callable(method):
                returned = method(*args, **kwargs)
                if stop is None and isinstance(returned, Stop):
                    stop = returned
        return stop

    def listens_to(self, event: str) -> bool:
        """Whether any callback does something on this event; the no-ops of ``RecorderCallback`` do not count.

        One dictionary look-up, for asking on every frame. It is worked out when first asked after the list has
        changed: a method put on a callback later is called, but not seen here.
        """
        listened = self._listened.get(event)
        if listened is None:
            name = _method_name(event)
            listened = self._listened[event] = any(_overrides(callback, name) for callback in self._callbacks)
        return listened


def _method_name(event: str) -> str:
    return event if event.startswith("on_") else f"on_{event}"


def _is_meant(present: object, callback: object) -> bool:
    if isinstance(callback, type):
        return isinstance(present, callback)
    return present is callback or present == callback


def _overrides(callback: object, name: str) -> bool:
    method: Callable[..., None] | None = getattr(callback, name, None)
    return callable(method) and getattr(method, "__func__", method) is not getattr(RecorderCallback, name, None)
