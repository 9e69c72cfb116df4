"""From a detection to the operation: which call is run again, what its run shows, and why it shows nothing.

The calls that are still open when an inf/nan is detected stand on the interpreter's stack, with their arguments. What
came out of a module is looked for in that module; what was seen going into one was made in the module around it.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn

from overflow_analyzer.format.frames import first_in_time
from overflow_analyzer.format.origin import Origin
from overflow_analyzer.render.operation import describe_place
from overflow_recorder.faults import describe_error, raised_by_signal_handler
from overflow_recorder.recording.random_states import random_states_kept
from overflow_recorder.recording.values import walk, walk_inputs
from overflow_recorder.replay.figures import is_float, is_nonfinite, place_of
from overflow_recorder.replay.sources import CALL, frames_from, users_lines
from overflow_recorder.replay.statements import find_in_statements, value_at_hand
from overflow_recorder.replay.untouched import (
    Refused,
    generators_in,
    leaves_of,
    modules_kept,
    structural_copy,
    surroundings,
)
from overflow_recorder.replay.watch import OperationWatch, PublicNames, Record, ancestors
from overflow_recorder.statistics.quiet import quiet

if TYPE_CHECKING:
    from types import FrameType

    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.origin import Operation, Place, TensorFigures


_SECONDS: Final = 30.0
_OTHER_RANDOM_STATES: Final = 8


class OpenCall(NamedTuple):
    """A module's forward that has not returned yet."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    """What its forward has returned already, where only its hooks still run."""
    frame: FrameType


class _Shown(NamedTuple):
    """What one module's second run has shown."""

    record: Record | None
    given: tuple[TensorFigures, ...]
    """Non-finite tensors from outside that the detected one stems from."""
    draws: bool
    """Whether the run drew random numbers."""


class _Found(NamedTuple):
    """What the second runs have shown."""

    operation: Operation | None = None
    replayed: str | None = None
    """The outermost module that was run."""
    draws: bool = False
    given: tuple[TensorFigures, ...] = ()
    """What that module was given."""
    reason: str | None = None


def find_operation(model: nn.Module, frame: Frame, *, replay: bool = True) -> Origin:
    """Run the origin module again and find the operation that made an inf/nan.

    Call it where the inf/nan is detected, on the thread and in the autocast mode of the forward: what is run again is
    taken from the calls that are still open there. The training's state is afterwards what it was, bit for bit.

    Args:
        model: The recorded model.
        frame: The frame in which the inf/nan was detected.
        replay: Whether anything may be run again.

    Returns:
        The operation, or the reason why none is named.
    """
    started = time.perf_counter()
    entry = first_in_time(frame.nonfinite_entries)
    calls = _open_calls(sys._getframe(1))
    place, found = None, _Found()
    try:
        if entry.role == "value":
            place, operation = _outside_modules(model, entry, replay=replay)
            found = _Found(operation)
        else:
            target = _target(model, frame.module_name)
            place = _place_of_entry(target, calls, entry)
            _refuse_unless(replay=replay)
            found = _search(model, target, frame.nonfinite_entries, calls)
    except Refused as refused:
        found = _Found(reason=refused.reason)
    except torch.OutOfMemoryError:
        found = _Found(reason="the second run does not fit in memory")
    return Origin(
        batch_number=frame.batch_number,
        frame_number=frame.frame_number,
        module_name=frame.module_name,
        module_class=frame.module_class,
        role=entry.role,
        context=entry.context,
        place=place,
        replayed=found.replayed,
        operation=found.operation,
        reason=None if found.operation is not None else found.reason,
        draws=found.draws,
        seconds=time.perf_counter() - started,
        given=found.given,
    )


def _open_calls(frame: FrameType | None) -> list[OpenCall]:
    """Return the calls that are under way on this thread, innermost first."""
    calls = []
    for one in frames_from(frame):
        if one.f_code is CALL:
            found = one.f_locals
            calls.append(OpenCall(found["self"], found["args"], found["kwargs"], found.get("result"), one))
    return calls


