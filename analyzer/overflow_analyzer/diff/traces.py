"""``diff_traces``: two open traces -> ``TraceDiff``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from overflow_analyzer.diff.align.plan import make_plan
from overflow_analyzer.diff.align.renames import Rename
from overflow_analyzer.diff.analysis import Comparison, Selection
from overflow_analyzer.diff.collect.around import FramesAround, read_frames_around
from overflow_analyzer.diff.collect.explaining import notes_on, why_nothing
from overflow_analyzer.diff.compare.comparing import ToleranceChecker
from overflow_analyzer.diff.compare.tolerance import Tolerance
from overflow_analyzer.diff.finding_first import earliest
from overflow_analyzer.diff.model import Alignment, Compared, FramePair, OnlyIn, StructureDifference, TraceDiff
from overflow_analyzer.diff.run_differences import run_differences
from overflow_analyzer.diff.settings import setting_differences, settings_of
from overflow_analyzer.diff.stream.reading import UnseenModuleError
from overflow_analyzer.errors import NotRecordedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overflow_analyzer.diff.align.plan import Plan
    from overflow_analyzer.diff.collect.over_batches import DifferencesOverBatches
    from overflow_analyzer.diff.finding_first import Found
    from overflow_analyzer.diff.model import Divergence, SettingDifference, Side
    from overflow_analyzer.trace.opening import Trace


def diff_traces(
    a: Trace,
    b: Trace,
    *,
    tolerance: Tolerance | None = None,
    offset: int | None = None,
    renames: Sequence[Rename | str] = (),
    rank: int | None = None,
    batch: int | None = None,
    module: str | None = None,
    over_batches: DifferencesOverBatches | None = None,
) -> TraceDiff:
    """Compare two runs: where they first differ, and by how much.

    Both are read once, in order, a row group at a time. Figures are compared, not elements: a change that leaves a
    tensor's extrema (and, where recorded, its mean, its rms and its zeros) as they were is not seen at that tensor.

    Args:
        a: One run, usually the one that is trusted.
        b: The other.
        tolerance: What is taken for rounding; None for ``Tolerance()``.
        offset: Batch N of A is batch N + offset of B; None to find it from the figures where they make it plain.
        renames: Rules such as ``encoder.*=model.encoder.*``, name in A = name in B.
        rank: Compare only this rank.
        batch: Compare only this batch, in A's numbers.
        module: Compare only modules whose name matches; ``*`` and ``?`` are wildcards.
        over_batches: Gathers each module's largest difference over batches on the way.

    Returns:
        What differs. ``same`` is true only if something was compared; what one trace alone recorded is listed and makes
        no difference.

    Raises:
        NotRecordedError: Neither trace has that rank, batch or module; a rule names no module of one of them.
        DamagedTraceError: A row group cannot be read.
        ValueError: A rule that is none.
    """
    # Once an array just under 32 MiB has been freed, glibc keeps what arrays of some 100 KiB free. By default it gives
    # them back to the kernel, which zeroes and maps them anew, page by page: a fifth of the time.
    np.empty(31 << 20, np.uint8)
    rules = [Rename.parse(one) if isinstance(one, str) else one for one in renames]
    for thorough in (False, True):
        plan = make_plan(a, b, offset=offset, renames=rules, rank=rank, thorough=thorough)
        try:
            selection = Selection(batch, None if module is None else plan.select(module))
            found = Comparison(plan, tolerance or Tolerance(), selection, over_batches)
            _compare_ranks(found)
            return _result(found, a, b, rank)
        except (UnseenModuleError, NotRecordedError):
            if thorough:
                raise
    raise AssertionError("the second attempt returns or raises")


def _compare_ranks(found: Comparison) -> None:
    for pair in found.plan.ranks:
        found.add(*pair)
    unmatched = any(rows.tallies for one in found.ranks for rows in one.unmatched.values())
    batch = found.selection.batch
    if batch is not None and found.ranks and not found.counts["entries"] and not unmatched:
        raise NotRecordedError(f"batch {batch} is in neither trace")


def _result(found: Comparison, a: Trace, b: Trace, rank: int | None) -> TraceDiff:
    plan, something = found.plan, found.counts["entries"] > 0
    ranks = found.ranks if something else []
    first = earliest(one.first.first for one in ranks)
    outranking = earliest(one.first.first_nonfinite for one in ranks) or first
    batches = max((one.growth.batches for one in found.ranks), default=0)
    structure, settings = _structure(found), _settings(found, outranking)
    one, other = plan.ranks[0] if plan.ranks else (a.ranks[0], b.ranks[0])
    return TraceDiff(
        same=something and first is None,
        first_divergence=_with_settings(outranking, settings, plan),
        first_difference=_with_settings(first, settings, plan),
        differences=found.modules.differences(),
        growth=tuple(point for one in found.ranks for point in one.growth.points()),
        structure=structure,
        only_in_a=_only_in(found, a, "a", rank),
        only_in_b=_only_in(found, b, "b", rank),
        compared=Compared(batches=batches, **found.counts),
        alignment=_alignment(plan),
        tolerance=found.tolerance,
        nothing_compared=None if something else why_nothing(a, b, plan, found.selection),
        around=() if outranking is None else _around(found, outranking),
        run_differences=run_differences(one.run, other.run, structure),
        settings=settings,
        notes=notes_on(a, b),
    )


def _settings(found: Comparison, place: Found | None) -> tuple[SettingDifference, ...]:
    """Compare the modules of the first rank and of the one that differs first: all ranks' would take long."""
    plan, rank = found.plan, None if place is None else place.divergence.rank
    ranks = [pair for pair in plan.ranks if pair is plan.ranks[0] or pair[0].rank == rank]
    return setting_differences(ranks, plan.matches.pairs, offset=plan.offset, batch=found.selection.batch)


