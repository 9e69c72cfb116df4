"""A script's run with the recorder on: from "no torch yet" to the last word on stderr."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

from overflow_recorder.callbacks import RecorderCallback
from overflow_recorder.errors import TraceExistsError
from overflow_recorder.helpers.distributed import rank_and_world_size
from overflow_recorder.launch.importing import call_after_import, call_before_exec

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from overflow_recorder.events import BatchEvent, CloseEvent
    from overflow_recorder.launch.model_finding import ModelFinder
    from overflow_recorder.recorder_arguments import RecorderArguments
    from overflow_recorder.trace_recorder import TraceRecorder


PROGRAM: Final = "overflow-record"
_CHILDREN: Final = (
    "child processes are not recorded by their parent's overflow-record; each can have its own: "
    "torchrun ... -m overflow_recorder train.py"
)
_MOST_NAMED: Final = 8
_HOW_TO_CHOOSE: Final = "--model NAME (a class, or a variable of the script) records another one"


def say(text: str) -> None:
    """Write a line to stderr, if there is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)  # noqa: T201  it is a command's word


class RecordedRun:
    """Records the first model of this process that is called; what it has to say goes to stderr.

    Args:
        output: The trace's absolute path.
        model: ``--model``, or None.
        options: The recorder's.
    """

    def __init__(self, output: Path, model: str | None, options: RecorderArguments) -> None:
        self._output = output
        self._name = model
        self._options = options
        self._process = os.getpid()
        self._finder: ModelFinder | None = None
        self._others: list[str] = []
        self._recorded = ""
        """What the model was called when it was found."""
        self.recorder: TraceRecorder | None = None
        """Once the model is known."""

    def begin(self) -> None:
        """Wait for the script to import torch and then to call a model."""
        atexit.register(self._end)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_alone)
        call_before_exec(self._replaced)
        call_after_import("torch", self._watch)

    def _watch(self) -> None:
        from overflow_recorder.launch.model_finding import ModelFinder

        if os.getpid() == self._process:
            self._finder = ModelFinder(self._name, self._record, self._not_recorded, self._missing)
            self._finder.arm()

    def _leave_alone(self) -> None:
        if self._finder is not None:
            self._finder.disarm()

    def _record(self, model: nn.Module, called: nn.Module) -> None:
        from overflow_recorder.launch.model_finding import label
        from overflow_recorder.trace_recorder import TraceRecorder

        recorder = None
        self._recorded = label(model)
        if any(_is_recorded(module) for module in model.modules()):
            say(f"the script records {self._recorded} itself, and is left alone")
        else:
            callbacks = [] if called is model else [_BatchesByOptimizerStep()]
            recorder = TraceRecorder(model, self._output, **self._options.as_options(), callbacks=callbacks)
            try:
                self.recorder = recorder.start()
            except TraceExistsError as error:
                say(f"nothing is recorded: {error}")
        if recorder is None or not recorder.is_attached:
            self._leave_alone()
        elif rank_and_world_size()[0] == 0:
            why = "the first module called that has trainable parameters" if self._name is None else "as --model says"
            say(f"recording {self._recorded}, {why}, to {self._output}")

    def _not_recorded(self, label: str) -> None:
        """Another model was called: name it once, and many of them no further."""
        label = f"another {label}" if label == self._recorded else label  # a loop makes its model anew
        label = label if len(self._others) < _MOST_NAMED else "more models"
        if label in self._others or self.recorder is None:
            return
        self._others.append(label)
        self.recorder.note(f"{label}: called by the script, but not part of the model that is recorded")
        if rank_and_world_size()[0] == 0:
            say(f"not recorded, though called too: {label}; {_HOW_TO_CHOOSE}")

    def _missing(self) -> None:
        say(f"nothing is recorded so far: {self._why_nothing()}")

    def _replaced(self, program: str) -> None:
        if os.getpid() == self._process:
            said = f"the script replaced its process with another program ({program}), which is not recorded"
            say(f"{said} unless {PROGRAM} starts it")
            if self.recorder is not None:
                self.recorder.note(said)

    def _end(self) -> None:
        if os.getpid() != self._process:
            return
        if self._finder is None:
            say(f"nothing was recorded: the script did not import torch ({_CHILDREN})")
        elif not self._finder.has_found:
            say(f"nothing was recorded: {self._why_nothing()}")
        self._leave_alone()

    def _why_nothing(self) -> str:
        called = [] if self._finder is None else self._finder.called
        if not called:
            return f"no module was called in this process, or only inside torch.compile ({_CHILDREN})"
        what = "with trainable parameters" if self._name is None else f"that is or belongs to {self._name!r}"
        return f"no module {what} was called; there were calls of {', '.join(called)}; {_HOW_TO_CHOOSE}"


def _is_recorded(module: nn.Module) -> bool:
    return any(type(hook).__module__ == "overflow_recorder.hooks.modules" for hook in module._forward_hooks.values())


class _BatchesByOptimizerStep(RecorderCallback):
    """For a model of which only parts are called: a batch ends with an optimizer step, unless the model is called."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._has_stepped = False

    def on_batch_begin(self, recorder: TraceRecorder, event: BatchEvent) -> None:
        """Listen to optimizers from the first batch on."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        if self._handle is None:
            self._handle = register_optimizer_step_post_hook(lambda *_: self._step(recorder))

    def _step(self, recorder: TraceRecorder) -> None:
        self._has_stepped = True
        recorder.step()

    def on_batch_end(self, recorder: TraceRecorder, event: BatchEvent) -> None:
        """The model's own forward has returned before any step: then its calls are the batches."""
        if not self._has_stepped:
            self._handle.remove()

    def on_close(self, recorder: TraceRecorder, event: CloseEvent) -> None:
        """Let go of the optimizers."""
        if self._handle is not None:
            self._handle.remove()
