"""The recorder as a callback of the Hugging Face ``Trainer``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from overflow_recorder.integrations.page import with_page
from overflow_recorder.recorder_arguments import RecorderArguments
from overflow_recorder.trace_recorder import TraceRecorder

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from torch import nn
    from transformers import TrainerControl, TrainerState, TrainingArguments


class OverflowRecorderCallback(TrainerCallback):  # type: ignore[misc]  # the library is not typed for us
    """Records the model of a ``Trainer`` while it trains.

    The trainer's own state numbers batches and optimizer steps. A batch is one forward and backward; with gradient
    accumulation, several batches make an optimizer step. A resumed run continues the checkpoint's numbers. An
    evaluation's forwards have phase "eval" and the number of the training batch before it.

    Args:
        path: As ``TraceRecorder``'s.
        html: Where to write the run's page when training ends, as ``overflow-analyze html`` does; None for nowhere.
        **options: The same: ``max_frames_to_save``, ``trace_batch_nums``, ``on_nonfinite``, ``overwrite``, ...

    Raises:
        TypeError, ValueError: An option is unknown or has an invalid value. When training begins, ``TraceExistsError``:
            something is at the path that may not be replaced.

    Example:
        ``Trainer(model, args, train_dataset=data, callbacks=[OverflowRecorderCallback("run.parquet")]).train()``
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = "run.parquet",
        *,
        html: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        RecorderArguments(**{name: value for name, value in options.items() if name != "callbacks"})
        self.path = path
        self.options = with_page(html, options)
        self.recorder: TraceRecorder | None = None
        """While training: for ``recorder.record("loss", loss=loss)`` and the like."""
        self._next_batch = 0

    def recorded(self, compute_metrics: Callable[..., dict[str, Any]] | None = None) -> Callable[..., dict[str, Any]]:
        """Return a ``compute_metrics`` for the trainer that also records the evaluation's predictions and labels.

        Args:
            compute_metrics: What computes the metrics; None for none.

        Example:
            ``Trainer(..., compute_metrics=callback.recorded(accuracy), callbacks=[callback])``
        """

        def record_and_compute(prediction: Any, *arguments: Any, **keywords: Any) -> dict[str, Any]:
            if self.recorder is not None:
                self.recorder.record_evaluation(prediction)
            return {} if compute_metrics is None else compute_metrics(prediction, *arguments, **keywords)

        return record_and_compute

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Attach to the model, which is the trainer's without its wrappers, and take over the checkpoint's numbers."""
        if model is None:
            return
        recorder = self.recorder
        if recorder is None or not recorder.is_attached or recorder.model is not model:
            # Otherwise the trainer begins anew in the midst of a run, as with auto_find_batch_size: one trace has both.
            self.recorder = recorder = TraceRecorder(model, self.path, **self.options).start()
        self._next_batch = _batches_before(args, state, train_dataloader)
        self._start_batch(state)

    def _start_batch(self, state: TrainerState) -> None:
        if self.recorder is not None:
            self.recorder.optimizer_step = state.global_step
            self.recorder.begin_batch(self._next_batch)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The first batch of an optimizer step begins: what came before, an evaluation too, was the last one's."""
        self._start_batch(state)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A batch has ended that was not the last of its step; the next one begins without another event."""
        self._next_batch += 1
        self._start_batch(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The last batch of a step has ended. The trainer counts a step also where a loss scaler skipped it."""
        self._next_batch += 1
        if self.recorder is not None:
            self.recorder.optimizer_step = state.global_step

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Complete the trace."""
        if self.recorder is not None:
            self.recorder.close()


def _batches_before(args: TrainingArguments, state: TrainerState, train_dataloader: Any) -> int:
    """How many batches the run had when its checkpoint was saved."""
    if not state.global_step:
        return 0
    # The trainer counts epochs in batches: of an epoch's, so many were done.
    try:
        in_epoch = len(train_dataloader)
    except TypeError:  # a stream, whose one epoch is the whole training
        in_epoch = state.max_steps * args.gradient_accumulation_steps
    return round((state.epoch or 0) * in_epoch)
