"""Looking at every operation of a second run: what it was given, what it returned, who called it."""

from __future__ import annotations

import math
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from overflow_analyzer.format.origin import Operation, TensorFigures, Tried
from overflow_recorder.replay.evidence import Call, evidence_of
from overflow_recorder.replay.figures import figures_of, is_float, is_nonfinite, nonfinite_count, place_of, tensors_in
from overflow_recorder.replay.sources import CALL, frames_from, users_lines
from overflow_recorder.replay.untouched import Refused
from overflow_recorder.statistics.quiet import PLAIN, quiet

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType, FrameType

    from torch import nn


Kind = Literal["made", "turned", "literal", "unwritten", "carried"]
"""made: finite operands, non-finite result. turned: an inf among the operands became a nan. literal: the program gave
the number itself, as to ``masked_fill``. unwritten: memory that nobody has written. carried: non-finite in and out."""

_COLLECTIVES: Final = ("c10d", "_c10d_functional", "c10d_functional", "_c10d_functional_autograd")
_OVERWRITES: Final = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "exponential_", "random_")
_MOST_DETAILS: Final = 64
_OPERATORS: Final = {
    **{name: name for name in ("add", "sub", "mul", "matmul", "div", "pow", "neg")},
    **{f"r{name}": name for name in ("add", "sub", "mul", "matmul", "div", "pow")},
    "truediv": "div",
    "rtruediv": "div",
    "floordiv": "floor_divide",
    "rfloordiv": "floor_divide",
}
"""torch's functions behind Python's operators: ``__matmul__`` is ``torch.matmul``."""


@dataclass
class Record:
    """One operation with a non-finite result."""

    order: int
    kind: Kind
    parents: list[Record] = field(default_factory=list)
    given: list[TensorFigures] = field(default_factory=list)
    """Non-finite operands that came from outside the second run."""
    operation: Operation | None = None


def ancestors(records: Iterable[Record]) -> list[Record]:
    """Return operations and those that they stem from, in the order in which they ran."""
    found: dict[int, Record] = {}
    waiting = list(records)
    while waiting:
        one = waiting.pop()
        if one.order not in found:
            found[one.order] = one
            waiting += one.parents
    return [found[order] for order in sorted(found)]


class PublicNames(TorchFunctionMode):
    """Knows which of torch's public functions is running."""

    def __init__(self) -> None:
        super().__init__()
        self._running: Any = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outer, self._running = self._running, func
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._running = outer

    def is_known(self) -> bool:
        """Whether one is running."""
        return self._running is not None

    def name(self, aten: str) -> str:
        """Return it as ``torch.matmul``; the operation's own name where torch was not called by a public one."""
        found = None if self._running is None else resolve_name(self._running)
        if found is None:
            return f"torch.ops.{aten}"
        method = found.removeprefix("torch.Tensor.")
        if method == found:
            return str(found)
        plain = _OPERATORS.get(method.strip("_"), method) if method.startswith("__") else method
        return f"torch.{plain}" if hasattr(torch, plain) else str(found)


class OperationWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations and remembers those whose result is not finite, and what they stem from.

    Args:
        names: The second run's public names.
        known: Names of weights, buffers and inputs by the identity of their storage.
        modules: Names of the model's modules by identity.
        replayed: The module that is run again.
        end: The code that runs it: source lines above it are not its own.
        deadline: On ``time.monotonic``'s clock.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do without the wrapper that torch puts around ``__torch_dispatch__``: it imports the compiler, 3 s long."""
        return False

    def __init__(
        self,
        names: PublicNames,
        known: dict[int, str],
        modules: dict[int, str],
        replayed: nn.Module,
        end: CodeType,
        deadline: float,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names, self._known, self._modules, self._replayed = names, known, modules, replayed
        self._end, self._deadline = end, deadline
        self._born: set[int] = set()
        self._records: dict[int, tuple[StorageWeakRef, Record]] = {}
        self._generators: dict[int, tuple[torch.Generator, torch.Tensor]] = {}
        self._details = 0
        self._order = 0
        self.draws = False
        """Whether any operation drew random numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in PLAIN for kind in types):
            return NotImplemented  # a subclass takes it apart first, and this mode sees the parts
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is None:  # a higher-order operation: what it runs is not seen
            return func(*args, **kwargs)
        self._check(func)
        written = self._written(schema, args, kwargs)
        before = self._before(func, schema, args, kwargs, written)
        result = func(*args, **kwargs)
        with quiet():
            self._look(func, schema, before, kwargs, result, bool(written))
        return result

    def _check(self, func: Any) -> None:
        if func.namespace in _COLLECTIVES:
            raise Refused("it communicates with other ranks, which do not run it a second time")
        if time.monotonic() > self._deadline:
            raise Refused("the second run took longer than 30 seconds")
        self.draws = self.draws or torch.Tag.nondeterministic_seeded in func.tags

    def _written(self, schema: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Return the operands that it writes; only what was made in this run may be written again."""
        written = [
            tensor
            for argument, value in _bound(schema, args, kwargs)
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tensors_in(value)
        ]
        for tensor in written:
            key = _key(tensor)
            if key not in self._born:
                raise Refused(f"it changes {self._known.get(key) or 'a tensor that it keeps'} in place", outward=True)
        return written

    def _before(self, func: Any, schema: Any, args: Any, kwargs: Any, written: list[torch.Tensor]) -> tuple[Any, ...]:
        """Return the operands as they are before it runs: what it overwrites, as a copy."""
        for argument, value in _bound(schema, args, kwargs):
            if argument.name == "generator" and value is not None and id(value) not in self._generators:
                self._generators[id(value)] = value, value.get_state()
        if not written or schema.name.rpartition("::")[2] in _OVERWRITES:
            return tuple(args)
        ids = {id(tensor) for tensor in written}
        return tuple(self._copy(value) if id(value) in ids and is_float(value) else value for value in args)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.clone()
        record = self._record_at(_key(tensor))
        if record is not None:
            self._records[_key(copy)] = StorageWeakRef(copy.untyped_storage()), record  # type: ignore[no-untyped-call]
        return copy

    def may_write(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take tensors for ones that were made in this run, such as the copies of buffers."""
        self._born.update(map(_key, tensors))

    def restore_generators(self) -> None:
        """Put back the user's own generators, as they were when this run first used them."""
        for generator, state in self._generators.values():
            generator.set_state(state)

    def _look(self, func: Any, schema: Any, args: tuple[Any, ...], kwargs: Any, result: Any, writes: bool) -> None:
        operands = [
            (argument.name, tensor)
            for argument, value in _bound(schema, args, kwargs)
            for tensor in tensors_in(value)
            if not (schema.name.rpartition("::")[2] in _OVERWRITES and argument.name == "self")
        ]
        sources = {_key(tensor) for tensor in (*tensors_in(args), *tensors_in(list(kwargs.values())))}
        for tensor in tensors_in(result):
            key = _key(tensor)
            is_new = key not in sources or schema.name == "aten::lift_fresh"
            if is_new:
                self._born.add(key)
            if type(tensor) not in PLAIN or not is_float(tensor):
                continue
            if not is_new and not writes and self._record_at(key) is None:
                continue  # a view of what is finite or came from outside
            if is_nonfinite(tensor):
                self._remember(func, schema, args, kwargs, tensor, operands)

    def _remember(
        self, func: Any, schema: Any, args: tuple[Any, ...], kwargs: Any, result: torch.Tensor, operands: Any
    ) -> None:
        kept = self._record_at(_key(result))
        if kept is not None and kept.order == self._order and kept.kind == "made":
            return
        self._order += 1
        record = Record(self._order, "carried")
        is_number = schema.name == "aten::lift_fresh" and self._names.is_known()
        figures = [] if is_number else [self.figures_of(tensor, name) for name, tensor in operands]
        for (_, tensor), one in zip(operands, figures, strict=False):
            if is_float(tensor) and nonfinite_count(one):
                parent = self._record_at(_key(tensor))
                if parent is None:
                    record.given.append(one)
                else:
                    record.parents.append(parent)
        record.kind = _kind(schema.name, args, kwargs, figures, record, result)
        if record.kind != "carried" and self._details < _MOST_DETAILS:
            self._details += 1
            record.operation = self._operation(func, Call(schema, args, kwargs, result), figures, record.kind)
        storage = StorageWeakRef(result.untyped_storage())  # type: ignore[no-untyped-call]
        self._records[_key(result)] = storage, record

    def _record_at(self, key: int) -> Record | None:
        found = self._records.get(key)
        if found is None or found[0].expired():  # type: ignore[no-untyped-call]
            return None
        return found[1]

    def record_of(self, tensor: torch.Tensor) -> Record | None:
        """Return the operation of this run that made a tensor non-finite; None where it came from outside."""
        return self._record_at(_key(tensor))

    def figures_of(self, tensor: torch.Tensor, name: str) -> TensorFigures:
        """Measure a tensor, and say which weight, buffer or input it is."""
        return figures_of(tensor, name, self._known.get(_key(tensor), ""))

    def _operation(self, func: Any, call: Call, figures: list[TensorFigures], kind: Kind) -> Operation:
        place = place_of(call.result)
        if place is None:
            raise Refused("the place of the inf/nan in the result cannot be told")
        frame = sys._getframe(1)
        lines = users_lines(frame, self._end)
        module = self._module(frame)
        aten = f"{func.namespace}.{call.schema.name.rpartition('::')[2]}"
        tried = _tried(func, call)
        cause, evidence = evidence_of(call, tried, kind)
        return Operation(
            name=self._names.name(aten),
            aten=aten,
            module_name=self._modules.get(id(module), ""),
            module_class=type(module).__name__,
            source=lines[0] if lines else None,
            calls=tuple(reversed(lines[1:])),
            called_at=None,
            operands=tuple(figures),
            scalars=call.scalars(),
            result=figures_of(call.result, "result"),
            place=place,
            tried=tried,
            cause=cause,
            evidence=evidence,
        )

    def _module(self, frame: FrameType | None) -> nn.Module:
        for one in frames_from(frame, self._end):
            if one.f_code is CALL:
                module: nn.Module = one.f_locals["self"]
                return module
        return self._replayed


def _key(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a sparse tensor has no storage
        return id(tensor)


def _bound(schema: Any, args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
    """Pair an operation's arguments with what it was given; what has its default is left out."""
    arguments = schema.arguments
    return [*zip(arguments, args, strict=False), *((one, kwargs[one.name]) for one in arguments if one.name in kwargs)]


def _kind(
    name: str, args: Any, kwargs: Any, figures: list[TensorFigures], record: Record, result: torch.Tensor
) -> Kind:
    if record.parents or record.given:
        had_nan = any(one.nan_count for one in figures)
        return "turned" if not had_nan and bool(torch.isnan(result).any()) else "carried"
    if name.startswith(("aten::empty", "aten::new_empty")):
        return "unwritten"
    if name == "aten::lift_fresh":  # Python's numbers became a tensor
        return "literal"
    scalars = [value for value in (*args, *kwargs.values()) if isinstance(value, float) and not math.isfinite(value)]
    if not scalars:
        return "made"
    return "literal" if any(map(math.isnan, scalars)) or not bool(torch.isnan(result).any()) else "turned"


def _tried(func: Any, call: Call) -> Tried | None:
    """Run the operation in a wider format; None where there is none, or where it cannot be run in it."""
    narrow = {tensor.dtype for tensor in tensors_in([call.result, *call.tensors().values()]) if is_float(tensor)}
    # bfloat16 reaches as far as float32.
    wide = torch.float32 if narrow - {torch.bfloat16, torch.float32, torch.float64} else torch.float64
    if torch.float64 in narrow or any(dtype.is_complex for dtype in narrow):
        return None

    def widened(value: Any) -> Any:
        if is_float(value):
            return value.to(wide)
        if isinstance(value, torch.dtype) and value.is_floating_point:
            return wide
        return type(value)(map(widened, value)) if type(value) in (list, tuple) else value

    with suppress(Exception):  # it may not exist in that format, or not fit in memory
        kwargs = {name: widened(value) for name, value in call.kwargs.items()}
        again = next(iter(tensors_in(func(*map(widened, call.args), **kwargs))))
        found = figures_of(again, "result")
        return Tried(found.dtype, not nonfinite_count(found), found.abs_max)
    return None
