"""``TraceRecorder``: owns hooks, window and writer, and keeps the recorder's promises to the training it watches."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from overflow_analyzer.format.columns import PHASES, ROLES
from overflow_recorder.builtin_callbacks import (
    NameOperation,
    PrintReport,
    StopAfterBatch,
    StopAtNonFinite,
    WarnNonFinite,
)
from overflow_recorder.callbacks import CallbackHandler
from overflow_recorder.errors import TraceExistsError
from overflow_recorder.events import CloseEvent, NonFiniteEvent
from overflow_recorder.faults import describe_error, raised_by_signal_handler, warn
from overflow_recorder.recorder_arguments import OnNonfinite, RecorderArguments
from overflow_recorder.recording.run_description import describe_run
from overflow_recorder.recording.session import Session
from overflow_recorder.recording.values import as_tensor, walk
from overflow_recorder.storage.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from torch import nn
    from typing_extensions import Self

    from overflow_analyzer.format.origin import Origin
    from overflow_analyzer.format.run_info import EndInfo, HowEnded
    from overflow_recorder.helpers.evaluation import EvalPrediction


_MANUAL = PHASES.index("manual")
_VALUE = ROLES.index("value")


class TraceRecorder:
    """Records the numbers inside a model while it trains, and finds the first inf/nan.

    Use it as a context manager around the training loop, or call ``start`` and ``close``. Without ``trace_batch_nums``
    it detects. It then measures every frame and keeps the last ``max_frames_to_save``. The first inf/nan in a weight,
    buffer, input, output, loss or recorded value prints the standard report, completes the trace and raises. An input
    in which -inf is all that is not finite, as in a mask, does so only if what the module gives out is not finite or is
    0 throughout. With ``trace_batch_nums`` it traces: it writes those batches whole, nothing raises, and other batches
    cost nothing.

    It changes nothing in the training. If it fails itself, it warns once and switches itself off.

    Args:
        model: The root module.
        path: The trace's directory, one for all ranks; None keeps only the window, in memory.
        max_frames_to_save: The length of the window, in frames.
        trace_batch_nums: Batches (0-based) to write whole; detection is then off.
        every_n_batches: Also write every n-th batch whole, from batch 0.
        abort_after_batch_num: Raise ``BatchLimitReached`` when that batch's root forward ends.
        on_nonfinite: "raise" ``NonFiniteError``, "warn" once a module, or "ignore" (only record).
        roles: What to record of each module: names in ``overflow_analyzer.format.columns.ROLES``, except "value".
        statistics: "extrema", or "full" for zeros, subnormals, mean and root mean square as well.
        ignore: ``MODULE:CONTEXT`` patterns of intended infinities (``*`` and ``?``; brackets are literal).
        replay: Whether the module that made the inf/nan runs once more before the run ends, to name the operation and
            the line of source. The training's state is afterwards what it was.
        max_bytes: The most bytes of disk. The oldest sampled batches are removed first, a detection's window never.
        overwrite: Replace the trace of a run that has ended.
        callbacks: ``RecorderCallback`` instances or classes, called after the recorder's own.

    Raises:
        TypeError, ValueError: An option has an invalid value; the message names it.

    Example:
        ``with TraceRecorder(model, "run.parquet") as recorder: train(model)``
    """

    _masks_may_pass = True

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
        replay: bool = True,
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
            replay=replay,
            max_bytes=max_bytes,
            overwrite=overwrite,
        )
        self.callbacks = CallbackHandler([*_builtin_callbacks(self.options), *callbacks])
        self._session: Session | None = None
        self._storage: Storage | None = None
        self._closed = self._abandoned = False
        self._notes: list[str] = []

    def start(self) -> Self:
        """Claim the path and attach to the model; where it is attached already, nothing happens.

        After ``close`` it goes on in the same trace: batches, frames and optimizer steps are counted on.

        Raises:
            TraceExistsError: Something is at the path that may not be replaced.
            Exception: What a callback raised or ended the run with when the first batch began.
        """
        session = self._session
        if self._abandoned and session is not None:
            warn("the recorder belongs to the process that this one was forked from: nothing is recorded here")
        if self._abandoned or (session is not None and (not self._closed or session.failure is not None)):
            return self
        try:
            storage = self._open()
        except TraceExistsError:
            raise
        except Exception as error:  # noqa: BLE001  training starts all the same
            return self._failed_to_start(error)
        # Only once the path is ours: a refusal costs the recorder nothing that is on the model already.
        attached_recorders.replace(self)
        try:
            session = self._attach(storage)
        except Exception as error:  # noqa: BLE001  the same
            return self._failed_to_start(error)
        try:
            session.begin()
        except Exception as error:
            self.close(how="exception", reason=describe_error(error))
            raise
        return self

    def _open(self) -> Storage:
        if self._storage is not None:
            self._storage.reopen()
            return self._storage
        attached_recorders.make_way(self)
        run, rows = describe_run(self.model, self.options), _rows_per_frame(self.model)
        self._storage = Storage(self.path, run, self.options, rows, self.switch_off)
        return self._storage

    def _attach(self, storage: Storage) -> Session:
        if self._session is None:
            self._session = Session(
                self.model,
                self.options,
                storage,
                self._emit,
                self.callbacks.listens_to,
                masks_may_pass=self._masks_may_pass,
            )
        else:
            self._session.resume()
        self._closed = False
        self._session.attach()
        return self._session

    def _failed_to_start(self, error: Exception) -> Self:
        self.abandon()
        self._session = None
        warn(f"the recorder could not start ({describe_error(error)}); training goes on, nothing is recorded")
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.close(how="exception", reason=describe_error(error))

    def _emit(self, name: str, event: Any, *, may_stop: bool) -> None:
        """Tell the callbacks of an event, and end the run if one of them returns a ``Stop``."""
        stop = self.callbacks.call_event(name, self, event)
        if stop is None or not may_stop:
            return
        if isinstance(event, NonFiniteEvent) and self._session is not None:
            self._session.complete_failed_batch(event.batch_number, stop.error)
        frame = getattr(event, "frame", None)
        self.close(
            how=stop.how,
            reason=stop.reason,
            batch_number=event.batch_number if frame is None else frame.batch_number,
            frame_number=None if frame is None else frame.frame_number,
        )
        raise stop.error

    def close(
        self,
        *,
        how: HowEnded = "closed",
        reason: str | None = None,
        batch_number: int | None = None,
        frame_number: int | None = None,
    ) -> None:
        """Let go of the model and complete the trace; a second call does nothing, ``start`` goes on in the same trace.

        Args:
            how: How the run ended, for ``overflow-analyze info``.
            reason: Why, in a sentence.
            batch_number: Where.
            frame_number: Of which frame.
        """
        session, storage = self._session, self._storage
        if self._closed or session is None or storage is None:
            return
        self._closed = True
        end = _end(session, how, reason, batch_number, frame_number)
        storage.notes = (*session.notes(), *self._notes)
        try:
            storage.close(end)
        except Exception as error:  # the ring keeps what the disk did not take
            if raised_by_signal_handler(error):
                raise
            if session.failure is None:  # where it had switched itself off, that was said already
                warn(f"the trace could not be completed ({describe_error(error)}); what was recorded is still readable")
        self.callbacks.call_event("close", self, CloseEvent(end.how, end.reason))

    def abandon(self) -> None:
        """Switch off in a forked child without touching the trace, which is the parent's."""
        self._closed = self._abandoned = True
        if self._session is not None:
            self._session.detach()
        if self._storage is not None:
            self._storage.abandon()

    def __del__(self) -> None:
        # A model that is thrown away with its recorder still attached, as in a notebook.
        with contextlib.suppress(Exception):
            self.close()

    @property
    def is_attached(self) -> bool:
        """Whether the recorder is attached to its model."""
        return self._session is not None and self._session.hooks.is_attached

    def switch_off(self, error: Exception) -> None:
        """Warn once that the recorder has failed, and record nothing more; ``close`` completes the trace."""
        if self._session is not None:
            self._session.switch_off(error)

    def write_origin(self, origin: Origin) -> None:
        """Write into the trace which operation made an inf/nan.

        Raises:
            OSError: The disk refused.
        """
        if self._storage is not None:
            self._storage.write_origin(origin)

    @property
    def batch_number(self) -> int:
        """The current batch, 0-based.

        Assigning starts that batch, and the root's forwards count on from there, as in a run that resumes. A loop that
        assigns for every batch is the only one that counts, from the second time on.
        """
        return 0 if self._session is None else self._session.batches.current.number

    @batch_number.setter
    def batch_number(self, number: int) -> None:
        if self._session is not None and not self._closed:
            self._session.set_batch_number(number)

    def begin_batch(self, number: int) -> None:
        """Begin a batch, in loops that never call the root's forward or call it several times a batch.

        From then on only the loop counts, with this method or ``step``.

        Args:
            number: Of the batch, 0-based.
        """
        if self._session is not None and not self._closed:
            self._session.begin_batch(number)

    def step(self) -> None:
        """End the batch, in loops that never call the root's forward or call it several times a batch.

        Before the first call every root forward is a batch. A loop that calls the root several times a batch therefore
        calls ``begin_batch(0)`` before it starts.
        """
        self.begin_batch(self.batch_number + 1)

    def end_batch(self) -> None:
        """End the current batch's forward, if the root's was not called. What follows still belongs to the batch.

        Figures that waited for a device are then examined, and the batch's callbacks are called, once a batch.
        """
        if self._session is not None and not self._closed:
            self._session.end_batch()

    @property
    def optimizer_step(self) -> int:
        """Optimizer steps taken so far. A loop that resumes assigns its checkpoint's number."""
        return 0 if self._session is None else self._session.optimizer_step

    @optimizer_step.setter
    def optimizer_step(self, step: int) -> None:
        if self._session is not None:
            self._session.optimizer_step = step

    def record(self, name: str, /, **values: Any) -> None:
        """Record values that no module returns, such as a loss or a batch, as one frame of phase "manual".

        A non-finite value is detected like one of a module. The frame belongs to the batch whose root forward was
        called last, or to the one that the loop has set.

        Args:
            name: The frame's name, in place of a module's name.
            **values: Tensors, arrays, numbers, or any nesting of them. A float counts as float64.
        """
        if self._session is not None:
            leaves = (leaf for context, value in values.items() for leaf in walk(value, context))
            named = [(context, as_tensor(leaf)) for context, leaf in leaves]
            self._session.values(name, "record", _VALUE, _MANUAL, named)

    def note(self, sentence: str) -> None:
        """Say in the trace what it does not show, as ``overflow-analyze`` then does; at once, however the run ends.

        Args:
            sentence: Without a full stop.
        """
        self._notes.append(sentence)
        if self._storage is not None and not self._closed:
            self._storage.notes = tuple(self._notes)
            with contextlib.suppress(OSError):  # closing tries again
                self._storage.write_notes()

    def record_evaluation(self, prediction: EvalPrediction) -> None:
        """Record an evaluation's predictions, labels and, where present, inputs and losses, as a frame "evaluation"."""
        present = {name: getattr(prediction, name) for name in ("predictions", "label_ids", "inputs", "losses")}
        self.record("evaluation", **{name: value for name, value in present.items() if value is not None})


