"""What a rule is (``CauseRule``), what it is given (``Case``) and what it returns (``Cause``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from overflow_analyzer.first_nonfinite.events import is_inside
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from overflow_analyzer.first_nonfinite.events import Event
    from overflow_analyzer.format.float_formats import FloatFormat
    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.modules import ModuleSettings
    from overflow_analyzer.format.origin import Operation, Origin, TensorFigures
    from overflow_analyzer.trace.observations import Observation


Confidence = Literal["certain", "likely", "possible", "unknown"]
"""certain: recorded figures imply it. likely: the figures fit, and something recorded excludes every other cause.
possible: the figures fit, and those of others may fit too. unknown: no rule applies."""
Verdict = tuple[Confidence, "Sequence[str]"]
"""How sure a rule is, and its evidence: sentences with recorded figures."""

_SIBLINGS: Final = 8


@dataclass(frozen=True)
class Cause:
    """Why the inf/nan came about, as far as the trace can tell."""

    name: str
    """One of ``causes.CAUSES``; described in ``docs/causes.md``."""
    confidence: Confidence
    evidence: tuple[str, ...]
    """Sentences with recorded figures."""
    next_step: str
    """What to do about it."""


@dataclass(frozen=True)
class CauseRule:
    """A cause, how it is recognised, and what to do about it. A rule claims no more than it has seen."""

    name: str
    judge: Callable[[Case], Verdict | None]
    """Returns None where the rule does not apply."""
    advice: str | Callable[[Case], str]
    """The next step; a text may name ``{case.label}`` and other properties of the case."""
    is_harmless: bool = False
    """Whether nothing went wrong, as far as the trace tells: it is then the answer before every other."""
    general: bool = False
    """Whether it says less than other rules of the same confidence."""
    shows_growth: bool = False
    """Whether the figures on the way to the format's limit belong to it."""
    came_with_the_batch: bool = False
    is_remedy: bool = False
    """Whether the advice changes the arithmetic: where no operation was seen, it has not been tried."""

    def cause_of(self, case: Case) -> Cause | None:
        """Return the cause, or None where the rule does not apply."""
        verdict = self.judge(case)
        if verdict is None:
            return None
        return self.stated(case, *verdict)

    def stated(self, case: Case, confidence: Confidence, evidence: Sequence[str]) -> Cause:
        """Return the cause with its evidence and advice."""
        advice = self.advice.format(case=case) if isinstance(self.advice, str) else self.advice(case)
        if self.is_remedy and case.operation is None:
            advice = f"To try: {advice[0].lower()}{advice[1:]}"
        return Cause(self.name, confidence, tuple(evidence), advice)


class Operand(NamedTuple):
    """A finite tensor that the non-finite value may have been made of."""

    frame: Frame
    entry: Entry


