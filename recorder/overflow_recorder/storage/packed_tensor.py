"""One tensor's figures and description, packed once into the bytes that every ring row about it shares."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from overflow_analyzer.format.columns import (
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
from overflow_analyzer.format.frames import IGNORED_NOTE

if TYPE_CHECKING:
    from collections.abc import Callable

    from overflow_recorder.statistics import Description, Figures


_FIGURES: Final = struct.Struct(RING_FIGURES_FORMAT)
_DESCRIPTION: Final = struct.Struct(RING_DESCRIPTION_FORMAT)
_NOTE: Final = struct.Struct("<I")
_PRESENT_WHEN_FINITE: Final = PRESENT_SHAPE | PRESENT_EXTREMA | PRESENT_FINITE | PRESENT_COUNTS
_MOST_REMEMBERED: Final = 4096
_new = tuple.__new__
_SHAPES: Final = [
    struct.Struct(f"<{count}q{8 * (RING_MAX_DIMENSIONS - count)}x") for count in range(RING_MAX_DIMENSIONS + 1)
]


class PackedTensor(NamedTuple):
    """Pieces of a ring row."""

    figures: bytes
    description: bytes
    present: int
    dimensions: int
    shape: bytes
    nonfinite: bool
    """Whether there is an inf or nan that is not intended."""

    def with_note(self, position: int) -> PackedTensor:
        """Return the same with another note."""
        return self._replace(description=self.description[: -_NOTE.size] + _NOTE.pack(position))


NOT_A_TENSOR: Final = PackedTensor(
    figures=_FIGURES.pack(*[0] * 11),
    description=_DESCRIPTION.pack(0, 0, 0, 0),
    present=PRESENT_COUNTS,
    dimensions=0,
    shape=_SHAPES[0].pack(),
    nonfinite=False,
)
"""Of a None or another value: no element, so no element is nan."""


class TensorPacker:
    """Packs what is known of tensors; a training step does it some hundred times, so names and shapes are packed once.

    Args:
        position: The window's dictionary of names.
    """

    def __init__(self, position: Callable[[str], int]) -> None:
        self._position = position
        self._descriptions: dict[tuple[str | None, ...], bytes] = {}
        self._shapes: dict[tuple[int, ...], tuple[int, bytes]] = {}

    def __call__(self, description: Description, figures: Figures, note: str | None = None) -> PackedTensor:
        """Pack a tensor's description and figures, and what is to be said of this row besides."""
        dtype, device, layout, shape, numel, own_note = description
        if len(shape) > RING_MAX_DIMENSIONS:
            own_note = _joined(own_note, f"shape {tuple(shape)}")
            shape = shape[:RING_MAX_DIMENSIONS]
        names = (dtype, device, layout, own_note, note)
        described = self._descriptions.get(names) or self._describe(names)
        dimensions, packed_shape = self._shapes.get(shape) or self._shape(shape)
        abs_min, abs_max, finite_abs_max, nan_count, posinf_count, neginf_count, zeros, subnormals, mean, rms = figures
        if nan_count == 0 and zeros is None and finite_abs_max is not None and not (posinf_count or neginf_count):
            packed = _FIGURES.pack(numel, 0, 0, 0, 0, 0, abs_min, abs_max, finite_abs_max, 0.0, 0.0)
            return _new(PackedTensor, (packed, described, _PRESENT_WHEN_FINITE, dimensions, packed_shape, False))
        counts = (value or 0 for value in (nan_count, posinf_count, neginf_count, zeros, subnormals))
        means = (value or 0.0 for value in (abs_min, abs_max, finite_abs_max, mean, rms))
        nonfinite = note != IGNORED_NOTE and bool(nan_count or posinf_count or neginf_count)
        packed = _FIGURES.pack(numel, *counts, *means)
        return PackedTensor(packed, described, _present(figures), dimensions, packed_shape, nonfinite)

    def _describe(self, names: tuple[str | None, ...]) -> bytes:
        dtype, device, layout, own_note, note = names
        notes = _joined(own_note, note)
        described = _DESCRIPTION.pack(*(self._position(name or "") for name in (dtype, device, layout, notes)))
        if len(self._descriptions) < _MOST_REMEMBERED:
            self._descriptions[names] = described
        return described

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, bytes]:
        packed = len(shape), _SHAPES[len(shape)].pack(*shape)
        if len(self._shapes) < _MOST_REMEMBERED:
            self._shapes[shape] = packed
        return packed


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
