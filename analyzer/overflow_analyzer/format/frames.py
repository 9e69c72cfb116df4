"""Frames and their entries as plain values: what the report prints and the reasoning reads."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from overflow_analyzer.format.columns import columns_of
from overflow_analyzer.text.wording import counted, nonfinite_counts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from overflow_analyzer.format.columns import Kind, Phase, Role


LOSS = ("loss", "backward")
"""Name and class of the frame that holds the tensors on which a backward starts."""
IGNORED_NOTE = "ignored"
"""The note of a row that matched one of the recorder's ``ignore`` patterns: an intended infinity."""


def is_ignored(note: str | None) -> bool:
    """Whether a row's note says that infinities are intended there."""
    return note is not None and IGNORED_NOTE in note.split("; ")


@dataclass(frozen=True)
class Entry:
    """One tensor, None or other value in a frame. Figures that could not be had are None."""

    role: Role
    context: str
    kind: Kind
    dtype: str | None = None
    device: str | None = None
    layout: str | None = None
    shape: tuple[int, ...] | None = None
    numel: int = 0
    abs_min: float | None = None
    abs_max: float | None = None
    finite_abs_max: float | None = None
    nan_count: int | None = 0
    posinf_count: int | None = 0
    neginf_count: int | None = 0
    zero_count: int | None = None
    subnormal_count: int | None = None
    abs_mean: float | None = None
    rms: float | None = None
    neginf_row_count: int | None = None
    note: str | None = None

    @property
    def nonfinite_count(self) -> int:
        """Elements that are nan or infinite; 0 where nothing could be counted."""
        return (self.nan_count or 0) + (self.posinf_count or 0) + (self.neginf_count or 0)

    @property
    def counts(self) -> str:
        """How much of it is not finite, as ``2 nan, 1 inf of 4096 elements``."""
        found = nonfinite_counts(self.nan_count, self.posinf_count, self.neginf_count)
        return f"{found} of {counted(self.numel, 'element')}"

    @property
    def nonfinite_kinds(self) -> str:
        """What of it is not finite, as ``nan, inf``."""
        found = {"nan": self.nan_count, "inf": self.posinf_count, "-inf": self.neginf_count}
        return ", ".join(kind for kind, count in found.items() if count)

    @property
    def magnitude(self) -> float | None:
        """The largest finite magnitude; None where there is none, or where the file holds none that could be one."""
        figure = self.finite_abs_max
        return figure if figure is not None and 0 <= figure < math.inf else None

    @property
    def label(self) -> str:
        """Its name within its frame, for a sentence: a parameter's gradient is named like the parameter."""
        return f"the gradient of {self.context}" if self.role == "weight_grad" else self.context

    @property
    def ignored(self) -> bool:
        """Whether the recorder was told that infinities are intended here."""
        return is_ignored(self.note)

    @property
    def nonfinite(self) -> bool:
        """Whether there is an inf or nan that is not intended."""
        return self.nonfinite_count > 0 and not self.ignored


@dataclass(frozen=True)
class Frame:
    """One call of one module's forward (or of ``record``, or one tensor's gradient), with its entries in order."""

    batch_number: int
    frame_number: int
    frame_in_batch: int
    call_index: int
    module_name: str
    module_class: str
    phase: Phase
    optimizer_step: int = 0
    time_ns: int = 0
    entries: tuple[Entry, ...] = ()

    @property
    def label(self) -> str:
        """Its module for a sentence, as ``encoder.dropout (Dropout)``."""
        if (self.module_name, self.module_class) == LOSS:
            return "the training step"
        if self.phase == "manual":
            return f'record("{self.module_name}")'
        return f"{self.module_name or 'the root module'} ({self.module_class})"

    @property
    def moment(self) -> str:
        """When it was, as ``batch 3, frame 17``."""
        return f"batch {self.batch_number}, frame {self.frame_number}"

    def of_roles(self, *roles: Role) -> tuple[Entry, ...]:
        """The entries of these roles, in order."""
        return tuple(entry for entry in self.entries if entry.role in roles)

    @property
    def nonfinite_entries(self) -> tuple[Entry, ...]:
        """The entries with an inf or nan that is not intended, in order."""
        return tuple(entry for entry in self.entries if entry.nonfinite)


def first_in_time(nonfinite: Sequence[Entry]) -> Entry:
    """Return the first of a frame's non-finite entries: buffers are looked at when the forward has updated them.

    Args:
        nonfinite: In order, at least one.
    """
    spoilt = (one for one in nonfinite if one.role == "input" and (one.nan_count or one.posinf_count))
    return next(spoilt, nonfinite[0]) if nonfinite[0].role == "buffer" else nonfinite[0]


_FRAME_FIELDS = columns_of("frame")
_ENTRY_FIELDS = columns_of("entry", "tensor", "figure")
_ROWS_AT_ONCE = 256  # become Python objects, which take a hundred times the memory; often no more are asked for


def frames_from_tables(tables: Iterable[pa.Table]) -> Iterator[Frame]:
    """Yield the frames of tables with all columns of ``SCHEMA``, in order of frame_number."""
    slices = (table.slice(at, _ROWS_AT_ONCE) for table in tables for at in range(0, table.num_rows, _ROWS_AT_ONCE))
    rows = (row for some in slices for row in some.to_pylist())
    for _, group in itertools.groupby(rows, itemgetter("frame_number")):
        of_frame = list(group)
        yield Frame(**{name: of_frame[0][name] for name in _FRAME_FIELDS}, entries=tuple(map(_entry, of_frame)))


def _entry(row: dict[str, Any]) -> Entry:
    shape = None if row["shape"] is None else tuple(row["shape"])
    return Entry(**{name: row[name] for name in _ENTRY_FIELDS} | {"shape": shape})
