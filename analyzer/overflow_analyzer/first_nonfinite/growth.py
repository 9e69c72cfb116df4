"""How fast figures grow, and the figures on the way to an overflow. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.events import is_inside
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeGuard

    from overflow_analyzer.format.float_formats import FloatFormat
    from overflow_analyzer.format.frames import Frame


_MOST_STEPS: Final = 6
_GROWN: Final = 0.9  # of the next figure: above it the step is the same figure seen again


@dataclass(frozen=True)
class GrowthStep:
    """One figure on the way to an overflow."""

    frame_number: int
    module_name: str
    module_class: str
    context: str
    dtype: str
    abs_max: float
    share: float
    """Of the largest finite value of the format that was too narrow in the end."""


def is_magnitude(figure: float | None) -> TypeGuard[float]:
    """Whether a figure out of a file can be a finite magnitude that is not 0."""
    return figure is not None and 0 < figure < math.inf


def bits_per_batch(points: Sequence[tuple[int, float]]) -> float | None:
    """Return the slope of log2(magnitude) over batch numbers, by least squares: doublings a batch.

    None where ``points``, (batch number, positive magnitude), are of fewer than two batches, or of numbers too large to
    be told apart as floats.
    """
    if len({batch for batch, _ in points}) < 2:  # noqa: PLR2004  a slope takes two
        return None
    logs = [(batch, math.log2(magnitude)) for batch, magnitude in points]
    mean_batch = math.fsum(batch for batch, _ in logs) / len(logs)
    mean_log = math.fsum(log for _, log in logs) / len(logs)
    along = math.fsum((batch - mean_batch) * (log - mean_log) for batch, log in logs)
    spread = math.fsum((batch - mean_batch) ** 2 for batch, _ in logs)
    return along / spread if spread else None


def growth_before(last: Frame, before: Iterable[Frame], limits: FloatFormat) -> tuple[GrowthStep, ...]:
    """Return the figures on the way to ``last``, the smallest first: each is larger than those kept before it.

    Args:
        last: The frame whose output does not fit; what it took in is the last step.
        before: Frames of the same batch before it, in order of completion.
        limits: The format that was too narrow.
    """
    frames = [*before, last]
    candidates = [one for at, frame in enumerate(frames) for one in _steps(frame, _roles(frames, at), limits)]
    kept: list[GrowthStep] = []
    for step in reversed(candidates):
        if kept and (step.abs_max == kept[-1].abs_max or _is_dropouts_input(step, kept[-1])):
            kept[-1] = step  # the same figure earlier: nearer to what made it
            continue
        if kept and step.share > _GROWN * kept[-1].share:
            continue
        if len(kept) == _MOST_STEPS:
            break
        kept.append(step)
    return tuple(reversed(kept))


def _is_dropouts_input(step: GrowthStep, output: GrowthStep) -> bool:
    """Dropout only scales, by 1/(1-p): with p = 0.1 rounding alone would put its input below or above ``_GROWN``."""
    return step.frame_number == output.frame_number and step.module_class.startswith("Dropout")


def _roles(frames: Sequence[Frame], at: int) -> tuple[str, ...]:
    """Of a frame with others inside it what it took in is left out: in order of completion that would come too late."""
    return ("output",) if at and is_inside(frames[at - 1], frames[at]) else ("input", "output")


def _steps(frame: Frame, roles: tuple[str, ...], limits: FloatFormat) -> list[GrowthStep]:
    return [
        GrowthStep(
            frame.frame_number,
            frame.module_name,
            frame.module_class,
            entry.context,
            entry.dtype or "",
            entry.finite_abs_max,
            entry.finite_abs_max / limits.max,
        )
        for entry in frame.entries
        if entry.role in roles
        and not entry.nonfinite_count
        and float_format(entry.dtype)
        and is_magnitude(entry.finite_abs_max)
    ]
