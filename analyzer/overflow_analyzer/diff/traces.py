"""``diff_traces``: two open traces -> ``TraceDiff``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from overflow_analyzer.diff.align.plan import Plan, make_plan
from overflow_analyzer.diff.align.renames import Rename
from overflow_analyzer.diff.analysis import RankAnalysis, Selection
from overflow_analyzer.diff.collect.around import FramesAround, read_frames_around
from overflow_analyzer.diff.collect.collecting import OtherValues
from overflow_analyzer.diff.collect.coverage import Recorded
from overflow_analyzer.diff.collect.explaining import notes_on, why_nothing
from overflow_analyzer.diff.collect.ranking import ModuleRanks
from overflow_analyzer.diff.compare.tolerance import Tolerance
from overflow_analyzer.diff.model import Alignment, Compared, FramePair, OnlyIn, TraceDiff
from overflow_analyzer.diff.naming import Naming
from overflow_analyzer.diff.run_differences import run_differences
from overflow_analyzer.diff.settings import setting_differences, settings_of
from overflow_analyzer.diff.stream.reading import Side, UnseenModuleError, read_blocks
from overflow_analyzer.errors import NotRecordedError
from overflow_analyzer.format.columns import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overflow_analyzer.diff.collect.over_batches import DifferencesOverBatches
    from overflow_analyzer.diff.finding_first import Found
    from overflow_analyzer.diff.model import Divergence, SettingDifference
    from overflow_analyzer.diff.stream.reading import SharedNames
    from overflow_analyzer.format.run_info import RunInfo
    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.rank_trace import RankTrace


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
    _keep_freed_memory()
    rules = [Rename.parse(one) if isinstance(one, str) else one for one in renames]
    for thorough in (False, True):
        plan = make_plan(a, b, offset=offset, renames=rules, rank=rank, thorough=thorough)
        try:
            selection = Selection(batch, None if module is None else plan.select(module))
            comparison = _Comparison(plan, tolerance or Tolerance(), selection, over_batches)
            comparison.run()
            return comparison.result(a, b, rank)
        except (UnseenModuleError, NotRecordedError):
            if thorough:
                raise
    raise AssertionError("the second attempt returns or raises")


def _keep_freed_memory() -> None:
    """Let the C library keep what arrays of some 100 KiB free: glibc does once one just under 32 MiB has been freed.

    By default it gives them back to the kernel, which zeroes and maps them anew, page by page: a fifth of the time.
    """
    np.empty(31 << 20, np.uint8)


class _Comparison:
    def __init__(
        self, plan: Plan, tolerance: Tolerance, selection: Selection, over_batches: DifferencesOverBatches | None
    ) -> None:
        self._plan = plan
        self._over_batches = over_batches
        if over_batches is not None:
            over_batches.begin(plan.names.modules.names)
        self._tolerance = tolerance
        self._selection = selection
        self._side_a, self._side_b = Side(plan.names, plan.codes_a), Side(plan.names, plan.codes_b)
        self._modules, self._values = ModuleRanks(), OtherValues()
        self._naming = Naming(
            plan.names, plan.names_b, plan.classes, self._side_a.shapes, self._side_b.shapes, plan.offset
        )
        self._ranks: list[RankAnalysis] = []

    def run(self) -> None:
        plan, batch = self._plan, self._selection.batch
        for a, b in plan.ranks:
            full = all(one.run.options.get("statistics") != "extrema" for one in (a, b))
            analysis = RankAnalysis(
                a.rank,
                b.rank,
                plan.names,
                (self._side_a.shapes, self._side_b.shapes),
                self._tolerance,
                self._selection,
                self._modules,
                self._values,
                self._over_batches,
            )
            analysis.run(
                read_blocks(a, self._side_a, batch=batch, full_statistics=full),
                read_blocks(
                    b,
                    self._side_b,
                    offset=plan.offset,
                    batch=None if batch is None else batch + plan.offset,
                    full_statistics=full,
                ),
                _recorded(a, plan.names),
                _recorded(b, plan.names),
            )
            self._ranks.append(analysis)
        nowhere = not any(one.entries or one.unmatched_a.tallies or one.unmatched_b.tallies for one in self._ranks)
        if batch is not None and self._ranks and nowhere:
            raise NotRecordedError(f"batch {batch} is in neither trace")

    def result(self, a: Trace, b: Trace, rank: int | None) -> TraceDiff:
        compared = self._compared()
        ranks = self._ranks if compared.entries else []
        first = _earliest(one.first.first for one in ranks)
        nonfinite = _earliest(one.first.first_nonfinite for one in ranks)
        outranking = nonfinite or first
        structure = self._naming.structure(
            self._values, self._plan.matches.pairs, self._plan.classes_a, self._plan.classes_b
        )
        settings = self._settings(outranking)
        return TraceDiff(
            same=bool(compared.entries) and first is None,
            first_divergence=self._divergence(outranking, settings),
            first_difference=self._divergence(first, settings),
            differences=self._naming.differences(self._modules),
            growth=tuple(point for one in self._ranks for point in one.growth.points()),
            structure=structure,
            only_in_a=self._only_in(a, rank, of_a=True),
            only_in_b=self._only_in(b, rank, of_a=False),
            compared=compared,
            alignment=self._alignment(),
            tolerance=self._tolerance,
            nothing_compared=None if compared.entries else why_nothing(a, b, self._plan, self._selection),
            around=self._around(outranking),
            run_differences=run_differences(*self._runs(a, b), structure),
            settings=settings,
            notes=notes_on(a, b),
        )

    def _runs(self, a: Trace, b: Trace) -> tuple[RunInfo, RunInfo]:
        one, other = self._plan.ranks[0] if self._plan.ranks else (a.ranks[0], b.ranks[0])
        return one.run, other.run

    def _settings(self, found: Found | None) -> tuple[SettingDifference, ...]:
        """Compare the modules of the first rank and of the one that differs first: all ranks' would take long."""
        plan, place = self._plan, None if found is None else found.rank
        ranks = [pair for pair in plan.ranks if pair is plan.ranks[0] or pair[0].rank == place]
        return setting_differences(ranks, plan.matches.pairs, offset=plan.offset, batch=self._selection.batch)

    def _divergence(self, found: Found | None, settings: tuple[SettingDifference, ...]) -> Divergence | None:
        if found is None:
            return None
        analysis = next(one for one in self._ranks if one.rank_a == found.rank)
        only = self._plan.matches.only_b if found.only_in == "b" else self._plan.matches.only_a
        divergence = self._naming.divergence(found, analysis.rank_b, frozenset(only))
        return replace(divergence, settings=settings_of(divergence, settings, self._plan.classes_a))

    def _compared(self) -> Compared:
        return Compared(
            entries=sum(one.entries for one in self._ranks),
            frames=sum(one.frames for one in self._ranks),
            batches=max((one.growth.batches for one in self._ranks), default=0),
            differing=sum(one.differing for one in self._ranks),
            tolerated=sum(one.tolerated for one in self._ranks),
        )

    def _alignment(self) -> Alignment:
        plan, matches = self._plan, self._plan.matches
        return Alignment(
            ranks=tuple((one.rank_a, one.rank_b) for one in self._ranks),
            offset=plan.offset,
            offset_found=plan.offset_found,
            modules=len(matches.pairs),
            weaker=tuple(pair for pair in matches.pairs if pair.matched_by != "exact"),
            wrappers_a=matches.wrappers_a,
            wrappers_b=matches.wrappers_b,
        )

    def _only_in(self, trace: Trace, wanted: int | None, *, of_a: bool) -> tuple[OnlyIn, ...]:
        paired = [one.rank_a if of_a else one.rank_b for one in self._ranks]
        unpaired = [one for one in trace.ranks if one.rank not in paired and wanted in (None, one.rank)]
        found = [
            OnlyIn("rank", one.rank, None, None, None, None, None, None, None, one.frame_count, one.rows)
            for one in unpaired
        ]
        for analysis in self._ranks:
            rows, rank = (analysis.unmatched_a, analysis.rank_a) if of_a else (analysis.unmatched_b, analysis.rank_b)
            found += self._naming.only_in(rows, rank, of_a=of_a)
        return tuple(found)

    def _around(self, found: Found | None) -> tuple[FramePair, ...]:
        if found is None:
            return ()
        plan = self._plan
        a, b = next(pair for pair in plan.ranks if pair[0].rank == found.rank)
        frame_a, frame_b = found.frames
        return read_frames_around(
            FramesAround(a, frame_a, self._side_a, plan.codes_a),
            FramesAround(b, frame_b, self._side_b, plan.codes_b),
            offset=plan.offset,
            names=plan.names,
            tolerance=self._tolerance,
            coarseness=found.coarseness,
        )


def _recorded(rank: RankTrace, names: SharedNames) -> Recorded:
    roles = rank.run.options.get("roles")
    known = [one for one in roles if one in ROLES] if isinstance(roles, (list, tuple)) else ROLES
    return Recorded(frozenset(map(names.roles.code, known)), rank.ended in ("closed", "aborted"))


def _earliest(found: Iterable[Found | None]) -> Found | None:
    return min((one for one in found if one is not None), key=lambda one: one.order, default=None)