class AttachedRecorders:
    """The recorders that are attached in this process, not kept alive by being listed: one a model."""

    def __init__(self) -> None:
        self._attached: weakref.WeakSet[TraceRecorder] = weakref.WeakSet()
        atexit.register(self._close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._abandon_all)

    def make_way(self, recorder: TraceRecorder) -> None:
        """Close a recorder that is on the same model at the very path that the one that starts is to overwrite."""
        if recorder.options.overwrite and recorder.path is not None:
            self._close_others(recorder, at=recorder.path)

    def replace(self, recorder: TraceRecorder) -> None:
        """List a recorder that starts; one that is on the same model already is closed, so that no hook is doubled.

        Raises:
            Exception: What a callback of that one raised; then the new one is abandoned.
        """
        try:
            self._close_others(recorder)
        except BaseException:
            recorder.abandon()
            raise
        self._attached.add(recorder)

    def _close_others(self, recorder: TraceRecorder, at: Path | None = None) -> None:
        for other in list(self._attached):
            same = other.model is recorder.model and other is not recorder and other.is_attached
            if same and (at is None or other.path == at):
                warn("another recorder is on this model: it is closed, its trace complete, and the new one takes over")
                other.close(reason="another recorder was attached to the model")

    def _close_all(self) -> None:
        """At the interpreter's end, for recorders that nobody closed; what one's callbacks raise stops no other."""
        error = getattr(sys, "last_value", None)
        with contextlib.ExitStack() as closing:
            for recorder in list(self._attached):
                if error is None:
                    closing.callback(recorder.close)
                else:
                    closing.callback(recorder.close, how="exception", reason=f"{type(error).__name__}: {error}"[:500])

    def _abandon_all(self) -> None:
        """In a forked child: the trace is the parent's."""
        for recorder in list(self._attached):
            with contextlib.suppress(Exception):  # what one's model says stops no other
                recorder.abandon()
        self._attached.clear()


