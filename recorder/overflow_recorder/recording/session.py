"""What lives between a recorder's start and its close: what hooks call, the order of frames, the events they make."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any

from overflow_analyzer.format.columns import PHASES, ROLES
from overflow_analyzer.format.run_info import EndInfo
from overflow_recorder.callbacks import BatchEvent, FrameEvent, NonFiniteEvent
from overflow_recorder.faults import describe_error, raised_by_signal_handler, warn
from overflow_recorder.hooks.gradients import Gradients
from overflow_recorder.hooks.modules import ModuleHooks, calls_itself
from overflow_recorder.hooks.optimizer_steps import OptimizerSteps
from overflow_recorder.recording.batches import BatchCounter
from overflow_recorder.recording.blind_spots import BlindSpots
from overflow_recorder.recording.frame_builder import FrameBuilder, PendingFrame, in_backward

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

    from overflow_analyzer.format.run_info import HowEnded
    from overflow_recorder.hooks.modules import HookedModule
    from overflow_recorder.recording.batches import Batch
    from overflow_recorder.storage.storage import Storage
    from overflow_recorder.trace_recorder import TraceRecorder


_MANUAL, _BACKWARD = PHASES.index("manual"), PHASES.index("backward")
_VALUE = ROLES.index("value")
_Event = tuple[str, Any]


class Session:
    """One attached recorder at work.

    Args:
        recorder: Whose model, options and callbacks.
        storage: Where frames go.

    Raises:
        Exception: Attaching failed; no hook is left.
    """

    def __init__(self, recorder: TraceRecorder, storage: Storage) -> None:
        self._recorder = recorder
        self._storage = storage
        self._detecting = recorder.options.trace_batch_nums is None
        self._recording = FrameBuilder(recorder.options, storage.window)
        self._pending: list[PendingFrame] = []
        self._alarmed: set[str] = set()
        self._measuring = False
        self._off = False
        self.meant = False
        """Whether the exception under way was raised by a callback, and is to go on."""
        self._root_exception = id(None)
        self._root_has_returned = False
        self._backward_batch: Batch | None = None
        self.batches = BatchCounter(recorder.options)
        self.failure: str | None = None
        self.unwinding = False
        """Whether a hook runs because a forward has raised: nothing may be raised then, and no hook be removed."""
        self.hooks = ModuleHooks(recorder.model, self)
        self.blind_spots = BlindSpots(recorder.model, self.hooks)
        self._optimizer_steps = OptimizerSteps(recorder.model, self._optimizer_stepped, self.fault)
        self._gradients = Gradients(recorder.model, recorder.options.roles, self)

    def attach(self) -> None:
        """Attach everywhere, or nowhere.

        Raises:
            Exception: What torch said.
        """
        try:
            self.hooks.attach()
            self._optimizer_steps.attach()
            self.begin_batch()
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Stop measuring and remove every hook.

        Where a forward has just raised, torch is iterating over its hooks: then the next hook removes them.
        """
        self._measuring = False
        self._off = True
        if not self.unwinding:
            self._remove_hooks()

    def _remove_hooks(self) -> None:
        self.hooks.detach()
        self._gradients.detach()
        self._optimizer_steps.detach()

    def end_info(
        self, how: HowEnded, reason: str | None, batch_number: int | None, frame_number: int | None
    ) -> EndInfo:
        """Say how the run ended; a recorder that switched itself off says that, whatever came later."""
        if self.failure is not None:
            how, reason = "switched off", self.failure
        return EndInfo(
            how=how,
            time_ns=time.time_ns(),
            batch_number=self.batches.current.number if batch_number is None else batch_number,
            frame_number=frame_number,
            reason=reason,
            frames_seen=self._storage.window.frames_seen(),
        )

    # Batches.

    def begin_batch(self) -> None:
        """Start measuring the current batch, or not: one that nobody asked for costs nothing."""
        batch = self.batches.current
        self._measuring = self.wants(batch)
        self._backward_batch = None
        self._recording.measuring.forget()
        self._attach_new()
        self._call("batch_begin", BatchEvent(batch.number, batch.selected))

    def end_batch(self) -> None:
        """Publish what waited for a device, then tell the callbacks, once a batch."""
        batch = self.batches.current
        self._dispatch(self._flush())
        if not batch.ended:
            batch.ended = True
            self._call("batch_end", BatchEvent(batch.number, batch.selected))

    def start_batch(self, number: int, *, after_current: bool) -> None:
        """Do what the loop says: the current batch has ended where it was in use, and another begins.

        Args:
            number: Of the batch that begins.
            after_current: Whether the current one was in use in any case.

        Raises:
            Exception: What a callback raised.
        """
        try:
            self._recording.abandon_calls()  # no forward is under way here: what seems to be was interrupted
            if after_current or number != self.batches.current.number:
                self.end_batch()
            self.batches.set_number(number)
            self.begin_batch()
        except Exception as error:  # noqa: BLE001
            self.fault(error)

    def wants(self, batch: Batch) -> bool:
        """Whether frames of a batch are measured."""
        return not self._off and self.failure is None and (self._detecting or batch.selected)

    def _attach_new(self) -> None:
        self.hooks.attach_new()
        self._gradients.attach()

    # What module hooks call.

    def before_forward(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """A module is about to run."""
        try:
            if self._off or self.failure is not None:
                self._remove_hooks()
                return
            if self._backward_batch is not None and not in_backward():
                self._backward_batch = None
                self._measuring = self.wants(self.batches.current)
            if hooked.is_root and not in_backward() and not _is_replica(module):
                self._root_starts(module)
            if self._measuring:
                self._recording.enter(hooked, module, args, kwargs)
                self._gradients.of_inputs(hooked, args, kwargs)
        except Exception as error:  # noqa: BLE001
            self.fault(error)

    def _root_starts(self, module: nn.Module) -> None:
        # A root forward that has not returned was interrupted (a cell of a notebook), unless the root calls itself.
        nested = self.batches.current.depth > 0 and calls_itself(module)
        self._root_exception = id(sys.exc_info()[1])
        if not nested:
            self._recording.abandon_calls()
        if self.batches.root_starts(nested=nested):
            self.begin_batch()
        elif not nested:
            self._attach_new()

    def after_forward(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """A module's forward has returned, or raised."""
        try:
            if self._off or self.failure is not None:
                return
            if self._measuring:
                self._dispatch(self._frame_of(hooked, module, args, kwargs, output))
            else:
                self._storage.window.skip_frame()
            if hooked.is_root and not in_backward() and not _is_replica(module) and self.batches.root_ends():
                self._root_returned(output)
        except Exception as error:  # noqa: BLE001
            self.fault(error)
        finally:
            self.unwinding = False

    def _root_returned(self, output: Any) -> None:
        error = sys.exc_info()[1] if output is None else None
        self.unwinding = error is not None and id(error) != self._root_exception
        self._root_has_returned = self._root_has_returned or not self.unwinding
        self._gradients.of_batch(output, self.batches.current)
        self.end_batch()
        self.blind_spots.tell()

    def _frame_of(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> Iterable[_Event]:
        batch = self.batch_now()
        frame = self._recording.leave(hooked, module, args, kwargs, output, batch)
        self._gradients.of_outputs(hooked, output)
        if frame is None:
            return ()
        self.unwinding = frame.raised
        return self._take(frame)

    def batch_now(self) -> Batch:
        """The batch of what runs now: in a backward the one that it is of, which accumulation may have left behind."""
        if self._backward_batch is not None and in_backward():
            return self._backward_batch
        return self.batches.current

    # What gradient and optimizer hooks call.

    def backward_starts(self, batch: Batch) -> None:
        """The backward of a batch has reached its root's output."""
        if self._off:
            return
        self._backward_batch = batch
        self._measuring = self.wants(batch)

    def values(
        self, module_name: str, module_class: str, role: int, phase: int, named: Iterable[tuple[str, Any]]
    ) -> None:
        """Record values that are no module's forward, as one frame."""
        try:
            batch = self.batch_now()
            if self.wants(batch):
                entries = self._recording.values(module_name, role, named)
                frame = self._recording.frame(batch, phase, module_name, module_class, entries)
                self._dispatch(() if frame is None else self._take(frame))
        except Exception as error:  # noqa: BLE001
            self.fault(error)

    def optimizer_stands_at(self, step: int) -> None:
        """Go on counting optimizer steps from here, as after a checkpoint was loaded."""
        self._recording.optimizer_step = step

    def _optimizer_stepped(self, optimizer: Any) -> None:
        self._recording.optimizer_step += 1
        self._recording.measuring.forget()  # fused optimizers change weights and state without raising their version
        self._gradients.of_optimizer(optimizer)
        if self._recording.optimizer_step > 1:  # before the first one, the recorder may have missed the forward
            self.blind_spots.tell()

    # The order of frames, and the events they make.

    def _take(self, frame: PendingFrame) -> Iterable[_Event]:
        if self._pending or self._recording.measuring.waits:
            # Frames stay in order: behind one whose figures are still on a device, all wait for the batch's end.
            self._pending.append(frame)
            return ()
        return self._publish(frame)

    def _publish(self, frame: PendingFrame) -> Iterable[_Event]:
        alarming = self._detecting and frame.alarming and frame.module_name not in self._alarmed
        number = self._storage.publish(frame, urgent=alarming)
        listening = self._recorder.callbacks.listens_to("frame")
        if number is None or not (alarming or listening):
            return ()
        window = tuple(self._storage.window.last_frames())
        events: list[_Event] = [("frame", FrameEvent(window[-1]))] if listening else []
        if alarming:
            self._alarmed.add(frame.module_name)
            self._storage.window.keep_window()
            found = NonFiniteEvent(window[-1], window, frame.batch.number, window[-1].nonfinite_entries)
            events.append(("nonfinite", found))
        return events

    def _flush(self) -> Iterator[_Event]:
        """Publish what waited for a device; the events of a batch that is written whole come after all its frames."""
        if not self._pending:
            return
        self._recording.measuring.collect()
        pending, self._pending = self._pending, []
        later: list[_Event] = []
        for frame in pending:
            events = self._publish(frame.resolved())
            if frame.batch.selected:
                later += events
            else:
                yield from events  # where that raises, what came after the inf/nan does not push its history out
        yield from later

    def publish_rest(self) -> None:
        """At the end: publish what still waits, without events."""
        with contextlib.suppress(Exception):
            for _ in self._flush():
                pass

    def _dispatch(self, events: Iterable[_Event]) -> None:
        for name, event in events:
            self._call(name, event)

    def _call(self, name: str, event: Any) -> None:
        try:
            self._recorder.callbacks.call_event(name, self._recorder, event)
        except Exception:
            self.meant = True
            raise

    # What was not seen.

    def notes(self) -> tuple[str, ...]:
        """Return sentences on what was not seen, for RunInfo."""
        batches, recorded = self.batches, self._storage.window.published > 0
        only_batch_zero = recorded and not batches.manual and not batches.current.called
        ran_whole = self._root_has_returned or not batches.current.called
        return self.blind_spots.notes(only_batch_zero=only_batch_zero, ran_whole=ran_whole)

    def nothing_recorded(self) -> str | None:
        """Return why there is no frame at all; None where there is one."""
        if self._storage.window.published or self.failure is not None:
            return None
        reason = self.blind_spots.never_called()
        if reason is None:
            reason = f"the run ended in batch {self.batches.current.number}, before any batch that was asked for"
        return reason

    # Faults of our own.

    def fault(self, error: Exception) -> None:
        """Handle an exception, from an except clause: what others raised is meant and goes on, all else is ours.

        Raises:
            Exception: A callback's, or a signal handler's.
        """
        if self.meant or raised_by_signal_handler(error):
            self.meant = False
            raise  # noqa: PLE0704  called while it is being handled
        self.switch_off(error)

    def switch_off(self, error: Exception) -> None:
        """Warn once and be off. Hooks are removed by the next one that runs, never from another thread."""
        self._measuring = False
        if self.failure is not None:
            return
        self.failure = describe_error(error)
        with contextlib.suppress(Exception):
            self._storage.note_end(self.end_info("switched off", None, None, None))
        warn(f"the recorder switched itself off ({self.failure}); training goes on, the trace so far is readable")


def _is_replica(module: nn.Module) -> bool:
    return getattr(module, "_is_replica", False) is True
