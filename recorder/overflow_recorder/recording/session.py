"""What lives between a recorder's start and its close: what hooks call, the order of frames, the events they make."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch

from overflow_analyzer.format.columns import PHASES, ROLES
from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.format.frames import LOSS
from overflow_analyzer.format.origin import Change
from overflow_analyzer.format.run_info import EndInfo
from overflow_recorder.events import BatchEvent, FrameEvent, NonFiniteEvent
from overflow_recorder.faults import describe_error, raised_by_signal_handler, warn
from overflow_recorder.hooks.compiling import Compiling
from overflow_recorder.hooks.gradients import Gradients, call_at_backward, largest_gradient
from overflow_recorder.hooks.loss_scale import LossScale
from overflow_recorder.hooks.losses import Losses, reaches
from overflow_recorder.hooks.modules import ModuleHooks, calls_itself
from overflow_recorder.hooks.optimizer_steps import OptimizerSteps
from overflow_recorder.recording.batches import BatchCounter
from overflow_recorder.recording.blind_spots import BlindSpots
from overflow_recorder.recording.frame_builder import FrameBuilder, PendingFrame, absorbs_masks, in_backward
from overflow_recorder.recording.module_states import ModuleStates
from overflow_recorder.recording.recent_batches import RecentBatches
from overflow_recorder.recording.values import walk, walk_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import nn

    from overflow_analyzer.format.run_info import HowEnded
    from overflow_recorder.hooks.modules import HookedModule
    from overflow_recorder.recorder_arguments import RecorderArguments
    from overflow_recorder.recording.batches import Batch
    from overflow_recorder.recording.recent_batches import Changed
    from overflow_recorder.storage.storage import Storage


_BACKWARD, _MANUAL = PHASES.index("backward"), PHASES.index("manual")
_WEIGHT, _VALUE, _OPTIMIZER_STATE = (ROLES.index(role) for role in ("weight", "value", "optimizer_state"))
_MOST_CHANGES = 5
_Event = tuple[str, Any]


class Session:
    """One attached recorder at work.

    What it does itself never raises: a fault is one warning, and the session is off. What callbacks raise goes on to
    whoever called the hook. So the two are kept apart: callbacks are only called in ``_tell``.

    Args:
        model: The root.
        options: The recorder's.
        storage: Where frames go.
        emit: Called with an event's name, the event and ``may_stop``: False where an exception is on its way already,
            which one raised here would not replace. It raises what a callback raises, or what ends the training.
        listens_to: Whether a callback does something on an event of this name.
        masks_may_pass: Whether a module that gives out finite values may be given -inf.
    """

    def __init__(
        self,
        model: nn.Module,
        options: RecorderArguments,
        storage: Storage,
        emit: Callable[..., None],
        listens_to: Callable[[str], bool],
        *,
        masks_may_pass: bool,
    ) -> None:
        self._model, self._storage, self._options = model, storage, options
        self._masks_may_pass = masks_may_pass
        self._emit, self._listens_to = emit, listens_to
        self._detecting = options.trace_batch_nums is None
        self._frame_builder = FrameBuilder(options, storage.window)
        self._pending: list[PendingFrame] = []
        self._reported: set[str] = set()
        self._measuring = False
        self._off = False
        self._unwinding = False
        """Whether a hook runs because a forward has raised: torch iterates over the hooks, so none may be removed."""
        self._root_exception = id(None)
        self._root_has_returned = False
        self._backward_batch: Batch | None = None
        self._scaled_batch: Batch | None = None
        self._trainings = 0
        """Forwards in training, and backwards, that were seen."""
        self._trainings_at_loss = 0
        self._trainings_before: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._loss_scale = LossScale()
        self.batches = BatchCounter(options)
        self.failure: str | None = None
        self.hooks = ModuleHooks(model, self)
        self.blind_spots = BlindSpots(model, self.hooks)
        self._module_states = ModuleStates(model, storage)
        self._compiling = Compiling(model, self.blind_spots.warn_of_compiling)
        self._optimizer_steps = OptimizerSteps(model, self._told(self._events_of_step), self.fault)
        self._gradients = Gradients(model, options.roles, self._told(self._events_of_gradient))
        self._losses = Losses(self.losses_arrived)
        self._recent = RecentBatches()

    def resume(self) -> None:
        """Get ready to be attached again: to the storage's new window, and to report again what was reported before."""
        step = self.optimizer_step
        self._frame_builder = FrameBuilder(self._options, self._storage.window)
        self.optimizer_step = step
        self._recent = RecentBatches()  # its names are positions in the earlier window's dictionary
        self._reported.clear()
        self._module_states.is_due = True
        self.batches.resume()
        self._off = False

    def attach(self) -> None:
        """Attach everywhere, or nowhere.

        Raises:
            Exception: What torch said.
        """
        try:
            self.hooks.attach()
            self._optimizer_steps.attach()
            self._losses.attach()
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Stop measuring and remove every hook.

        Where a forward has just raised, torch is iterating over its hooks: then the next hook removes them.
        """
        self._measuring, self._off = False, True
        if not self._unwinding:
            self._remove_hooks()

    def _remove_hooks(self) -> None:
        self.hooks.detach()
        self._compiling.detach()
        self._gradients.detach()
        self._optimizer_steps.detach()
        self._losses.detach()

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

    def begin(self) -> None:
        """Begin with the current batch."""
        self._tell(self._batch_begins())

    def _batch_begins(self) -> Iterator[_Event]:
        batch = self.batches.current
        self._measuring = self._records(batch)  # a batch that is not recorded costs nothing
        self._backward_batch = None
        self._frame_builder.measuring.forget()
        self._attach_new()
        yield "batch_begin", BatchEvent(batch.number, batch.selected)

    def end_batch(self) -> None:
        """Publish what waited for a device, then tell the callbacks, once a batch."""
        self._tell(self._batch_ends())

    def _batch_ends(self) -> Iterator[_Event]:
        batch = self.batches.current
        yield from self._flush()
        if not batch.ended:
            batch.ended = True
            yield "batch_end", BatchEvent(batch.number, batch.selected)

    def begin_batch(self, number: int) -> None:
        """Do what the loop says: batch ``number`` begins, and from now on only the loop counts."""
        self._tell(self._next_batch(number, self.batches.begin))

    def set_batch_number(self, number: int) -> None:
        """Do what the loop says: batch ``number`` begins, and root forwards may count on from there."""
        self._tell(self._next_batch(number, self.batches.set_number))

    def _next_batch(self, number: int, start: Callable[[int], None]) -> Iterator[_Event]:
        self._frame_builder.abandon_calls()  # no forward is under way here: what seems to be was interrupted
        if number != self.batches.current.number:
            yield from self._batch_ends()
        start(number)
        yield from self._batch_begins()

    def _records(self, batch: Batch) -> bool:
        return not self._off and (self._detecting or batch.selected)

    def _attach_new(self) -> None:
        if self.hooks.attach_new() or self._module_states.is_due:
            self.look_at_modules()
        self._compiling.attach()
        self._gradients.attach()

    def look_at_modules(self) -> None:
        """Write what every module is, where that has changed."""
        self._module_states.look(self.batches.current.number)

    # What module hooks call.

    def before_forward(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """A module is about to run."""
        if hooked.is_root and not self._off and not in_backward() and not _is_replica(module):
            self._tell(self._root_starts(module))
        try:
            if self._off:
                self._remove_hooks()
                return
            if self._backward_batch is not None and not in_backward():
                self._backward_batch = None
                self._measuring = self._records(self.batches.current)
                self._frame_builder.measuring.forget()  # an update of weights that nobody saw may have followed it
            if self._measuring:
                self._frame_builder.enter(hooked, module, args, kwargs)
                if self._gradients.of_inputs:
                    self._gradients.await_inputs(hooked, walk_inputs(args, kwargs))
        except Exception as error:  # noqa: BLE001
            self.fault(error)

    def _root_starts(self, module: nn.Module) -> Iterator[_Event]:
        # A root forward that has not returned was interrupted (a cell of a notebook), unless the root calls itself.
        nested = self.batches.current.depth > 0 and calls_itself(module)
        self._root_exception = id(sys.exc_info()[1])
        self._trainings += module.training and torch.is_grad_enabled()
        if not nested:
            self._frame_builder.abandon_calls()
        if self.batches.root_starts(nested=nested):
            yield from self._batch_begins()
        elif not nested:
            self._frame_builder.measuring.forget()
            self._attach_new()

    def after_forward(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """A module's forward has returned, or raised."""
        events: list[_Event] = []
        try:
            try:
                if self._off:
                    return
                if self._measuring:
                    events = self._take_call(hooked, module, args, kwargs, output)
                else:
                    self._storage.window.skip_frame()
                if not self.batches.current.depth:
                    self._without_root(module, output)
            except Exception as error:  # noqa: BLE001
                self.fault(error)
            if events:
                self._tell(iter(events))
            if hooked.is_root and not self._off and not in_backward() and not _is_replica(module):
                self._tell(self._root_ends(output))
        finally:
            self._unwinding = False

    def _take_call(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> list[_Event]:
        frame = self._frame_builder.leave(hooked, module, args, kwargs, output, self._batch_now())
        if self._gradients.of_outputs:
            self._gradients.await_outputs(hooked, walk(output, "output"))
        if frame is None:
            return []
        self._unwinding = frame.raised
        return self._take(frame)

    def _without_root(self, module: nn.Module, output: Any) -> None:
        """A forward has returned that no root forward has called: a loop calls parts of the model."""
        self._trainings += module.training and torch.is_grad_enabled()
        if self._frame_builder.is_outermost() and not in_backward():
            self._await_backward(output)

    def _root_ends(self, output: Any) -> Iterator[_Event]:
        if not self.batches.root_ends():
            return
        error = sys.exc_info()[1] if output is None else None
        self._unwinding = error is not None and id(error) != self._root_exception
        self._root_has_returned = self._root_has_returned or not self._unwinding
        self._await_backward(output)
        yield from self._batch_ends()
        self.blind_spots.warn_once()

    def _await_backward(self, output: Any) -> None:
        if torch.is_grad_enabled():
            call_at_backward(walk(output, "output"), functools.partial(self._backward_starts, self.batches.current))

    def forward_is_traced(self) -> None:
        """``torch.jit.trace`` makes a graph of a forward, which is not recorded."""
        self.blind_spots.warn_of_tracing()

    def _batch_now(self) -> Batch:
        """The batch of what runs now: a backward's own one, which accumulation may have left behind."""
        if self._backward_batch is not None and in_backward():
            return self._backward_batch
        return self.batches.current

    # What hooks of losses, gradients and optimizers call.

    def losses_arrived(self, losses: list[torch.Tensor]) -> None:
        """A backward is about to start on these."""
        named = [("loss" if len(losses) == 1 else f"loss[{at}]", loss) for at, loss in enumerate(losses)]
        self._tell(self._events_of_losses(named))

    def _events_of_losses(self, named: list[tuple[str, torch.Tensor]]) -> Iterator[_Event]:
        batch = self._batch_now()
        if in_backward() or not self._records(batch):
            return
        entries = self._frame_builder.values(LOSS[0], _VALUE, named)
        if not self._frame_builder.measuring.waits:
            known = any(one.nonfinite for _, _, _, one in entries)
            if not known or not reaches([loss for _, loss in named], self._model):
                return
        elif self._trainings == self._trainings_at_loss:  # whose loss it is cannot be asked without waiting
            return
        self._trainings_at_loss = self._trainings
        frame = self._frame_builder.frame(batch, _MANUAL, *LOSS, entries)
        if frame is not None:
            yield from self._take(frame._replace(only_nonfinite=True))

    def _backward_starts(self, batch: Batch) -> None:
        """A backward has reached what an outermost forward of a batch has returned."""
        self._trainings += 1
        if self._off:
            return
        self._backward_batch = batch
        self._measuring = self._records(batch)

    def _events_of_gradient(
        self, module_name: str, module_class: str, role: int, context: str, gradient: torch.Tensor | None
    ) -> Iterator[_Event]:
        batch = self._batch_now()
        if not self._records(batch):
            return
        if batch is not self._scaled_batch:
            self._scaled_batch = batch
            scale = self._loss_scale.current()
            if scale is not None:
                yield from self._events_of_values("", "GradScaler", _VALUE, _BACKWARD, [("loss_scale", scale)])
        yield from self._events_of_values(module_name, module_class, role, _BACKWARD, [(context, gradient)])

    def values(self, module_name: str, module_class: str, role: int, phase: int, named: list[tuple[str, Any]]) -> None:
        """Record values that are no module's forward, as one frame."""
        self._tell(self._events_of_values(module_name, module_class, role, phase, named))

    def _events_of_values(
        self, module_name: str, module_class: str, role: int, phase: int, named: Iterable[tuple[str, Any]]
    ) -> Iterator[_Event]:
        batch = self._batch_now()
        if self._records(batch):
            entries = self._frame_builder.values(module_name, role, named)
            frame = self._frame_builder.frame(batch, phase, module_name, module_class, entries)
            if frame is not None:
                yield from self._take(frame)

    @property
    def optimizer_step(self) -> int:
        """Optimizer steps taken before what comes next."""
        return self._frame_builder.optimizer_step

    @optimizer_step.setter
    def optimizer_step(self, step: int) -> None:
        self._frame_builder.optimizer_step = step

    def _events_of_step(self, optimizer: Any, is_ours: bool) -> Iterator[_Event]:
        # Fused optimizers change weights and state without raising their version.
        self._frame_builder.measuring.forget()
        if not is_ours:
            return
        self.optimizer_step += 1
        self._storage.note_optimizer(optimizer)
        # For each optimizer: several may step after one backward.
        self.blind_spots.count_step(trained=self._trainings != self._trainings_before.get(optimizer, 0))
        self._trainings_before[optimizer] = self._trainings
        for module_name, module_class, state in self._gradients.states_of(optimizer):
            yield from self._events_of_values(module_name, module_class, _OPTIMIZER_STATE, _BACKWARD, state)
        if self.optimizer_step > 1:  # before the first one, the recorder may have missed the forward
            self.blind_spots.warn_once()

    def _changes(self, batch_number: int) -> tuple[Change, ...]:
        """What has changed most in a batch against those before it, in order of execution."""
        with contextlib.suppress(Exception):  # the alarm goes on without
            names = self._storage.window.names
            every = [one for one in self._recent.changed(batch_number) if float_format(names[one.dtype]) is not None]
            most = sorted(every, key=lambda one: one.factor, reverse=True)[:_MOST_CHANGES]
            return tuple(self._change(one, names) for one in every if one in most or one is every[0])
        return ()

    def _change(self, one: Changed, names: Sequence[str]) -> Change:
        module_name, context = names[one.head.module_name], names[one.context]
        gradient = learning_rate = None
        if one.role == _WEIGHT:
            parameter = self._model.get_submodule(module_name)._parameters.get(context)
            if parameter is not None:
                gradient, learning_rate = largest_gradient(parameter), self._optimizer_steps.learning_rate(parameter)
        return Change(
            module_name, names[one.head.module_class], ROLES[one.role], context, names[one.dtype],
            one.batch_before, one.before, one.now, gradient, learning_rate,
        )  # fmt: skip

    # The order of frames, and the events they make.

    def _take(self, frame: PendingFrame) -> list[_Event]:
        if self._pending or self._frame_builder.measuring.waits:
            # Frames stay in order: behind one whose figures are still on a device, all wait for the batch's end.
            self._pending.append(frame)
            return []
        return self._publish(frame)

    def _publish(self, frame: PendingFrame) -> list[_Event]:
        if frame.only_nonfinite and not frame.nonfinite:
            return []
        entries: Any = frame.entries  # none is on a device by now
        found = self._detecting and frame.nonfinite and frame.module_name not in self._reported
        found = found and not (self._masks_may_pass and absorbs_masks(entries))
        if self._detecting:  # else no alarm asks for it
            self._recent.note(frame.head, entries)
        number = self._storage.publish(frame.head, entries, selected=frame.selected, urgent=found)
        listening = self._listens_to("frame")
        if number is None or not (found or listening):
            return []
        window = self._storage.window
        last = frame.as_frame(number, window.names)
        events: list[_Event] = [("frame", FrameEvent(last))] if listening else []
        if found:
            frames = tuple(window.last_frames())
            self._reported.add(frame.module_name)
            window.keep_window()
            batch, changes = last.batch_number, self._changes(last.batch_number)
            events.append(("nonfinite", NonFiniteEvent(last, frames, batch, last.nonfinite_entries, changes)))
        return events

    def _flush(self) -> Iterator[_Event]:
        """Publish what waited for a device; the events of a batch that is written whole come after all its frames."""
        if not self._pending:
            return
        self._frame_builder.measuring.collect()
        pending, self._pending = self._pending, []
        later: list[_Event] = []
        for frame in pending:
            events = self._publish(frame.resolved())
            if frame.selected:
                later += events
            else:
                yield from events  # where that raises, what came after the inf/nan does not push its history out
        yield from later

    def complete_failed_batch(self, batch: int, error: Exception) -> None:
        """Before the end: keep all that there is of a batch, also of forwards that this error is about to end."""
        try:
            self._storage.keep_batch(batch)
            for frame in self._frame_builder.open_frames(self._model, self._batch_now(), error):
                self._frame_builder.measuring.collect()
                entries: Any = frame.resolved().entries  # none is on a device by now
                self._storage.publish(frame.head, entries, selected=True, urgent=True)
        except Exception as failure:  # noqa: BLE001
            self.fault(failure)

    def publish_rest(self) -> None:
        """At the end: publish what still waits, without events."""
        with contextlib.suppress(Exception):
            for _ in self._flush():
                pass

    def _tell(self, events: Iterator[_Event]) -> None:
        """Tell the callbacks of events as they are made: a failure in making them is our fault, any other is not."""
        while True:
            try:
                event = next(events, None)
            except Exception as error:  # noqa: BLE001
                self.fault(error)
                return
            if event is None:
                return
            self._emit(*event, may_stop=not self._unwinding)

    def _told(self, events: Callable[..., Iterator[_Event]]) -> Callable[..., None]:
        return lambda *given: self._tell(events(*given))

    # What was not seen.

    def notes(self) -> tuple[str, ...]:
        """Return sentences on what was not seen, for RunInfo."""
        batches, recorded = self.batches, self._storage.has_frames
        is_only_one = recorded and not batches.manual and not batches.current.called
        ran_whole = self._root_has_returned or not batches.current.called
        return self.blind_spots.notes(only_batch=batches.current.number if is_only_one else None, ran_whole=ran_whole)

    def nothing_recorded(self) -> str | None:
        """Return why there is no frame at all; None where there is one."""
        if self._storage.has_frames or self.failure is not None:
            return None
        return self.blind_spots.never_called() or (
            f"the run ended in batch {self.batches.current.number}, before any batch that was to be recorded"
        )

    # Faults of our own.

    def fault(self, error: Exception) -> None:
        """Handle an exception, from an except clause: a signal handler's goes on, all else is a fault of ours.

        Raises:
            Exception: The signal handler's.
        """
        if raised_by_signal_handler(error):
            raise  # noqa: PLE0704  called while it is being handled
        self.switch_off(error)

    def switch_off(self, error: Exception) -> None:
        """Warn once and be off. Hooks are removed by the next one that runs, never from another thread."""
        self._measuring, self._off = False, True
        if self.failure is not None:
            return
        self.failure = describe_error(error)
        with contextlib.suppress(Exception):
            self._storage.note_end(self.end_info("switched off", None, None, None))
        warn(f"the recorder switched itself off ({self.failure}); training goes on, the trace so far is readable")


def _is_replica(module: nn.Module) -> bool:
    return getattr(module, "_is_replica", False) is True
