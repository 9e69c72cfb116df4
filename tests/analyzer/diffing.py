"""Pairs of traces for tests of comparing, without files, and a comparison seen from the other side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overflow_analyzer.diff import TraceDiff, diff_traces
from overflow_analyzer.trace.opening import Trace, open_trace
from overflow_analyzer.trace.rank_trace import RankTrace
from tests.traces import RUN, frame, table_of, tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overflow_analyzer.diff import BatchGrowth, Divergence, FigureDifference, ModuleDifference
    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.run_info import HowEnded, RunInfo

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODULES = ("embed", "block.fc1", "block.act", "block.fc2", "block", "")


def recorded_pair(name: str) -> tuple[Trace, Trace]:
    """The two traces of ``fixtures/diff-NAME``."""
    return open_trace(FIXTURES / f"diff-{name}" / "a.parquet"), open_trace(FIXTURES / f"diff-{name}" / "b.parquet")


def trace_of(*ranks: Sequence[Frame], run: RunInfo = RUN, ended: HowEnded = "closed") -> Trace:
    """A trace that holds frames of ranks 0, 1, ... in memory."""
    return Trace(Path("memory"), tuple(_rank(rank, frames, run, ended) for rank, frames in enumerate(ranks)))


def _rank(rank: int, frames: Sequence[Frame], run: RunInfo, ended: HowEnded) -> RankTrace:
    return RankTrace(rank, replace(run, rank=rank), ended, (), table_of(frames))


def training(batches: int = 3, modules: Sequence[str] = MODULES, first_batch: int = 0) -> list[Frame]:
    """A training whose figures all differ from each other and go on from batch to batch."""
    frames = []
    for number, (batch, place) in enumerate(
        (batch, place) for batch in range(first_batch, first_batch + batches) for place in range(len(modules))
    ):
        size = 1.0 + place / 8 + batch / 64
        entries = (
            tensor("weight", "weight", size / 128, size / 4),
            tensor("input", "input[0]", size / 64, size),
            tensor("output", "output", size / 32, size * 2),
        )
        frames.append(frame(number, batch, modules[place], *entries, in_batch=place))
    return frames


def changed(frames: Sequence[Frame], at: int, entry: int, **changes: Any) -> list[Frame]:
    """The frames with other figures in one entry; ``abs_max`` stands for finite_abs_max too."""
    if "abs_max" in changes:
        changes.setdefault("finite_abs_max", changes["abs_max"])
    entries = list(frames[at].entries)
    entries[entry] = replace(entries[entry], **changes)
    return [*frames[:at], replace(frames[at], entries=tuple(entries)), *frames[at + 1 :]]


def renumbered(frames: Sequence[Frame]) -> list[Frame]:
    """The frames as a run that had only these would have numbered them."""
    made: list[Frame] = []
    for number, one in enumerate(frames):
        again = made and made[-1].batch_number == one.batch_number
        made.append(replace(one, frame_number=number, frame_in_batch=made[-1].frame_in_batch + 1 if again else 0))
    return made


def scaled(entry: Entry, factor: float) -> dict[str, Any]:
    """Changes that make an entry's largest magnitude another one."""
    return {"abs_max": (entry.abs_max or 0.0) * factor}


def compare(a: Sequence[Frame], b: Sequence[Frame], **options: Any) -> TraceDiff:
    """Compare two runs of one rank each."""
    return diff_traces(trace_of(a), trace_of(b), **options)


def mirrored(diff: TraceDiff) -> TraceDiff:
    """What the comparison should have been, had A been called B."""
    return replace(
        diff,
        first_divergence=_mirrored_divergence(diff.first_divergence),
        first_difference=_mirrored_divergence(diff.first_difference),
        differences=tuple(sorted(map(_mirrored_module, diff.differences), key=_order)),
        growth=tuple(map(_mirrored_growth, diff.growth)),
        structure=tuple(sorted((replace(one, a=one.b, b=one.a) for one in diff.structure), key=repr)),
        run_differences=tuple(replace(one, a=one.b, b=one.a) for one in diff.run_differences),
        only_in_a=diff.only_in_b,
        only_in_b=diff.only_in_a,
        around=(),
    )


def comparable(diff: TraceDiff) -> TraceDiff:
    """The comparison without what depends on the order of A and B alone: ties, and the frames beside each other."""
    return replace(
        diff,
        differences=tuple(sorted(diff.differences, key=_order)),
        structure=tuple(sorted(diff.structure, key=repr)),
        run_differences=tuple(sorted(diff.run_differences, key=repr)),
        around=(),
    )


def _order(one: ModuleDifference) -> tuple[Any, ...]:
    return (-one.largest.epsilons, one.module_name)


def _mirrored_divergence(one: Divergence | None) -> Divergence | None:
    if one is None:
        return None
    other: dict[Any, Any] = {"a": "b", "b": "a", None: None}
    return replace(
        one,
        batch_number=one.batch_number_b,
        batch_number_b=one.batch_number,
        module_name=one.module_name_b,
        module_name_b=one.module_name,
        frame_number_a=one.frame_number_b,
        frame_number_b=one.frame_number_a,
        only_in=other[one.only_in],
        nonfinite_in=other[one.nonfinite_in],
        largest=_mirrored_figure(one.largest),
    )


def _mirrored_figure(one: FigureDifference | None) -> Any:
    return None if one is None else replace(one, a=one.b, b=one.a)


def _mirrored_module(one: ModuleDifference) -> ModuleDifference:
    return replace(
        one, module_name=one.module_name_b, module_name_b=one.module_name, largest=_mirrored_figure(one.largest)
    )


def _mirrored_growth(one: BatchGrowth) -> BatchGrowth:
    return one
