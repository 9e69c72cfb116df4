"""One tensor's figures and description, packed once into the bytes that every ring row about it shares."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from overflow_analyzer.frames import IGNORED_NOTE
from overflow_analyzer.schema import (
    PRESENT_COUNTS,
    PRESENT_EXTREMA,
    PRESENT_FINITE,
    PRESENT_FULL,
    PRESENT_MEANS,
    PRESENT_SHAPE,
    RING_DESCRIPTION_FORMAT,
    RING_FIGURES_FORMAT,
    RING_MAX_DIMENSIONS,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from overflow_recorder.statistics import Description, Figures

__all__ = ["NOT_A_TENSOR", "Measured", "pack_measured"]

_FIGURES: Final = struct.Struct(RING_FIGURES_FORMAT)
_DESCRIPTION: Final = struct.Struct(RING_DESCRIPTION_FORMAT)
_NOTE: Final = struct.Struct("<I")
_SHAPES: Final = [
    struct.Struct(f"<{count}q{8 * (RING_MAX_DIMENSIONS - count)}x") for count in range(RING_MAX_DIMENSIONS + 1)
]


class Measured(NamedTuple):
    """Pieces of a ring row."""

    figures: bytes
    description: bytes
    present: int
    dimensions: int
    shape: bytes
    nonfinite: bool
    """Whether there is an inf or nan that is not intended."""

    def with_note(self, position: int) -> Measured:
        """Return the same with another note."""
        return self._replace(description=self.description[: -_NOTE.size] + _NOTE.pack(position))


NOT_A_TENSOR: Final = Measured(
    figures=_FIGURES.pack(*[0] * 11),
    description=_DESCRIPTION.pack(0, 0, 0, 0),
    present=PRESENT_COUNTS,
    dimensions=0,
    shape=_SHAPES[0].pack(),
    nonfinite=False,
)
"""Of a None or another value: no element, so no element is nan."""


def pack_measured(
    description: Description, figures: Figures, note: str | None, position: Callable[[str], int]
) -> Measured:
    """Pack what is known of a tensor.

    Args:
        description: Its names, shape and element count.
        figures: Its figures.
        note: What to say about this row besides, or None.
        position: The window's dictionary of names.
    """
    dtype, device, layout, shape, numel, own_note = description
    if len(shape) > RING_MAX_DIMENSIONS:
        own_note = _joined(own_note, f"shape {tuple(shape)}")
        shape = shape[:RING_MAX_DIMENSIONS]
    notes = _joined(own_note, note)
    return Measured(
        figures=_FIGURES.pack(numel, *(value or 0 for value in figures[3:8]), *_doubles(figures)),
        description=_DESCRIPTION.pack(
            position(dtype), position(device), position(layout), position(notes) if notes else 0
        ),
        present=_present(figures),
        dimensions=len(shape),
        shape=_SHAPES[len(shape)].pack(*shape),
        nonfinite=note != IGNORED_NOTE and bool(figures[3] or figures[4] or figures[5]),
    )


def _doubles(figures: Figures) -> tuple[float, ...]:
    return tuple(0.0 if value is None else value for value in (*figures[:3], *figures[8:10]))


def _present(figures: Figures) -> int:
    present = PRESENT_SHAPE
    if figures.abs_min is not None:
        present |= PRESENT_EXTREMA
    if figures.finite_abs_max is not None:
        present |= PRESENT_FINITE
    if figures.nan_count is not None:
        present |= PRESENT_COUNTS
    if figures.zero_count is not None:
        present |= PRESENT_FULL
    if figures.abs_mean is not None:
        present |= PRESENT_MEANS
    return present


def _joined(first: str | None, second: str | None) -> str | None:
    return "; ".join(one for one in (first, second) if one) or None
