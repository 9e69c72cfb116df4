"""One batch of a trace, over its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_analyzer.errors import NotRecordedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.rank_trace import RankTrace


def batch_of(trace: Trace, number: int, *, rank: int | None = None) -> tuple[RankTrace, ...]:
    """Return the ranks that have a batch; its frames are each one's ``frames(batch=number)``.

    Args:
        trace: An open trace.
        number: Of the batch, 0-based.
        rank: Only this rank; None for all.

    Raises:
        NotRecordedError: The rank is not in the trace, or none of the ranks has the batch.
        DamagedTraceError: A row group that may hold the batch cannot be read.
    """
    asked = trace.ranks if rank is None else (trace.rank(rank),)
    found = tuple(one for one in asked if any(table.num_rows for table in one.tables(["batch_number"], batch=number)))
    if not found:
        of_rank = "" if rank is None else f" of rank {rank}"
        first, last = batch_bounds(asked) or (None, None)
        held = (
            f"it holds batch {first} alone" if first == last else f"what it holds lies between batch {first} and {last}"
        )
        held = "nothing of it was recorded" if first is None else held
        raise NotRecordedError(f"{trace.path}: batch {number}{of_rank} is not in it; {held}")
    return found


def batch_bounds(ranks: Sequence[RankTrace]) -> tuple[int, int] | None:
    """Return the first and the last batch, as far as the footers and the rings tell; None where there is none."""
    bounds = [number for one in ranks for group in one.row_groups for number in (group.first_batch, group.last_batch)]
    bounds += [number for one in ranks for number in one.ring["batch_number"].unique().to_pylist()]
    return (min(bounds), max(bounds)) if bounds else None
