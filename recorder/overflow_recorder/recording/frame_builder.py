"""From a hook to rows: what a module was given, has and returned, measured and published as one frame."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from overflow_analyzer.format.columns import KINDS, PHASES, ROLES
from overflow_analyzer.format.frames import IGNORED_NOTE, Frame
from overflow_analyzer.format.frames import Entry as RecordedEntry
from overflow_recorder.recording.ignoring import ignoring
from overflow_recorder.recording.measuring import Deferred, Measuring
from overflow_recorder.recording.values import MAX_LEAVES, More, walk, walk_inputs
from overflow_recorder.storage.packed_tensor import NOT_A_TENSOR, PackedTensor
from overflow_recorder.storage.window import FrameHead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import nn

    from overflow_recorder.hooks.modules import HookedModule
    from overflow_recorder.recorder_arguments import RecorderArguments
    from overflow_recorder.recording.batches import Batch
    from overflow_recorder.storage.window import Window


_TENSOR, _NONE, _OTHER = (KINDS.index(kind) for kind in ("tensor", "none", "other"))
_WEIGHT, _BUFFER, _INPUT, _OUTPUT, _VALUE = (
    ROLES.index(role) for role in ("weight", "buffer", "input", "output", "value")
)
_TRAIN, _EVAL, _RECOMPUTE = (PHASES.index(phase) for phase in ("train", "eval", "recompute"))
_BACKWARD: Final = PHASES.index("backward")  # it and what comes behind it are no forward
_DETECTED_ROLES: Final = (_WEIGHT, _BUFFER, _INPUT, _OUTPUT, _VALUE)
_MAX_ENTRIES: Final = 1000
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)

Entry = tuple[int, int, int, "PackedTensor | Deferred"]


class PendingFrame(NamedTuple):
    """A frame that is measured, or enqueued, but not in the window yet."""

    head: FrameHead
    entries: list[Entry]
    module_name: str
    selected: bool
    """Whether its batch is written whole."""
    nonfinite: bool
    """Whether a weight, buffer, input, output or value is known to have an inf or nan that is not intended."""
    raised: bool = False
    """Whether it is the frame of a forward that has raised."""
    only_nonfinite: bool = False
    """Whether it is published only if it is non-finite."""

    def resolved(self) -> PendingFrame:
        """Return the same with the figures that were on a device."""
        entries = [(kind, role, at, getattr(one, "measured", one)) for kind, role, at, one in self.entries]
        return self._replace(entries=entries, nonfinite=_is_nonfinite(entries))

    def as_frame(self, number: int, names: Sequence[str]) -> Frame:
        """Return it as callbacks are told of it, with its number; ``names`` is the window's dictionary."""
        batch, in_batch, call, name, class_name, phase, step, time_ns = self.head
        entries: Iterable[Any] = self.entries  # none is on a device by now
        rows = [
            RecordedEntry(ROLES[role], names[at], KINDS[kind], **one.values(names)) for kind, role, at, one in entries
        ]
        return Frame(
            batch, number, in_batch, call, names[name], names[class_name], PHASES[phase], step, time_ns, tuple(rows)
        )


class _Call:
    __slots__ = ("args", "exception", "hooked", "inputs", "kwargs")

    def __init__(self, hooked: HookedModule, args: int, kwargs: int, inputs: list[Entry]) -> None:
        # Identities, not the objects: nothing of a call is kept alive.
        self.hooked, self.args, self.kwargs, self.inputs = hooked, args, kwargs, inputs
        self.exception = id(sys.exc_info()[1])


class _Calls(threading.local):
    """The calls that are under way on a thread: replicas and backward threads have their own."""

    def __init__(self) -> None:
        self.stack: list[_Call] = []
        self.phase = _TRAIN


