"""``_origin.json``: which operation made the first inf/nan, as the recorder saw when it ran the origin module again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from overflow_analyzer.errors import DamagedTraceError
from overflow_analyzer.format.typed_json import build
from overflow_analyzer.text.strict_json import to_plain
from overflow_analyzer.text.wording import counted, nonfinite_counts

ORIGIN_FILE: Final = "_origin.json"
_VERSION: Final = 1


@dataclass(frozen=True)
class SourceLine:
    """One line of a program."""

    file: str
    """As seen from the directory in which the run was started, or from where Python imported it."""
    line: int
    function: str
    """Function or method, as ``Attention.forward``."""
    code: str
    """The line's text; empty where the file could not be read."""


@dataclass(frozen=True)
class TensorFigures:
    """An operand or a result of the operation."""

    name: str
    """The operation's own name for it, as ``self`` or ``mat2``; ``result`` for what it returned."""
    source: str
    """Which weight, buffer or input it is, as ``weight of encoder.query``; empty where it was computed."""
    dtype: str
    shape: tuple[int, ...]
    numel: int
    abs_max: float | None
    finite_abs_max: float | None
    nan_count: int
    posinf_count: int
    neginf_count: int

    @property
    def counts(self) -> str:
        """How much of it is not finite, as ``2 nan, 1 inf of 4096 elements``."""
        found = nonfinite_counts(self.nan_count, self.posinf_count, self.neginf_count)
        return f"{found} of {counted(self.numel, 'element')}"


@dataclass(frozen=True)
class Place:
    """Where in a tensor the non-finite elements lie."""

    count: int
    numel: int
    first: tuple[int, ...]
    """Index of the first one."""
    pattern: tuple[int | None, ...]
    """Per dimension the one index that all of them have, or None where they differ."""
    whole: bool
    """Whether every element that ``pattern`` covers is non-finite."""


@dataclass(frozen=True)
class Tried:
    """The same operation with the same operands in a wider format."""

    dtype: str
    finite: bool
    abs_max: float | None


@dataclass(frozen=True)
class Operation:
    """The first operation whose operands are finite and whose result is not."""

    name: str
    """torch's public name, as ``torch.matmul``."""
    aten: str
    """The operation that ran, as ``aten.bmm``."""
    module_name: str
    """The module in whose forward it ran."""
    module_class: str
    source: SourceLine | None
    """The line outside torch that called it; None where the module's own code is torch's alone."""
    calls: tuple[SourceLine, ...]
    """The calls between the replayed module's forward and ``source``, the outermost first."""
    called_at: SourceLine | None
    """The line outside torch that called the replayed module."""
    operands: tuple[TensorFigures, ...]
    scalars: tuple[str, ...]
    """Numbers among the operands, as ``other=0.0``."""
    result: TensorFigures
    place: Place
    tried: Tried | None
    cause: str | None
    """What the figures prove, as ``overflow`` or ``division-by-zero``; None where they prove nothing."""
    evidence: tuple[str, ...]
    """Sentences with the figures that prove it."""


@dataclass(frozen=True)
class Change:
    """A tensor of the batch that failed that was smaller in the batches before, or that is 0 and was not."""

    module_name: str
    module_class: str
    role: str
    context: str
    dtype: str
    batch_before: int
    """The last batch in which it was that small, or the earliest that is remembered where it grew little by little."""
    before: float
    """Largest finite magnitude then."""
    now: float
    """... in the batch that failed."""
    gradient: float | None
    """Largest magnitude of a weight's gradient, where it was still at hand."""
    learning_rate: float | None
    """Of a weight, where an optimizer that has stepped holds it."""


@dataclass(frozen=True)
class Origin:
    """What was seen at a detection, by running the origin module again and by looking back."""

    batch_number: int
    frame_number: int
    """Of the frame in which the inf/nan was detected."""
    module_name: str
    module_class: str
    role: str
    context: str
    place: Place | None
    """Where in the detected tensor the non-finite elements lie."""
    replayed: str | None
    """Name of the module that was run again; None where none was."""
    operation: Operation | None
    reason: str | None
    """Why no operation is named; None where one is."""
    draws: bool
    """Whether the second run drew random numbers: then other elements may be hit than the first time."""
    seconds: float
    """How long the training waited for this."""
    given: tuple[TensorFigures, ...] = ()
    """Non-finite tensors from outside the outermost module that was run again, which the inf/nan stems from."""
    changes: tuple[Change, ...] = ()
    """What has changed most since the last batches, in order of execution."""
    version: int = _VERSION

    def to_json(self) -> str:
        """Return strict JSON: the keys are the fields' names, non-finite numbers the strings "inf", "-inf", "nan"."""
        return json.dumps(to_plain(self), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: object) -> Origin:
        """Parse ``to_json``'s text; keys that are not known here are left out.

        Raises:
            DamagedTraceError: It is not such a text, or of a later version.
        """
        try:
            found = json.loads(text)
            if found["version"] != _VERSION:
                raise DamagedTraceError(f"{where}: version {found['version']!r} is not known here")
            origin: Origin = build(cls, found)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DamagedTraceError(f"{where}: does not describe an origin ({type(error).__name__}: {error})") from None
        return origin
