"""Sentences about what a comparison of two traces could not cover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from overflow_analyzer.format.arrays import numbers

if TYPE_CHECKING:
    from overflow_analyzer.diff.align.plan import Plan
    from overflow_analyzer.diff.analysis import Selection
    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.rank_trace import RankTrace


_WHOLE_ENDS: Final = ("closed", "aborted", "unknown")


def notes_on(a: Trace, b: Trace) -> tuple[str, ...]:
    """Return sentences on what of either trace is lost, and on runs that did not end of themselves."""
    return tuple(f"{name}: {sentence}" for name, trace in (("A", a), ("B", b)) for sentence in _notes(trace))


def _notes(trace: Trace) -> list[str]:
    found = [f"could not be read: {one}" for one in (*trace.lost, *(one for rank in trace.ranks for one in rank.lost))]
    for rank in trace.ranks:
        if rank.dropped_frames:
            found.append(f"rank {rank.rank} gave up {rank.dropped_frames} frames because its disk was too slow")
        if rank.ended not in _WHOLE_ENDS:
            found.append(f"rank {rank.rank} {_ending(rank)}")
    return found


def _ending(rank: RankTrace) -> str:
    end = rank.run.end
    where = "" if end is None or end.batch_number is None else f" in batch {end.batch_number}"
    ways = {
        "detected": f"was stopped at an inf/nan{where}",
        "exception": f"was ended by an exception{where}",
        "switched off": "went on after its recorder had switched itself off",
        "killed": "was killed",
        "still running": "is still running",
    }
    reason = f" ({end.reason})" if end is not None and end.reason else ""
    return f"{ways.get(rank.ended, rank.ended)}{reason}"


def why_nothing(a: Trace, b: Trace, plan: Plan, selection: Selection) -> str:
    """Return why nothing could be compared, and what to do about it."""
    if not plan.ranks:
        return f"no rank is in both: A has {_ranks(a)}, B has {_ranks(b)}"
    in_a, in_b = _batches(plan.ranks[0][0]), _batches(plan.ranks[0][1])
    if in_a is None or in_b is None:
        return f"nothing is recorded in {'B' if in_a else 'A' if in_b else 'either'}"
    spans = f"A has {_span(in_a)}, B has {_span(in_b)}"
    shift = f" at offset {plan.offset}" if plan.offset else ""
    if in_a[1] + plan.offset < in_b[0] or in_b[1] < in_a[0] + plan.offset:
        return (
            f"no batch is in both{shift}: {spans}; if they are the same batches under other numbers, "
            f"--offset {in_b[0] - in_a[0]} lays A's first beside B's first"
        )
    if not plan.matches.pairs:
        return f"no module is in both, by name or by class and shape{shift}; --map says which is which"
    if selection.batch is not None or selection.modules is not None:
        return f"what was asked for is not in both{shift}: {spans}"
    return f"no frame is in both{shift}: {spans}, but of none of them the same frames"


def _ranks(trace: Trace) -> str:
    ranks = [str(one.rank) for one in trace.ranks]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"


def _batches(rank: RankTrace) -> tuple[int, int] | None:
    found = [numbers(table, "batch_number") for table in rank.tables(["batch_number"]) if table.num_rows]
    return (min(int(one.min()) for one in found), max(int(one.max()) for one in found)) if found else None


def _span(batches: tuple[int, int]) -> str:
    first, last = batches
    return f"batch {first}" if first == last else f"batches {first} to {last}"
