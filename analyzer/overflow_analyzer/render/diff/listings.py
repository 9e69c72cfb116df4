"""The tables behind the answer: modules, growth, structure, what is only in one trace, how modules were matched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.render.diff.sentences import number_text, setting_text
from overflow_analyzer.text.tables import Column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_analyzer.diff import BatchGrowth, OnlyIn, SettingDifference, TraceDiff


Listing = tuple[str, tuple[Column, ...], Sequence[Any]]
"""Title, columns, a row an item."""

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
    tables: list[Listing] = [
        ("Modules that differ, most first", _modules(several_ranks=len(diff.alignment.ranks) > 1), diff.differences),
        ("Largest difference by batch", _GROWTH, list(_spread(diff.growth)) if diff.differences else []),
        ("Settings that differ", _SETTINGS, diff.settings),
        ("Structure", _STRUCTURE, diff.structure),
        ("Only in A", _ONLY_IN, sorted(diff.only_in_a, key=lambda one: one.reason != "structure")),
        ("Only in B", _ONLY_IN, sorted(diff.only_in_b, key=lambda one: one.reason != "structure")),
        ("Modules matched by less than name and class", _MATCHES, diff.alignment.weaker),
    ]
    return [table for table in tables if table[2]]


def _modules(*, several_ranks: bool) -> tuple[Column, ...]:
    def place(rank: int, batch: int) -> str:
        return f"rank {rank}, batch {batch}" if several_ranks else f"batch {batch}"

    return (
        Column("module", lambda one: one.module_name or "(root)", name=True),
        Column("began in", lambda one: place(one.first_rank, one.first_batch)),
        Column("entries", lambda one: str(one.entries), "right"),
        Column("largest in", lambda one: place(one.rank, one.batch_number)),
        Column("entry", lambda one: one.context, name=True),
        Column("figure", lambda one: one.largest.figure),
        Column("A", lambda one: number_text(one.largest.a), "right"),
        Column("B", lambda one: number_text(one.largest.b), "right"),
        Column("relative", lambda one: f"{one.largest.relative:.2g}", "right"),
        Column("epsilons", lambda one: f"{one.largest.epsilons:.3g}", "right"),
    )


_GROWTH: Final = (
    Column("rank", lambda one: str(one.rank), "right"),
    Column("batch", lambda one: str(one.batch_number), "right"),
    Column("relative", lambda one: f"{one.relative:.2g}", "right"),
    Column("epsilons", lambda one: f"{one.epsilons:.3g}", "right"),
    Column("entries", lambda one: str(one.entries), "right"),
)


def _spread(growth: Sequence[BatchGrowth]) -> Iterator[BatchGrowth]:
    """Yield a dozen batches of each rank, from the last that agrees to the last of all."""
    for rank in dict.fromkeys(one.rank for one in growth):
        points = [one for one in growth if one.rank == rank]
        first = next((at for at, one in enumerate(points) if one.epsilons > 0), 0)
        shown = points[max(0, first - 1) :]
        steps = min(len(shown), _MOST_GROWTH_ROWS)
        yield from (shown[round(at * (len(shown) - 1) / max(1, steps - 1))] for at in range(steps))


def _from_batch(one: SettingDifference) -> str:
    """Where a change was seen at a later look, it was made at any time since the look before."""
    return str(one.batch_number) if one.after is None else f"{one.after + 1} to {one.batch_number}"


_SETTINGS: Final = (
    Column("module", lambda one: one.module_name or "(root)", name=True),
    Column("class", lambda one: one.module_class, name=True),
    Column("setting", lambda one: one.setting, name=True),
    Column("A", lambda one: setting_text(one.a)),
    Column("B", lambda one: setting_text(one.b)),
    Column("from batch", _from_batch),
)
_STRUCTURE: Final = (
    Column("what", lambda one: one.what),
    Column("A", lambda one: one.a),
    Column("B", lambda one: one.b),
    Column("first in", lambda one: one.module_name or "(root)", name=True),
    Column("entry", lambda one: one.context, name=True),
    Column("batch", lambda one: "" if one.first_batch is None else str(one.first_batch), "right"),
    Column("entries", lambda one: str(one.entries or ""), "right"),
)


def _batches(one: OnlyIn) -> str:
    if one.first_batch is None or one.last_batch is None:
        return "(all)"
    span = str(one.first_batch) if one.first_batch == one.last_batch else f"{one.first_batch} to {one.last_batch}"
    partly = one.batches is not None and one.batches != one.last_batch - one.first_batch + 1
    return f"{one.batches} of {span}" if partly else span


_ONLY_IN: Final = (
    Column("rank", lambda one: str(one.rank), "right"),
    Column("module", lambda one: "(all)" if one.module_name is None else one.module_name or "(root)", name=True),
    Column("entry", lambda one: one.context or "", name=True),
    Column("batches", _batches),
    Column("frames", lambda one: str(one.frames), "right"),
    Column("why", lambda one: _REASONS[one.reason]),
)
_MATCHES: Final = (
    Column("module of A", lambda one: one.a or "(root)", name=True),
    Column("module of B", lambda one: one.b or "(root)", name=True),
    Column("matched by", lambda one: _PASSES[one.matched_by]),
)