attached_recorders = AttachedRecorders()


def _builtin_callbacks(options: RecorderArguments) -> Iterator[object]:
    if options.trace_batch_nums is None and options.on_nonfinite == "raise":
        yield PrintReport()
        yield NameOperation(options.replay)
        yield StopAtNonFinite()
    if options.trace_batch_nums is None and options.on_nonfinite == "warn":
        yield WarnNonFinite()
    if options.abort_after_batch_num is not None:
        yield StopAfterBatch(options.abort_after_batch_num)


def _rows_per_frame(model: nn.Module) -> int:
    inputs_and_outputs = 12
    return inputs_and_outputs + max(len(module._parameters) + len(module._buffers) for module in model.modules())


def _end(
    session: Session, how: HowEnded, reason: str | None, batch_number: int | None, frame_number: int | None
) -> EndInfo:
    """Let go of the model, publish what still waits, and say how the run ended."""
    try:
        session.detach()
        session.publish_rest()
        session.look_at_modules()
        nothing = session.nothing_recorded() if how == "closed" else None
        if nothing is not None and not session.blind_spots.warned:
            warn(f"nothing was recorded: {nothing}")
        return session.end_info(how, reason or nothing, batch_number, frame_number)
    except Exception as error:  # noqa: BLE001
        session.switch_off(error)
        return session.end_info(how, reason, batch_number, frame_number)