def _target(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise Refused(f"the model has no module {name!r} any more") from None


def _place_of_entry(target: nn.Module, calls: list[OpenCall], entry: Entry) -> Place | None:
    """Say where in the detected tensor the inf/nan lies, if it is still at hand."""
    call = calls[0] if calls and calls[0].module is target else None
    if entry.role in ("weight", "buffer"):
        found: Any = getattr(target, entry.context, None)
    elif call is not None and entry.role in ("input", "output"):
        leaves = walk_inputs(call.args, call.kwargs) if entry.role == "input" else walk(call.output, "output")
        found = next((leaf for context, leaf in leaves if context == entry.context), None)
    else:
        found = None
    return place_of(found) if isinstance(found, torch.Tensor) else None


def _outside_modules(model: nn.Module, entry: Entry, *, replay: bool) -> tuple[Place | None, Operation]:
    caller = sys._getframe(2)
    value = value_at_hand(entry.context, caller)
    _refuse_unless(replay=replay)
    return place_of(value), find_in_statements(value, caller, model, time.monotonic() + _SECONDS)


def _refuse_unless(*, replay: bool) -> None:
    if not replay:
        raise Refused("replay=False")


def _search(model: nn.Module, target: nn.Module, entries: tuple[Entry, ...], calls: list[OpenCall]) -> _Found:
    """Run the open calls again, from the one that may have made it outward, until one shows the operation."""
    entry = first_in_time(entries)
    _refuse_in_general(entry, calls)
    # -inf alone that was given may be a mask that is meant: what came out tells what became of it.
    is_mask = not entry.nan_count and not entry.posinf_count
    gave = any(one.role == "output" for one in entries)
    role = "output" if gave and (is_mask or len(calls) == 1) else entry.role
    inside = calls[1:] if calls[0].module is target and role == "input" else calls
    names = {id(module): name for name, module in model.named_modules()}
    deadline = time.monotonic() + _SECONDS
    found: _Found | None = None
    first: Refused | None = None
    for call in inside:
        try:
            shown = _run_until_shown(call, target, role, names, deadline)
        except Refused as refused:
            first = first or refused
            found = found if found is not None and found.operation is not None else None
            if not refused.outward:
                break
            continue
        operation = None if shown.record is None else shown.record.operation
        if operation is not None:
            operation = dataclasses.replace(operation, called_at=next(iter(users_lines(call.frame.f_back)), None))
        elif found is not None:
            operation = found.operation
        reason = f"it came with {', '.join(dict.fromkeys(map(_source, shown.given)))} of {_label(call, names)}"
        found = _Found(
            operation, names.get(id(call.module), ""), shown.draws, shown.given, f"{reason}{_sample(call, shown)}"
        )
        if operation is not None and not shown.given:
            return found
    if found is not None:
        return found
    raise first or Refused("no recorded module was running around it: the value was given to it from outside the model")


def _source(given: TensorFigures) -> str:
    return given.source or "a tensor that is no input, weight or buffer"


def _refuse_in_general(entry: Entry, calls: list[OpenCall]) -> None:
    if entry.role in ("weight", "buffer"):
        raise Refused(f"the {entry.role} itself is non-finite ({entry.context}): no operation of the forward made it")
    if entry.role not in ("input", "output"):
        raise Refused("no module's forward made it")
    if not calls:
        raise Refused("no module is running any more: its inputs are gone")
    if torch.compiler.is_compiling() or isinstance(calls[0].module, torch.jit.ScriptModule):
        raise Refused("the module is compiled: it does not run as Python")
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise Refused("a transform of torch.func is running around it")


def _label(call: OpenCall, names: dict[int, str]) -> str:
    return f"{names.get(id(call.module)) or 'the root module'} ({type(call.module).__name__})"


def _sample(call: OpenCall, shown: _Shown) -> str:
    """Say where in an input the inf/nan lies: a sample or a token is often the answer."""
    inputs = walk_inputs(call.args, call.kwargs)
    found = next((leaf for context, leaf in inputs if shown.given and context == shown.given[0].source), None)
    place = place_of(found) if isinstance(found, torch.Tensor) else None
    if place is None:
        return ""
    first = place.pattern[0] if place.pattern else None
    sample = "" if first is None else f", in sample {first} if the first dimension is the batch"
    return f": {describe_place(place)}{sample}"


def _run_until_shown(call: OpenCall, target: nn.Module, role: str, names: dict[int, str], deadline: float) -> _Shown:
    """Run one call again, with other random states where it draws random numbers and stays finite.

    Raises:
        Refused: The run cannot be true or safe, or it stays finite.
    """
    own = generators_in([call.args, call.kwargs, *(vars(module) for module in call.module.modules())])
    for attempt in range(1 + _OTHER_RANDOM_STATES):
        with random_states_kept(own):
            if attempt:
                torch.manual_seed(attempt)
            shown, draws = _run(call, target, role, names, deadline)
        if shown is not None:
            return shown
        if not draws:
            break
    tried = f", with {_OTHER_RANDOM_STATES} other random states neither" if draws else ""
    raise Refused(
        f"it did not become non-finite again when {_label(call, names)} was run a second time{tried}", outward=True
    )


def _run(
    call: OpenCall, target: nn.Module, role: str, names: dict[int, str], deadline: float
) -> tuple[_Shown | None, bool]:
    public = PublicNames()
    watch = OperationWatch(public, _known(call, names), names, call.module, _forward.__code__, deadline)
    reached = _Reached(watch, role)
    args, kwargs = structural_copy(call.args), structural_copy(call.kwargs)
    leaves = leaves_of([args, kwargs])
    try:
        with modules_kept(call.module) as copies, surroundings():
            watch.may_write(copies)
            handles = [] if call.module is target and role == "output" else reached.attach(target)
            try:
                with public, watch:
                    output = _forward(call.module, args, kwargs)
                if not handles:
                    reached.look(walk(output, "output"))
            except _TargetReached:
                pass
            finally:
                watch.restore_generators()
                for handle in handles:
                    handle.remove()
    except Exception as error:
        if raised_by_signal_handler(error):
            raise
        refused = isinstance(error, RuntimeError) and "allocate memory" in str(error)
        if refused or isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            raise Refused("the second run does not fit in memory") from None
        raise Refused(f"the second run raised {describe_error(error)}", outward=True) from None
    if leaves_of([args, kwargs]) != leaves:
        raise Refused("it changes an object that it was given, such as a cache", outward=True)
    return reached.shown(), watch.draws


def _forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The second run: source lines are looked for below this call. No hook of the module itself runs."""
    return module.forward(*args, **kwargs)


def _known(call: OpenCall, names: dict[int, str]) -> dict[int, str]:
    """Return the names of what the call was given and of the weights below it, by the identity of their storage."""
    named = [(context, leaf) for context, leaf in walk_inputs(call.args, call.kwargs) if isinstance(leaf, torch.Tensor)]
    for module in call.module.modules():
        where = names.get(id(module)) or type(module).__name__
        named += [
            (f"{name} of {where}", tensor)
            for tensors in (module._parameters, module._buffers)
            for name, tensor in tensors.items()
            if tensor is not None
        ]
    return {tensor.untyped_storage()._cdata: name for name, tensor in reversed(named) if _has_storage(tensor)}


def _has_storage(tensor: torch.Tensor) -> bool:
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return False
    return True


class _TargetReached(BaseException):
    """The module at which the inf/nan was detected has been called with it. No ``Exception``, as ``Refused``."""


class _Reached:
    """Waits for the inf/nan at the module at which it was detected."""

    def __init__(self, watch: OperationWatch, role: str) -> None:
        self._watch, self._role = watch, role
        self._found: list[tuple[TensorFigures, Record | None]] = []

    def attach(self, target: nn.Module) -> list[Any]:
        """Hook the module for the second run, in which it has no other hook."""
        if self._role == "input":
            return [target.register_forward_pre_hook(self._before, with_kwargs=True)]
        return [target.register_forward_hook(self._after)]

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.look(walk_inputs(args, kwargs))

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        self.look(walk(output, "output"))

    def look(self, leaves: Any) -> None:
        """Remember what is non-finite, and stop the second run there.

        Raises:
            _TargetReached: There is an inf/nan.
        """
        with quiet():
            for context, leaf in leaves:
                if is_float(leaf) and is_nonfinite(leaf):
                    self._found.append((self._watch.figures_of(leaf, context), self._watch.record_of(leaf)))
        if self._found:
            raise _TargetReached

    def shown(self) -> _Shown | None:
        """Return what made it; None where nothing was non-finite."""
        if not self._found:
            return None
        records = ancestors(record for _, record in self._found if record is not None)
        given = [figures for figures, found in self._found if found is None]
        given += [figures for record in records for figures in record.given]
        named = [record for record in records if record.operation is not None]
        return _Shown(min(named, key=_rank, default=None), tuple(given), self._watch.draws)


def _rank(record: Record) -> int:
    """Order what an inf/nan stems from: an infinity that was meant counts only if no operation made a fault of it."""
    is_proven = record.operation is not None and record.operation.cause is not None
    kinds = ("unwritten", "made", "turned" if is_proven else "", "literal", "turned", "carried")
    return kinds.index(record.kind)