@dataclass(frozen=True)
class Case:
    """All that is known about one inf/nan."""

    event: Event
    entry: Entry
    """The first non-finite entry of the event's first frame."""
    before: tuple[Frame, ...] = ()
    """Recorded frames before it, of earlier batches too, the latest last."""
    after: tuple[Frame, ...] = ()
    """Recorded frames of the same batch after it."""
    look_back: Callable[[], tuple[Observation, ...]] = tuple
    """Reads ``history``: only where a rule wants it."""
    gradient: tuple[Frame, Entry] | None = None
    """A gradient with an inf or nan since the optimizer step before, and its frame."""
    peers: tuple[Observation, ...] = ()
    """Observations of the same tensor in the same batch on the other ranks."""
    replay: Origin | None = None
    """What the recorder saw when it ran the origin module again."""
    look_up: Callable[[int], Mapping[str, ModuleSettings]] = lambda _: {}
    """Reads what the modules are in a batch: only where a module has made it."""
    optimizers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """As in ``RunInfo``; empty where no step was seen, or in a trace of an older recorder."""
    replicated: bool = False
    """Whether the other ranks' observations of it in an earlier batch had the same figure."""

    @property
    def frame(self) -> Frame:
        """The frame with the first non-finite entry."""
        return self.event.first

    @property
    def origin(self) -> Frame | None:
        """The frame that made it, where one was recorded."""
        return self.event.origin

    @property
    def operation(self) -> Operation | None:
        """What the recorder saw make it."""
        return None if self.replay is None else self.replay.operation

    @property
    def given(self) -> tuple[TensorFigures, ...]:
        """Inputs of the model that are not finite, and no mask, and that it was seen to stem from."""
        if self.replay is None or self.replay.replayed != "":
            return ()
        return tuple(
            one for one in self.replay.given if one.source.startswith("input") and (one.nan_count or one.posinf_count)
        )

    @property
    def came_from_outside(self) -> bool:
        """Whether the second run showed that no operation made it."""
        return self.replay is not None and self.replay.operation is None and bool(self.replay.given)

    @property
    def label(self) -> str:
        """The module that made it, or where it was first seen."""
        return (self.origin or self.frame).label

    @property
    def made_in_a_forward(self) -> bool:
        """Whether a module's arithmetic may have made it: it went in or came out."""
        return self.entry.role in ("input", "output")

    @property
    def limits(self) -> FloatFormat | None:
        """The format that the non-finite tensor has."""
        return float_format(self.entry.dtype)

    @cached_property
    def history(self) -> tuple[Observation, ...]:
        """Earlier recorded observations of the same tensor, the oldest first."""
        return self.look_back()

    @cached_property
    def settings(self) -> ModuleSettings | None:
        """What the module that made it is; None where that was not recorded."""
        return None if self.origin is None else self.look_up(self.frame.batch_number).get(self.origin.module_name)

    @property
    def last_finite(self) -> Observation | None:
        """The last observation of the same tensor in which it is finite."""
        return next((one for one in reversed(self.history) if not one.nonfinite), None)

    @property
    def batch(self) -> tuple[Frame, ...]:
        """The recorded forward frames of the same batch before the first non-finite one."""
        number = self.frame.batch_number
        return tuple(one for one in self.before if one.batch_number == number and one.phase != "backward")

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """Finite float tensors that the non-finite value may have been made of.

        Where the origin is known: what it took in, and what the modules inside it gave out before. Otherwise what the
        modules that completed just before gave out.
        """
        if self.origin is None:
            return _given_out(self.batch[-_SIBLINGS:])
        taken = (Operand(self.origin, entry) for entry in self.origin.of_roles("weight", "buffer", "input"))
        inside = tuple(one for one in self.batch if is_inside(one, self.origin))
        return (*filter(_is_usable, taken), *_given_out(inside[-_SIBLINGS:]))

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands without weights and buffers."""
        return tuple(one for one in self.operands if one.entry.role not in ("weight", "buffer"))

    def name(self, operand: Operand) -> str:
        """Return where a tensor was seen: its context alone where it is of the first non-finite frame."""
        context = operand.entry.context
        return context if operand.frame is self.frame else f"{context} of {operand.frame.label}"

    @property
    def what(self) -> str:
        """What was found, as ``output has 3 nan of 64 elements``."""
        return f"{self.entry.label} has {self.entry.counts}"

    @property
    def where(self) -> str:
        """The same with its module, as ``output of fc (Linear) has 3 nan of 64 elements``."""
        return f"{self.entry.label} of {self.frame.label} has {self.entry.counts}"


def _given_out(frames: tuple[Frame, ...]) -> tuple[Operand, ...]:
    found = (Operand(one, entry) for one in frames for entry in one.of_roles("output", "value"))
    return tuple(filter(_is_usable, found))


def _is_usable(operand: Operand) -> bool:
    entry = operand.entry
    # Figures of integers (token numbers, positions) do not enter the arithmetic that overflows.
    return entry.magnitude is not None and not entry.nonfinite_count and "float" in (entry.dtype or "")


def half_step_at_max(format_: FloatFormat) -> float:
    """Return what must be added to the largest finite value for the sum to be rounded past it."""
    top = format_.max / (2 - format_.epsilon)
    return top * format_.epsilon / 2


def shown_only(case: Case) -> None:
    """Recorded figures say nothing of it: only an operation that was seen shows it."""


def fills_rows(count: int, entry: Entry) -> bool:
    """Whether so many elements can be whole rows of a tensor."""
    row = (entry.shape or (0,))[-1]
    return bool(row) and bool(count) and count % row == 0