def _with_settings(found: Found | None, settings: tuple[SettingDifference, ...], plan: Plan) -> Divergence | None:
    if found is None:
        return None
    return replace(found.divergence, settings=settings_of(found.divergence, settings, plan.classes_a))


def _structure(found: Comparison) -> tuple[StructureDifference, ...]:
    """Return classes, then shapes, kinds, dtypes and modes, in order of batches."""
    a, b = found.plan.classes_a, found.plan.classes_b
    classes = [
        StructureDifference("class", a[pair.a], b[pair.b], pair.a, "", "", None, 0)
        for pair in found.plan.matches.pairs
        if a[pair.a] != b[pair.b]
    ]
    # Within a batch in an order that does not depend on where regions were cut.
    return tuple(
        sorted(
            classes + found.values.differences(),
            key=lambda one: (one.first_batch or 0, one.what != "class", one.module_name, one.context, one.what),
        )
    )


def _only_in(found: Comparison, trace: Trace, side: Side, wanted: int | None) -> tuple[OnlyIn, ...]:
    paired = [one.unmatched[side].rank for one in found.ranks]
    ranks = [
        OnlyIn("rank", one.rank, None, None, None, None, None, None, None, one.frame_count, one.rows)
        for one in trace.ranks
        if one.rank not in paired and wanted in (None, one.rank)
    ]
    return (*ranks, *(row for one in found.ranks for row in one.unmatched[side].only_in(found.naming)))


def _alignment(plan: Plan) -> Alignment:
    return Alignment(
        ranks=tuple((a.rank, b.rank) for a, b in plan.ranks),
        offset=plan.offset,
        offset_found=plan.offset_found,
        modules=len(plan.matches.pairs),
        weaker=tuple(pair for pair in plan.matches.pairs if pair.matched_by != "exact"),
        wrappers_a=plan.matches.wrappers_a,
        wrappers_b=plan.matches.wrappers_b,
    )


def _around(found: Comparison, place: Found) -> tuple[FramePair, ...]:
    ranks = next(one for one in found.ranks if one.a.rank == place.divergence.rank)
    return read_frames_around(
        FramesAround(ranks.a, place.frames["a"], found.builder_a),
        FramesAround(ranks.b, place.frames["b"], found.builder_b),
        ToleranceChecker(found.tolerance, found.naming, coarseness=place.coarseness),
        found.naming,
    )
