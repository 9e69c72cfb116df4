"""One tensor's figures and description, packed once into the bytes that every ring row about it shares."""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from overflow_analyzer.format.columns import BY_NAME, COUNT_COLUMNS, MAX_DIMENSIONS, NAME_SLOT, columns_of
from overflow_analyzer.format.frames import IGNORED_NOTE
from overflow_analyzer.format.ring_layout import PRESENT, RING_ROW, field_offset, packing
from overflow_recorder.statistics.figures import ALL_FINITE, EXTREMA, Figures

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from overflow_recorder.statistics import Description


TENSOR_OFFSET: Final = field_offset("shape")
"""From here to its end a row has what is known of its tensor: shape, numel, the four names, figures."""
_NAMES: Final = struct.Struct("<4I")
_NOTE: Final = struct.Struct("<I")
_COLUMNS: Final = columns_of("tensor", "figure")
_NOTE_AT: Final = field_offset("note") - TENSOR_OFFSET
_SHAPES: Final = [struct.Struct(f"<{count}q{8 * (MAX_DIMENSIONS - count)}x") for count in range(MAX_DIMENSIONS + 1)]


def _packer(figures: Iterable[str]) -> Callable[..., bytes]:
    """Return what packs shape, numel, names and some figures; the others are 0."""
    packed = packing(figures, field_offset(Figures._fields[0]), RING_ROW.itemsize)
    return struct.Struct(f"<{_SHAPES[0].size}sq{_NAMES.size}s{packed[1:]}").pack


@cache
def _field(name: str) -> struct.Struct:
    """Return what reads one field of a row out of its bytes from ``TENSOR_OFFSET`` on."""
    return struct.Struct(packing([name], TENSOR_OFFSET, RING_ROW.itemsize))


_pack_any = _packer(Figures._fields)
_pack_finite = _packer(EXTREMA)
_PRESENT_WHEN_FINITE: Final = sum(PRESENT[name] for name in ("shape", *EXTREMA, *COUNT_COLUMNS))
_BITS: Final = [PRESENT[name] for name in Figures._fields]
_EXTREMA: Final = len(EXTREMA)
_MOST_REMEMBERED: Final = 4096
_new = tuple.__new__


class PackedTensor(NamedTuple):
    """Pieces of a ring row."""

    tensor: bytes
    """The row from ``TENSOR_OFFSET`` on."""
    present: int
    dimensions: int
    nonfinite: bool
    """Whether there is an inf or nan that is not intended."""

    def figure(self, name: str) -> float:
        """Return one of its figures; 0 where it is null."""
        number: float = _field(name).unpack(self.tensor)[0]
        return number

    @property
    def dtype(self) -> int:
        """Position of the dtype's name."""
        position: int = _field("dtype").unpack(self.tensor)[0]
        return position

    @property
    def finite_abs_max(self) -> float | None:
        """Largest finite magnitude; None where there is none."""
        return self.figure("finite_abs_max") if self.present & PRESENT["finite_abs_max"] else None

    def with_note(self, position: int) -> PackedTensor:
        """Return the same with another note."""
        before, after = self.tensor[:_NOTE_AT], self.tensor[_NOTE_AT + _NOTE.size :]
        return self._replace(tensor=before + _NOTE.pack(position) + after)

    def values(self, names: Sequence[str]) -> dict[str, Any]:
        """Return what was packed, by column; ``names`` is the window's dictionary."""
        row = np.frombuffer(bytes(TENSOR_OFFSET) + self.tensor, RING_ROW)[0]
        values: dict[str, Any] = {}
        for name in _COLUMNS:
            value = row[name].tolist()
            if BY_NAME[name].slot == NAME_SLOT:
                value = names[value] or None
            values[name] = value if self.present & PRESENT.get(name, self.present) else None
        if values["shape"] is not None:
            values["shape"] = tuple(values["shape"][: self.dimensions])
        return values


NOT_A_TENSOR: Final = PackedTensor(
    tensor=bytes(RING_ROW.itemsize - TENSOR_OFFSET),
    present=sum(PRESENT[name] for name in COUNT_COLUMNS),
    dimensions=0,
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
        if len(shape) > MAX_DIMENSIONS:
            own_note = _joined(own_note, f"shape {tuple(shape)}")
            shape = shape[:MAX_DIMENSIONS]
        names = (dtype, device, layout, own_note, note)
        described = self._descriptions.get(names) or self._describe(names)
        dimensions, packed_shape = self._shapes.get(shape) or self._shape(shape)
        if figures[_EXTREMA:] == ALL_FINITE and figures.finite_abs_max is not None:
            low, high = figures.abs_min, figures.abs_max
            packed = _pack_finite(packed_shape, numel, described, low, high, figures.finite_abs_max)
            return _new(PackedTensor, (packed, _PRESENT_WHEN_FINITE, dimensions, False))
        present, values = PRESENT["shape"], []
        for bit, value in zip(_BITS, figures, strict=True):
            values.append(0 if value is None else value)
            if value is not None:
                present |= bit
        nonfinite = note != IGNORED_NOTE and bool(figures.nan_count or figures.posinf_count or figures.neginf_count)
        return PackedTensor(_pack_any(packed_shape, numel, described, *values), present, dimensions, nonfinite)

    def _describe(self, names: tuple[str | None, ...]) -> bytes:
        dtype, device, layout, own_note, note = names
        notes = _joined(own_note, note)
        described = _NAMES.pack(*(self._position(name or "") for name in (dtype, device, layout, notes)))
        if len(self._descriptions) < _MOST_REMEMBERED:
            self._descriptions[names] = described
        return described

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, bytes]:
        packed = len(shape), _SHAPES[len(shape)].pack(*shape)
        if len(self._shapes) < _MOST_REMEMBERED:
            self._shapes[shape] = packed
        return packed


def _joined(first: str | None, second: str | None) -> str | None:
    return "; ".join(one for one in (first, second) if one) or None
