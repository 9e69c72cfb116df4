"""What a rule is given (``Case``) and what it returns (``Cause``), and the words both sides share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from overflow_analyzer.first_nonfinite.events import is_inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from overflow_analyzer.first_nonfinite.events import Event
    from overflow_analyzer.format.float_formats import FloatFormat
    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.run_info import RunInfo
    from overflow_analyzer.trace.observations import Observation


Confidence = Literal["certain", "likely", "possible", "unknown"]
"""certain: it follows from recorded figures. likely: the figures fit and none speaks against it. possible: the figures
fit, and others would fit too. unknown: no rule applies."""

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


class Operand(NamedTuple):
    """A finite tensor that the bad value may have been made of."""

    frame: Frame
    entry: Entry


@dataclass(frozen=True)
class Case:
    """All that is known about one inf/nan."""

    run: RunInfo
    event: Event
    entry: Entry
    """The first bad entry of the event's first frame."""
    before: tuple[Frame, ...] = ()
    """Recorded frames before it, of earlier batches too, the latest last."""
    after: tuple[Frame, ...] = ()
    """Recorded frames of the same batch after it."""
    look_back: Callable[[], tuple[Observation, ...]] = tuple
    """Reads ``history``: only where a rule wants it."""
    gradient: tuple[Frame, Entry] | None = None
    """A gradient with an inf or nan since the optimizer step before, and its frame."""
    watched_before: bool = False
    """Whether the recorder had looked at this tensor in every earlier batch and would have raised."""
    peers: tuple[Observation, ...] = ()
    """Looks at the same tensor in the same batch on the other ranks."""

    @property
    def frame(self) -> Frame:
        """The frame with the first bad entry."""
        return self.event.first

    @property
    def origin(self) -> Frame | None:
        """The frame that made it, where one was recorded."""
        return self.event.origin

    @cached_property
    def history(self) -> tuple[Observation, ...]:
        """Earlier recorded looks at the same tensor, the oldest first."""
        return self.look_back()

    @property
    def batch(self) -> tuple[Frame, ...]:
        """The recorded forward frames of the same batch before the first bad one."""
        number = self.frame.batch_number
        return tuple(one for one in self.before if one.batch_number == number and one.phase != "backward")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Finite float tensors that the bad value may have been made of.

        Where the origin is known: what it took in, and what the modules inside it gave out before. Otherwise what the
        modules that completed just before gave out.
        """
        if self.origin is None:
            return _given_out(self.batch[-_SIBLINGS:])
        taken = (Operand(self.origin, entry) for entry in self.origin.of_roles("weight", "buffer", "input"))
        inside = (one for one in self.batch if is_inside(one, self.origin))
        return (*filter(_is_usable, taken), *_given_out(tuple(inside)[-_SIBLINGS:]))

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands without weights and buffers."""
        return tuple(one for one in self.operands if one.entry.role not in ("weight", "buffer"))

    def name(self, operand: Operand) -> str:
        """Return where a tensor was seen: its context alone where it is of the first bad frame."""
        context = operand.entry.context
        return context if operand.frame is self.frame else f"{context} of {label_of(operand.frame)}"

    @property
    def what(self) -> str:
        """What was found, as ``output has 3 nan of 64 elements``."""
        return f"{context_of(self.entry)} has {counts_of(self.entry)}"

    def largest(self) -> Operand | None:
        """Return the operand with the largest magnitude."""
        return max(self.operands, key=lambda one: figure_of(one.entry) or 0.0, default=None)


def _given_out(frames: tuple[Frame, ...]) -> tuple[Operand, ...]:
    found = (Operand(one, entry) for one in frames for entry in one.of_roles("output", "value"))
    return tuple(filter(_is_usable, found))


def _is_usable(operand: Operand) -> bool:
    entry = operand.entry
    # Figures of integers (token numbers, positions) do not enter the arithmetic that overflows.
    return figure_of(entry) is not None and not entry.nonfinite_count and "float" in (entry.dtype or "")


def figure_of(entry: Entry) -> float | None:
    """Return the largest finite magnitude; None where there is none, or where the file holds none that could be one."""
    figure = entry.finite_abs_max
    return figure if figure is not None and 0 <= figure < math.inf else None


def label_of(frame: Frame) -> str:
    """Return a frame's module for a sentence, as ``encoder.dropout (Dropout)``."""
    if frame.phase == "manual":
        return f'record("{frame.module_name}")'
    return f"{frame.module_name or 'the root module'} ({frame.module_class})"


def moment_of(frame: Frame) -> str:
    """Return when a frame was, as ``batch 3, frame 17``."""
    return f"batch {frame.batch_number}, frame {frame.frame_number}"


def context_of(entry: Entry) -> str:
    """Return a tensor's name within its frame for a sentence: a parameter's gradient is named like the parameter."""
    return f"the gradient of {entry.context}" if entry.role == "weight_grad" else entry.context


def counts_of(entry: Entry) -> str:
    """Return how much of a tensor is bad, as ``2 nan, 1 inf of 4096 elements``."""
    counts = (("nan", entry.nan_count), ("inf", entry.posinf_count), ("-inf", entry.neginf_count))
    found = ", ".join(f"{count} {name}" for name, count in counts if count)
    return f"{found} of {entry.numel} {'element' if entry.numel == 1 else 'elements'}"


def half_step_at_max(format_: FloatFormat) -> float:
    """Return what must be added to the largest finite value for the sum to be rounded past it."""
    top = format_.max / (2 - format_.epsilon)
    return top * format_.epsilon / 2
