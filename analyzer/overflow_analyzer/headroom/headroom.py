"""How much room a run's figures leave: up to the limit of their format, down to where it ends, and how fast they grow.

One pass over the trace with flat memory: a few figures a module, and the last batches' largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overflow_analyzer.first_nonfinite.growth import bits_per_batch
from overflow_analyzer.format.float_formats import FLOAT_FORMATS
from overflow_analyzer.headroom.tally import COLUMNS, Nearest, Tally, Vanishing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from overflow_analyzer.trace.opening import Trace

    Progress = Callable[[Iterable[pa.Table], int], Iterable[pa.Table]]


@dataclass(frozen=True)
class ModuleHeadroom:
    """The headroom of one module's recorded tensors."""

    module_name: str
    module_class: str
    nearest: Nearest | None
    """The weight, buffer, input, output or recorded value nearest to its format's limit; None if none is a float."""
    headroom_bits: float | None
    """How many times it can double before it overflows; negative if it has overflowed; -inf if it is infinite."""
    recent: tuple[tuple[int, float], ...]
    """(batch, its largest share of its format's limit) in the last recorded batches, those of share 0 left out."""
    growth_bits: float | None
    """Doublings a batch, by least squares over the last recorded batches; None for fewer than two."""
    batches_left: float | None
    """Batches until it overflows at this growth; 0 if it has overflowed; None if it does not grow."""
    vanishing: Vanishing | None
    """The input, output or gradient that is nearest to being 0 everywhere."""
    nonfinite_count: int
    """Elements that are inf or nan, without intended ones."""


@dataclass(frozen=True)
class Headroom:
    """The headroom of all modules of a trace, in order of first appearance."""

    modules: tuple[ModuleHeadroom, ...]
    dtype: str | None
    """The format with which all figures were compared; None for each tensor's own."""
    masks: int
    """Inputs and outputs left out because they hold exactly their format's limit, as masks of finfo.min do."""
    batches: int
    """The number of last recorded batches over which growth was measured."""

    @property
    def too_large(self) -> tuple[ModuleHeadroom, ...]:
        """The modules with a figure that exceeds the format's limit."""
        return tuple(one for one in self.modules if one.headroom_bits is not None and one.headroom_bits < 0)

    def by_headroom(self) -> list[ModuleHeadroom]:
        """Return the modules, the least headroom first. Modules without figures are left out."""
        known = [one for one in self.modules if one.headroom_bits is not None]
        return sorted(known, key=lambda one: one.headroom_bits or 0.0)

    def by_growth(self) -> list[ModuleHeadroom]:
        """Return the modules, the fastest growth first. Modules without a known growth are left out."""
        known = [one for one in self.modules if one.growth_bits is not None]
        return sorted(known, key=lambda one: -(one.growth_bits or 0.0))

    def by_underflow(self) -> list[ModuleHeadroom]:
        """Return the modules that are 0 everywhere, then the others by share of subnormals, then by smallness."""
        known = [one for one in self.modules if one.vanishing is not None]
        return sorted(known, key=lambda one: () if one.vanishing is None else one.vanishing.order)


def headroom_of(
    trace: Trace,
    *,
    rank: int | None = None,
    dtype: str | None = None,
    progress: Progress = lambda tables, _: tables,
) -> Headroom:
    """Measure the headroom of every module.

    Args:
        trace: An open trace.
        rank: Only this rank; None for the largest figures over all.
        dtype: Hold all floating-point figures against this format instead of each tensor's own, to ask whether a run
            would fit it; a name of ``float_formats.FLOAT_FORMATS``.
        progress: Called with a rank's tables and about how many they are; yields them and may show how far it is.

    Raises:
        NotRecordedError: The trace has no such rank.
        ValueError: The format is not known.
        DamagedTraceError: A row group cannot be read.
    """
    asked = trace.ranks if rank is None else (trace.rank(rank),)
    if dtype is not None and dtype not in FLOAT_FORMATS:
        raise ValueError(f"{dtype!r} is no floating-point format; known are {', '.join(FLOAT_FORMATS)}")
    tally = Tally(None if dtype is None else FLOAT_FORMATS[dtype])
    for one in asked:
        for table in progress(one.tables(COLUMNS), one.table_count):
            tally.add(table)
        tally.end_rank()
    modules = tuple(_module(tally, number) for number in range(len(tally.names)))
    return Headroom(modules, dtype, len(tally.masks), len(tally.largest_shares))


def _module(tally: Tally, number: int) -> ModuleHeadroom:
    nearest, recent = tally.nearest.get(number), tally.recent(number)
    headroom = None if nearest is None else nearest.limits.bits_left(nearest.abs_max)
    growth = bits_per_batch(recent)
    batches_left = None
    if headroom is not None and headroom < 0:
        batches_left = 0.0
    elif growth is not None and growth > 0:  # from the last recorded batch, whose figure is a share of the limit
        batches_left = max(0.0, -math.log2(recent[-1][1]) / growth)
    name, module_class = tally.names[number]
    return ModuleHeadroom(
        module_name=name,
        module_class=module_class,
        nearest=nearest,
        headroom_bits=headroom,
        recent=tuple(recent),
        growth_bits=growth,
        batches_left=batches_left,
        vanishing=tally.vanishing.get(number),
        nonfinite_count=int(tally.nonfinite[number]),
    )
