"""The operation that made an inf/nan, as the lines of a report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_analyzer.format.origin import Change, Operation, Origin, Place, SourceLine, TensorFigures, Tried


_MOST_CALLS = 8


def operation_lines(origin: Origin) -> tuple[str, ...]:
    """Return what running the origin module again has shown: the operation first, or why none is named."""
    if origin.operation is None:
        lines = [f"no operation is named: {origin.reason}"]
    else:
        lines = list(_operation(origin.operation))
    if origin.place is not None and (origin.operation is None or origin.operation.place != origin.place):
        where = f"{origin.context} of {origin.module_name or 'the root module'}: {describe_place(origin.place)}"
        lines.append(f"{_padded('detected')}{where}")
    if origin.draws and origin.operation is not None:
        lines.append(f"{_padded('random')}the second run drew other random numbers: other elements may have been hit")
    return tuple(lines)


def change_lines(origin: Origin) -> tuple[str, ...]:
    """Return what has changed most since the batches before, in order of execution."""
    return tuple(map(_change, origin.changes))


def _change(one: Change) -> str:
    where = f"{one.module_name or 'the root module'} ({one.module_class})"
    facts = [f"since batch {one.batch_before}"]
    if one.gradient is not None:
        facts.append(f"its gradient {one.gradient:.2e} at most")
    if one.learning_rate is not None:
        facts.append(f"learning rate {one.learning_rate:g}")
    return f"{one.context} of {where}: {one.before:.2e} -> {one.now:.2e} {', '.join(facts)}"


def _operation(operation: Operation) -> Iterator[str]:
    yield f"{operation.name} ({operation.aten}){_where(operation)}"
    if operation.calls:
        yield from (f"  called by {_source(line)}" for line in reversed(operation.calls[-_MOST_CALLS:]))
    names = [_padded(title) for title in ("operands", *[""] * len(operation.operands))]
    shown = [_tensor(one) for one in operation.operands] + ([", ".join(operation.scalars)] if operation.scalars else [])
    yield from (f"{name}{text}" for name, text in zip(names, shown, strict=False))
    yield f"{_padded('result')}{_tensor(operation.result)}{_tried(operation.result, operation.tried)}"
    yield f"{_padded('where')}{describe_place(operation.place)}"
    yield from (f"{_padded('proof' if not position else '')}{one}" for position, one in enumerate(operation.evidence))


def _padded(title: str) -> str:
    return f"{title:<11}"


def _where(operation: Operation) -> str:
    if operation.source is not None:
        return f", {_source(operation.source)}"
    module = f" in {operation.module_name or 'the root module'} ({operation.module_class})"
    return module if operation.called_at is None else f"{module}, called at {_source(operation.called_at)}"


def _source(line: SourceLine) -> str:
    code = f": {line.code}" if line.code else ""
    return f"{line.file}:{line.line} in {line.function}{code}"


def _tensor(tensor: TensorFigures) -> str:
    counts = (("nan", tensor.nan_count), ("+inf", tensor.posinf_count), ("-inf", tensor.neginf_count))
    found = ", ".join(f"{count} {name}" for name, count in counts if count)
    largest = "empty" if tensor.abs_max is None else f"abs max {tensor.abs_max:.2e}"
    figures = f"{found} of {tensor.numel}" if found else largest
    source = f"  {tensor.source}" if tensor.source else ""
    return f"{tensor.dtype} {list(tensor.shape)}  {figures}{source}"


def _tried(result: TensorFigures, tried: Tried | None) -> str:
    if tried is None or not tried.finite or tried.abs_max is None or not math.isfinite(tried.abs_max):
        return ""
    limits = float_format(result.dtype)
    if limits is None or tried.dtype == result.dtype:
        return ""
    return f"; in {tried.dtype} the same operation gives at most {limits.describe(tried.abs_max).replace(' is ', ', ')}"


def describe_place(place: Place) -> str:
    """Return where the non-finite elements lie, as ``3 elements, all in [5, :, 403]``."""
    if not place.pattern:
        return "the one element"
    pattern = ", ".join(":" if index is None else str(index) for index in place.pattern)
    if place.count == place.numel:
        return "every element"
    if place.count == 1:
        return f"1 element of {place.numel}, {list(place.first)}"
    if place.whole:
        return f"all of [{pattern}], {place.count} of {counted(place.numel, 'element')}"
    if all(index is None for index in place.pattern):
        return f"{place.count} of {counted(place.numel, 'element')}, the first {list(place.first)}"
    return f"{place.count} of {counted(place.numel, 'element')}, all in [{pattern}], the first {list(place.first)}"