class FrameBuilder:
    """Makes frames of module calls.

    Args:
        options: The recorder's.
        window: Whose dictionary of names the rows refer to.
    """

    def __init__(self, options: RecorderArguments, window: Window) -> None:
        roles = options.roles
        self._weights, self._buffers = "weight" in roles, "buffer" in roles
        self._inputs, self._outputs = "input" in roles, "output" in roles
        self._position = window.position
        self._max_entries = min(_MAX_ENTRIES, window.capacity // 4)
        self._max_leaves = min(MAX_LEAVES, self._max_entries // 2)
        self._ignored = ignoring(options.ignore) if options.ignore else None
        self._calls = _Calls()
        self.measuring = Measuring(options.statistics, window.position)
        self.optimizer_step = 0

    def is_outermost(self) -> bool:
        """Whether no recorded module's forward is under way on this thread."""
        return not self._calls.stack

    def abandon_calls(self) -> None:
        """Forget calls that never returned, as after a KeyboardInterrupt."""
        self._calls.stack.clear()

    def enter(self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Measure the inputs before the forward, which may change them in place."""
        calls = self._calls
        if not calls.stack and not in_backward():
            phase = _TRAIN if module.training and torch.is_grad_enabled() else _EVAL
            if phase != calls.phase:  # weights may have been swapped, as for an evaluation of their moving average
                self.measuring.forget()
            self.measuring.count_forward()
            calls.phase = phase
        inputs = self._named(hooked.name, _INPUT, self._walk_inputs(args, kwargs)) if self._inputs else []
        calls.stack.append(_Call(hooked, id(args), id(kwargs), inputs))

    def leave(
        self,
        hooked: HookedModule,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        batch: Batch,
    ) -> PendingFrame | None:
        """Make the frame of a forward that has returned or raised; None where nothing of it is recorded."""
        call = self._pop(hooked)
        if call is None:  # entered before the recorder was measuring
            call = _Call(hooked, 0, 0, [])
        phase = _RECOMPUTE if in_backward() else self._calls.phase
        raised = sys.exc_info()[1] if output is None else None
        if raised is not None and id(raised) == call.exception:
            raised = None  # the caller is handling it already; this forward returned None
        if raised is not None and phase == _RECOMPUTE:
            return None  # checkpointing stops a recomputation by an exception as soon as it has what it needs
        entries = self._own_entries(hooked, module)
        if self._inputs:
            # Another hook may have replaced what the forward was given; then it is measured as it is now.
            same = call.args == id(args) and call.kwargs == id(kwargs)
            entries += call.inputs if same else self._named(hooked.name, _INPUT, self._walk_inputs(args, kwargs))
        if self._outputs:
            entries += self._output_entries(hooked, output, raised)
        frame = self.frame(batch, phase, hooked.name, hooked.class_name, entries)
        return frame if raised is None or frame is None else frame._replace(raised=True)

    def open_frames(self, model: nn.Module, batch: Batch, error: Exception) -> Iterator[PendingFrame]:
        """Make frames of the calls under way on this thread, which an error is about to end, innermost first."""
        while self._calls.stack:
            call = self._calls.stack.pop()
            hooked = call.hooked
            entries = self._own_entries(hooked, model.get_submodule(hooked.name)) + call.inputs
            if self._outputs:
                entries += self._output_entries(hooked, None, error)
            frame = self.frame(batch, self._calls.phase, hooked.name, hooked.class_name, entries)
            if frame is not None:
                yield frame

    def _own_entries(self, hooked: HookedModule, module: nn.Module) -> list[Entry]:
        entries: list[Entry] = []
        if self._weights and (module._parameters or hooked.parameter_names):
            # A DataParallel replica has its parameters as plain attributes.
            weights = module._parameters or {name: getattr(module, name, None) for name in hooked.parameter_names}
            entries += self._named(hooked.name, _WEIGHT, _present(weights))
        if self._buffers and module._buffers:
            entries += self._named(hooked.name, _BUFFER, _present(module._buffers))
        return entries

    def frame(
        self, batch: Batch, phase: int, module_name: str, module_class: str, entries: list[Entry]
    ) -> PendingFrame | None:
        """Put entries under a head; None where there is none."""
        # Gradients and recorded values of a module are no calls of it.
        call_index = batch.next_call(module_name if phase < _BACKWARD else (module_name, phase))
        if not entries:
            return None
        if len(entries) > self._max_entries:
            more, role = len(entries) - self._max_entries + 1, entries[-1][1]
            note = NOT_A_TENSOR.with_note(self._position(f"at least {more} more values are not recorded"))
            entries = [*entries[:-more], (_OTHER, role, self._position("..."), note)]
        head = FrameHead(
            batch.number, batch.frames, call_index, self._position(module_name), self._position(module_class), phase,
            self.optimizer_step, time.time_ns(),
        )  # fmt: skip
        batch.frames += 1
        return PendingFrame(head, entries, module_name, batch.selected, _is_nonfinite(entries))

    def values(self, module_name: str, role: int, values: Iterable[tuple[str, Any]]) -> list[Entry]:
        """Measure named values that belong to no module's forward."""
        leaves = (leaf for context, value in values for leaf in walk(value, context, self._max_leaves))
        return self._named(module_name, role, leaves)

    def _pop(self, hooked: HookedModule) -> _Call | None:
        stack = self._calls.stack
        if stack and stack[-1].hooked is hooked:
            return stack.pop()
        # Calls above ours never returned (their forward left by an exception that no hook sees).
        for position in range(len(stack) - 1, -1, -1):
            if stack[position].hooked is hooked:
                call = stack[position]
                del stack[position:]
                return call
        return None

    def _walk_inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        return walk_inputs(args, kwargs, self._max_leaves)

    def _output_entries(self, hooked: HookedModule, output: Any, raised: BaseException | None) -> list[Entry]:
        if raised is not None:
            note = NOT_A_TENSOR.with_note(self._position(f"forward raised {type(raised).__name__}"))
            return [(_OTHER, _OUTPUT, self._position("output"), note)]
        is_tensor = isinstance(output, torch.Tensor)
        leaves = (("output", output),) if is_tensor else walk(output, "output", self._max_leaves)
        return self._named(hooked.name, _OUTPUT, leaves)

    def _named(self, module_name: str, role: int, values: Iterable[tuple[str, Any]]) -> list[Entry]:
        position, measuring, ignored = self._position, self.measuring, self._ignored
        entries: list[Entry] = []
        for context, value in values:
            # By type(): a mock says that it is an instance, and reading its memory would end the process.
            kind = type(value)
            if kind in _PLAIN or issubclass(kind, torch.Tensor):
                is_ignored = ignored is not None and ignored(module_name, context)
                measured = measuring(value, IGNORED_NOTE) if is_ignored else measuring(value)
                entries.append((_TENSOR, role, position(context), measured))
            elif isinstance(value, More):
                entries.append((_OTHER, role, position(context), NOT_A_TENSOR.with_note(position(str(value)))))
            else:
                entries.append((_NONE if value is None else _OTHER, role, position(context), NOT_A_TENSOR))
        return entries


def _is_nonfinite(entries: list[Entry]) -> bool:
    for _, role, _, measured in entries:  # noqa: SIM110  a generator would take as long as the rest of a frame's head
        if measured.nonfinite and role in _DETECTED_ROLES:
            return True
    return False


def absorbs_masks(entries: list[Entry]) -> bool:
    """Whether -inf in inputs is all that is not finite in a frame, and what it gave out is not 0 throughout.

    Args:
        entries: Of a frame with an inf or nan, none of them on a device.
    """
    tensors: list[tuple[int, Any]] = [(role, measured) for kind, role, _, measured in entries if kind == _TENSOR]
    nonfinite = [(role, measured) for role, measured in tensors if measured.nonfinite]
    only_masks = all(
        role == _INPUT and not measured.figure("nan_count") and not measured.figure("posinf_count")
        for role, measured in nonfinite
    )
    return only_masks and any(role == _OUTPUT and measured.figure("abs_max") for role, measured in tensors)


def in_backward() -> bool:
    """Whether autograd is running on this thread: a forward in it is a recomputation."""
    return torch._C._current_graph_task_id() != -1


def _present(named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [item for item in named.items() if item[1] is not None]
