"""``TraceRecorder``: owns hooks, window and writer, and keeps the recorder's promises to the training it watches."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from overflow_analyzer.run_info import EndInfo
from overflow_analyzer.schema import PHASES, ROLES
from overflow_recorder.batches import BatchCounter
from overflow_recorder.callbacks import BatchEvent, CallbackHandler, CloseEvent, FrameEvent, NonFiniteEvent
from overflow_recorder.errors import RecorderWarning, TraceExistsError
from overflow_recorder.hooks import HookedModule, ModuleHooks
from overflow_recorder.optimizer_steps import OptimizerSteps
from overflow_recorder.process import describe_run, recorders_of_this_process
from overflow_recorder.recorder_arguments import OnNonfinite, RecorderArguments
from overflow_recorder.recording import FrameRecording, Unpublished, in_backward
from overflow_recorder.reporting import PrintReport, RaiseNonFinite, StopAfterBatch, WarnNonFinite
from overflow_recorder.storage import Storage

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    from torch import nn
    from torch.optim import Optimizer
    from typing_extensions import Self

    from overflow_analyzer.run_info import HowEnded
    from overflow_recorder.evaluation import EvalPrediction

__all__ = ["TraceRecorder"]

_MANUAL = PHASES.index("manual")
_VALUE = ROLES.index("value")
_Event = tuple[str, Any]


class TraceRecorder:
    """Records the numbers inside a model while it trains, and finds the first inf/nan.

    Use it as a context manager around the training loop, or call ``start`` and ``close``. Without ``trace_batch_nums``
    it detects: every frame is measured, the last ``max_frames_to_save`` are kept, and the first inf/nan in a weight,
    buffer, input or output prints the standard report, completes the trace and raises. With ``trace_batch_nums`` it
    traces: those batches are written whole, nothing raises, and other batches cost nothing.

    It changes nothing in the training it watches, and any fault of its own is one warning after which it is off.

    Args:
        model: The root module.
        path: The trace's directory, one for all ranks; None keeps only the window, in memory.
        max_frames_to_save: Frames in the rolling window.
        trace_batch_nums: 0-based batches to write whole; turns detection off.
        every_n_batches: Also write every n-th batch whole, from batch 0.
        abort_after_batch_num: Raise ``BatchLimitReached`` when that batch's root forward ends.
        on_nonfinite: "raise" ``NonFiniteError``, "warn" once a module, or "ignore" (only record).
        roles: What is recorded of each module, names of ``overflow_analyzer.schema.ROLES`` without "value".
        statistics: "extrema", or "full" for zeros, subnormals, mean and root mean square as well.
        ignore: ``MODULE:CONTEXT`` patterns of intended infinities (``*`` and ``?``; brackets are literal).
        max_bytes: Most bytes of disk; the oldest sampled batches are removed first, a detection's window never.
        overwrite: Replace the trace of a run that has ended.
        callbacks: ``RecorderCallback`` instances or classes, called after the recorder's own.

    Raises:
        TypeError, ValueError: An option means nothing; the message names it.

    Example:
        ``with TraceRecorder(model, "run.parquet") as recorder: train(model)``
    """

    def __init__(
        self,
        model: nn.Module,
        path: str | os.PathLike[str] | None,
        *,
        max_frames_to_save: int = 21,
        trace_batch_nums: Iterable[int] | None = None,
        every_n_batches: int | None = None,
        abort_after_batch_num: int | None = None,
        on_nonfinite: OnNonfinite = "raise",
        roles: Iterable[str] = ("weight", "buffer", "input", "output"),
        statistics: Literal["extrema", "full"] = "extrema",
        ignore: Iterable[str] = (),
        max_bytes: int | None = None,
        overwrite: bool = False,
        callbacks: Iterable[object] = (),
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model: {type(model).__name__} is not a torch.nn.Module")
        self.model = model
        self.path = None if path is None else Path(path).absolute()
        self.options = RecorderArguments(
            max_frames_to_save=max_frames_to_save,
            trace_batch_nums=None if trace_batch_nums is None else list(trace_batch_nums),
            every_n_batches=every_n_batches,
            abort_after_batch_num=abort_after_batch_num,
            on_nonfinite=on_nonfinite,
            roles=roles if isinstance(roles, str) else list(roles),  # type: ignore[arg-type]
            statistics=statistics,
            ignore=ignore if isinstance(ignore, str) else list(ignore),  # type: ignore[arg-type]
            max_bytes=max_bytes,
            overwrite=overwrite,
        )
        self.callbacks = CallbackHandler([*self._own_callbacks(), *callbacks])
        self._detecting = self.options.trace_batch_nums is None
        self._batches = BatchCounter(self.options)
        self._hooks = ModuleHooks(model, self)
        self._optimizer_steps = OptimizerSteps(model, self._optimizer_stepped)
        self._storage: Storage | None = None
        self._recording: FrameRecording | None = None
        self._measuring = False
        self._failure: str | None = None
        self._end: EndInfo | None = None
        self._pending: list[Unpublished] = []
        self._alarmed: set[str] = set()

    def _own_callbacks(self) -> Iterator[object]:
        options = self.options
        if options.trace_batch_nums is None and options.on_nonfinite == "raise":
            yield from (PrintReport(), RaiseNonFinite())
        elif options.trace_batch_nums is None and options.on_nonfinite == "warn":
            yield WarnNonFinite()
        if options.abort_after_batch_num is not None:
            yield StopAfterBatch(options.abort_after_batch_num)

    # Starting and ending.

    def start(self) -> Self:
        """Claim the path and attach to the model; a second call does nothing.

        Raises:
            TraceExistsError: Something is at the path that may not be replaced.
        """
        if self._storage is not None or self._end is not None:
            return self
        recorders_of_this_process.replace(self)
        try:
            run = describe_run(self.model, self.options)
            self._storage = Storage(self.path, run, self.options, _rows_per_frame(self.model), self._switch_off)
            self._recording = FrameRecording(self.options, self._storage.window)
            self._hooks.attach()
            self._optimizer_steps.attach()
        except TraceExistsError:
            raise
        except Exception as error:  # noqa: BLE001  training starts all the same
            self._switch_off(error)
            return self
        self._begin_batch()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.close(how="exception", reason=f"{type(error).__name__}: {error}"[:500])

    def close(
        self,
        *,
        how: HowEnded = "closed",
        reason: str | None = None,
        batch_number: int | None = None,
        frame_number: int | None = None,
    ) -> None:
        """Let go of the model and complete the trace; a second call does nothing.

        Args:
            how: How the run ended, for ``overflow-analyze info``.
            reason: Why, in a sentence.
            batch_number: Where.
            frame_number: Of which frame.
        """
        if self._end is not None:
            return
        self._measuring = False
        self._detach()
        storage, self._storage = self._storage, None
        self._end = self._end_info(
            "switched off" if self._failure else how, self._failure or reason, batch_number, frame_number, storage
        )
        if storage is None:
            return
        try:
            with contextlib.suppress(Exception):
                self._publish_rest(storage)
            storage.close(self._end)
        except Exception as error:  # noqa: BLE001  the ring keeps what the disk did not take
            self._warn(f"the trace could not be completed ({_text(error)}); what was recorded is still readable")
        self.callbacks.call_event("close", self, CloseEvent(self._end.how, self._end.reason))

    def _publish_rest(self, storage: Storage) -> None:
        if self._recording is not None:
            self._recording.measuring.collect()
        pending, self._pending = self._pending, []
        for frame in pending:
            storage.publish(_resolved(frame))

    def _end_info(
        self,
        how: HowEnded,
        reason: str | None,
        batch_number: int | None,
        frame_number: int | None,
        storage: Storage | None,
    ) -> EndInfo:
        return EndInfo(
            how=how,
            time_ns=time.time_ns(),
            batch_number=self._batches.current.number if batch_number is None else batch_number,
            frame_number=frame_number,
            reason=reason,
            frames_seen=None if storage is None else storage.window.frames_seen(),
        )

    def _detach(self) -> None:
        self._hooks.detach()
        self._optimizer_steps.detach()

    def _abandon(self) -> None:
        self._measuring = False
        self._end = EndInfo("closed", 0, reason="forked")
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.abandon()

    def __del__(self) -> None:
        # A model that is thrown away with its recorder still attached, as in a notebook.
        with contextlib.suppress(Exception):
            self.close()

    @property
    def is_attached(self) -> bool:
        """Whether the recorder is on its model."""
        return self._hooks.is_attached

    # Batches.

    @property
    def batch_number(self) -> int:
        """The current batch, 0-based. Assigning starts that batch, and from then on only the loop counts."""
        return self._batches.current.number

    @batch_number.setter
    def batch_number(self, number: int) -> None:
        self._batches.set_number(number)
        self._begin_batch()

    def step(self) -> None:
        """Say that a batch has ended, for loops that never call the root's forward or call it several times a batch."""
        ended = not self._batches.current.ended
        if ended:
            self._dispatch(self._end_batch())
        self.batch_number = self._batches.current.number + 1

    def _begin_batch(self) -> None:
        batch = self._batches.current
        self._measuring = self._storage is not None and self._failure is None and (self._detecting or batch.selected)
        if self._recording is not None:
            self._recording.measuring.forget()
        self._hooks.attach_new()
        self.callbacks.call_event("batch_begin", self, BatchEvent(batch.number, batch.selected))

    def _end_batch(self) -> Iterator[_Event]:
        batch = self._batches.current
        self._batches.root_ends()
        yield from self._flush()
        yield "batch_end", BatchEvent(batch.number, batch.selected)

    # Frames.

    def _before_forward(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if hooked.is_root and self._recording is not None and not in_backward() and not _is_replica(module):
            self._root_starts(self._recording)
        if not self._measuring or self._recording is None:
            return
        try:
            self._recording.enter(hooked, module, args, kwargs)
        except Exception as error:  # noqa: BLE001
            self._switch_off(error)

    def _root_starts(self, recording: FrameRecording) -> None:
        # A call of the root inside the root would be no new batch; but calls that never returned look the same, and
        # those (an interrupted cell of a notebook) are the common case.
        recording.abandon_calls()
        if self._batches.root_starts():
            self._begin_batch()

    def _after_forward(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        storage, recording = self._storage, self._recording
        if storage is None or recording is None or self._failure is not None:
            self._detach()
            return
        events: Iterable[_Event] = ()
        if self._measuring:
            try:
                frame = recording.leave(hooked, module, args, kwargs, output, self._batches.current)
                if frame is not None:
                    events = self._take(storage, frame)
            except Exception as error:  # noqa: BLE001
                self._switch_off(error)
                return
        else:
            storage.window.skip_frame()
        self._dispatch(events)
        if hooked.is_root and recording.is_outermost() and not in_backward() and not _is_replica(module):
            self._dispatch(self._end_batch())

    def _take(self, storage: Storage, frame: Unpublished) -> Iterable[_Event]:
        if self._pending or not frame.is_measured:
            # Frames stay in order: behind one whose figures are still on a device, all wait for the batch's end.
            self._pending.append(frame)
            return ()
        return self._publish(storage, frame)

    def _publish(self, storage: Storage, frame: Unpublished) -> Iterable[_Event]:
        number = storage.publish(frame)
        alarming = self._detecting and frame.alarming and frame.module_name not in self._alarmed
        listening = self.callbacks.listens_to("frame")
        if number is None or not (alarming or listening):
            return ()
        window = tuple(storage.window.last_frames())
        events: list[_Event] = [("frame", FrameEvent(window[-1]))] if listening else []
        if alarming:
            self._alarmed.add(frame.module_name)
            storage.window.keep_window()
            entries = window[-1].nonfinite_entries
            events.append(("nonfinite", NonFiniteEvent(window[-1], window, frame.batch.number, entries)))
        return events

    def _flush(self) -> Iterator[_Event]:
        """Publish what waited for a device; the events of a batch that is written whole come after all its frames."""
        storage, recording = self._storage, self._recording
        if storage is None or recording is None or not self._pending:
            return
        recording.measuring.collect()
        pending, self._pending = self._pending, []
        later: list[_Event] = []
        for frame in pending:
            events = self._publish(storage, _resolved(frame))
            if frame.batch.selected:
                later += events
            else:
                yield from events  # where that raises, what came after the inf/nan does not push its history out
        yield from later

    def _dispatch(self, events: Iterable[_Event]) -> None:
        """Call the callbacks: what they raise is meant, what goes wrong in making the events is not."""
        iterator = iter(events)
        while True:
            try:
                event = next(iterator, None)
            except Exception as error:  # noqa: BLE001
                self._switch_off(error)
                return
            if event is None:
                return
            self.callbacks.call_event(event[0], self, event[1])

    # Values outside modules.

    def record(self, name: str, /, **values: Any) -> None:
        """Record values that no module returns, such as a loss or a batch, as one frame of phase "manual".

        A non-finite value is recorded and does not raise: the analyzer reports it as the first finding if it is.

        Args:
            name: What the frame is called, in the place of a module's name.
            **values: Tensors, arrays, numbers, or any nesting of them.
        """
        storage, recording = self._storage, self._recording
        if storage is None or recording is None or not self._measuring:
            return
        try:
            named = ((context, _as_tensors(value)) for context, value in values.items())
            frame = recording.frame(
                self._batches.current, _MANUAL, name, "record", recording.values(name, _VALUE, named)
            )
            events = () if frame is None else self._take(storage, frame)
        except Exception as error:  # noqa: BLE001
            self._switch_off(error)
            return
        self._dispatch(events)

    def record_evaluation(self, prediction: EvalPrediction) -> None:
        """Record an evaluation's predictions, labels and, where present, inputs and losses, as a frame "evaluation"."""
        present = {name: getattr(prediction, name) for name in ("predictions", "label_ids", "inputs", "losses")}
        self.record("evaluation", **{name: value for name, value in present.items() if value is not None})

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        if self._recording is not None:
            self._recording.optimizer_step += 1

    # Faults of our own.

    def _switch_off(self, error: Exception) -> None:
        """Warn once and be off. Hooks are removed by the next one that runs, never from another thread."""
        self._measuring = False
        if self._failure is not None:
            return
        self._failure = _text(error)
        storage = self._storage
        if storage is not None:
            with contextlib.suppress(Exception):
                storage.note_end(self._end_info("switched off", self._failure, None, None, None))
        self._warn(
            f"the recorder switched itself off, training goes on: {self._failure}; what was recorded is readable"
        )

    def _warn(self, message: str) -> None:
        try:
            warnings.warn(message, RecorderWarning, stacklevel=3)
        except RecorderWarning:  # warnings are errors here, and an error must not come from us
            with contextlib.suppress(Exception):
                print(f"overflow-trace: {message}", file=sys.stderr)  # noqa: T201


def _rows_per_frame(model: nn.Module) -> int:
    inputs_and_outputs = 12
    return inputs_and_outputs + max(len(module._parameters) + len(module._buffers) for module in model.modules())


def _is_replica(module: nn.Module) -> bool:
    return getattr(module, "_is_replica", False) is True


def _resolved(frame: Unpublished) -> Unpublished:
    return frame._replace(
        entries=[(kind, role, at, getattr(one, "measured", one)) for kind, role, at, one in frame.entries]
    )


def _as_tensors(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return torch.as_tensor(value)
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    if isinstance(value, (tuple, list)):
        return [_as_tensors(one) for one in value]
    if isinstance(value, dict):
        return {key: _as_tensors(one) for key, one in value.items()}
    return value


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]
