"""The recorder as a callback of the Lightning ``Trainer``, of ``lightning`` or of ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from overflow_recorder.faults import describe_error
from overflow_recorder.integrations.page import with_page
from overflow_recorder.recorder_arguments import RecorderArguments
from overflow_recorder.trace_recorder import TraceRecorder

if TYPE_CHECKING:
    import os


def _callback_class() -> Any:
    """``Callback`` of the package that the script uses: each of the two refuses the other's."""
    names = ("lightning.pytorch", "pytorch_lightning")
    imported = [name for name in names if name in sys.modules]
    if imported:
        return sys.modules[imported[0]].Callback
    try:
        return importlib.import_module(names[0]).Callback
    except ModuleNotFoundError:
        return importlib.import_module(names[1]).Callback


_Callback: Any = _callback_class()


class OverflowRecorderCallback(_Callback):  # type: ignore[misc]  # which class it is turns out above
    """Records the ``LightningModule`` of a ``Trainer`` during ``fit``.

    The trainer numbers batches and optimizer steps. A batch is one ``training_step``, whether or not it ends with an
    optimizer step. A resumed run continues the checkpoint's numbers. A validation's forwards have phase "eval" and the
    number of the training batch before it; those of the first sanity check have number 0.

    Args:
        path: As ``TraceRecorder``'s.
        html: Where to write the run's page when training ends, as ``overflow-analyze html`` does; None for nowhere.
        **options: The same: ``max_frames_to_save``, ``trace_batch_nums``, ``on_nonfinite``, ``overwrite``, ...

    Raises:
        TypeError, ValueError: An option is unknown or has an invalid value. When ``fit`` begins, ``TraceExistsError``:
            something is at the path that may not be replaced.

    Example:
        ``Trainer(callbacks=[OverflowRecorderCallback("run.parquet")]).fit(module, loader)``
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = "run.parquet",
        *,
        html: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        RecorderArguments(**{name: value for name, value in options.items() if name != "callbacks"})
        self.path = path
        self.options = with_page(html, options)
        self.recorder: TraceRecorder | None = None
        """While fitting: for ``recorder.record("loss", loss=loss)`` and ``recorder.record_evaluation(prediction)``."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach to the module, which is where it will be trained by now; the sanity check is still to come."""
        recorder = self.recorder
        if recorder is None or not recorder.is_attached or recorder.model is not pl_module:
            self.recorder = recorder = TraceRecorder(pl_module, self.path, **self.options).start()
        recorder.begin_batch(0)  # from now on the trainer counts, not the calls of the module

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """By now a checkpoint has been loaded: the check is made behind its last batch."""
        self._start_batch(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch begins: what came before, a validation too, was the last one's."""
        self._start_batch(trainer)

    def _start_batch(self, trainer: Any) -> None:
        if self.recorder is not None:
            self.recorder.optimizer_step = trainer.global_step
            self.recorder.begin_batch(max(0, trainer.fit_loop.total_batch_idx))

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The forward has ended, and with it what a device was still computing: ``training_step`` is no forward."""
        self._end_batch()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """A batch has ended, perhaps without a backward."""
        self._end_batch()
        if self.recorder is not None:
            self.recorder.optimizer_step = trainer.global_step

    def on_validation_batch_end(self, *arguments: Any, **keywords: Any) -> None:
        """Look at what a device has computed for the validation."""
        self._end_batch()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Complete the trace of a fit that failed or was interrupted."""
        if self.recorder is not None:
            self.recorder.close(how="exception", reason=describe_error(exception))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Complete the trace."""
        if self.recorder is not None:
            self.recorder.close()

    def _end_batch(self) -> None:
        if self.recorder is not None:
            self.recorder.end_batch()
