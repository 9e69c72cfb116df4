"""The tables behind the answer: modules, growth, structure, what is only in one trace, how modules were matched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from overflow_analyzer.render.diff.sentences import number_text
from overflow_analyzer.text.tables import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overflow_analyzer.diff import BatchGrowth, ModuleDifference, OnlyIn, TraceDiff


Listing = tuple[str, tuple[Column, ...], list[list[str]]]
"""Title, columns, rows."""

_MOST_GROWTH_ROWS: Final = 12
_REASONS: Final = {
    "structure": "the other run does not have it",
    "batch": "the other trace does not have the batches",
    "window": "outside what the other trace kept",
    "recompute": "recomputed for the backward",
    "role": "the other run did not record it",
    "rank": "the other trace does not have the rank",
}
_PASSES: Final = {
    "wrapper": "name without wrappers",
    "map": "--map",
    "sequence": "class, shapes and order of calls",
    "class": "name, though its class is another one",
    "exact": "name",
}


def listings(diff: TraceDiff) -> list[Listing]:
    """Return the tables that have rows, whole."""
    tables = [
        _modules(diff.differences, several_ranks=len(diff.alignment.ranks) > 1),
        _growth(diff.growth) if diff.differences else ("", (), []),
        _structure(diff),
        _only_in("Only in A", diff.only_in_a),
        _only_in("Only in B", diff.only_in_b),
        _matches(diff),
    ]
    return [table for table in tables if table[2]]


def _modules(differences: Sequence[ModuleDifference], *, several_ranks: bool) -> Listing:
    columns = (
        Column("module", name=True),
        Column("began in"),
        Column("entries", "right"),
        Column("largest in"),
        Column("entry", name=True),
        Column("figure"),
        Column("A", "right"),
        Column("B", "right"),
        Column("relative", "right"),
        Column("epsilons", "right"),
    )
    rows = [
        [
            one.module_name or "(root)",
            _place(one.first_rank, one.first_batch, several_ranks=several_ranks),
            str(one.entries),
            _place(one.rank, one.batch_number, several_ranks=several_ranks),
            one.context,
            one.largest.figure,
            number_text(one.largest.a),
            number_text(one.largest.b),
            f"{one.largest.relative:.2g}",
            f"{one.largest.epsilons:.3g}",
        ]
        for one in differences
    ]
    return "Modules that differ, most first", columns, rows


def _place(rank: int, batch: int, *, several_ranks: bool) -> str:
    return f"rank {rank}, batch {batch}" if several_ranks else f"batch {batch}"


def _growth(growth: Sequence[BatchGrowth]) -> Listing:
    columns = (
        Column("rank", "right"),
        Column("batch", "right"),
        Column("relative", "right"),
        Column("epsilons", "right"),
        Column("entries", "right"),
    )
    rows = [
        [str(one.rank), str(one.batch_number), f"{one.relative:.2g}", f"{one.epsilons:.3g}", str(one.entries)]
        for rank in dict.fromkeys(one.rank for one in growth)
        for one in _spread([point for point in growth if point.rank == rank])
    ]
    return "Largest difference by batch", columns, rows


def _spread(points: Sequence[BatchGrowth]) -> list[BatchGrowth]:
    """Return a dozen batches, from the last that agrees to the last of all."""
    first = next((at for at, one in enumerate(points) if one.epsilons > 0), 0)
    shown = points[max(0, first - 1) :]
    steps = min(len(shown), _MOST_GROWTH_ROWS)
    return [shown[round(at * (len(shown) - 1) / max(1, steps - 1))] for at in range(steps)]


def _structure(diff: TraceDiff) -> Listing:
    columns = (
        Column("what"),
        Column("A"),
        Column("B"),
        Column("first in", name=True),
        Column("entry", name=True),
        Column("batch", "right"),
        Column("entries", "right"),
    )
    rows = [
        [
            one.what,
            one.a,
            one.b,
            one.module_name or "(root)",
            one.context,
            "" if one.first_batch is None else str(one.first_batch),
            str(one.entries or ""),
        ]
        for one in diff.structure
    ]
    return "Structure", columns, rows


def _only_in(title: str, items: Sequence[OnlyIn]) -> Listing:
    columns = (
        Column("rank", "right"),
        Column("module", name=True),
        Column("entry", name=True),
        Column("batches"),
        Column("frames", "right"),
        Column("why"),
    )
    rows = [
        [
            str(one.rank),
            "(all)" if one.module_name is None else one.module_name or "(root)",
            one.context or "",
            _batches(one),
            str(one.frames),
            _REASONS[one.reason],
        ]
        for one in sorted(items, key=lambda one: one.reason != "structure")
    ]
    return title, columns, rows


def _batches(one: OnlyIn) -> str:
    if one.first_batch is None or one.last_batch is None:
        return "(all)"
    span = str(one.first_batch) if one.first_batch == one.last_batch else f"{one.first_batch} to {one.last_batch}"
    partly = one.batches is not None and one.batches != one.last_batch - one.first_batch + 1
    return f"{one.batches} of {span}" if partly else span


def _matches(diff: TraceDiff) -> Listing:
    columns = (Column("module of A", name=True), Column("module of B", name=True), Column("matched by"))
    rows = [[one.a or "(root)", one.b or "(root)", _PASSES[one.matched_by]] for one in diff.alignment.weaker]
    return "Modules matched by less than name and class", columns, rows
