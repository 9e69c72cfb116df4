"""What is laid beside what, decided before any row is compared: ranks, batch numbers, modules."""

from __future__ import annotations

import functools
import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from overflow_analyzer.diff.align.modules import ModuleMatches, match_modules
from overflow_analyzer.diff.align.offset import find_offset
from overflow_analyzer.diff.align.sequence import SEQUENCE_COLUMNS, call_signatures, match_renamed
from overflow_analyzer.diff.align.wrappers import strip_wrappers
from overflow_analyzer.diff.stream.reading import SET_ASIDE, shared_names
from overflow_analyzer.errors import NotRecordedError
from overflow_analyzer.format.arrays import numbers, plain
from overflow_analyzer.format.patterns import regular_expression

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from overflow_analyzer.diff.align.renames import Rename
    from overflow_analyzer.diff.stream.reading import SharedNames
    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.rank_trace import RankTrace


_CLASS_COLUMNS: Final = ["module_name", "module_class"]
RankPair = tuple["RankTrace", "RankTrace"]

_MOST_BATCHES_TO_SEQUENCE: Final = 4


@dataclass(frozen=True)
class Plan:
    """Who is whose counterpart."""

    ranks: tuple[RankPair, ...]
    offset: int
    offset_found: bool
    matches: ModuleMatches
    classes_a: Mapping[str, str]
    classes_b: Mapping[str, str]
    codes_a: Mapping[str, int]
    codes_b: Mapping[str, int]
    names: SharedNames = field(repr=False)

    def select(self, pattern: str) -> frozenset[int]:
        """Return the codes of the modules whose name, in A or B, with or without wrappers, matches a pattern.

        Args:
            pattern: ``*`` stands for any characters, ``?`` for one; brackets are literal.

        Raises:
            NotRecordedError: There is none.
        """
        expression = re.compile(regular_expression(pattern), re.DOTALL)
        found = frozenset(
            code
            for codes in (self.codes_a, self.codes_b)
            for name, code in codes.items()
            if code != SET_ASIDE and (expression.fullmatch(name) or expression.fullmatch(strip_wrappers(name)))
        )
        if not found:
            raise NotRecordedError(f"no module in either trace is called {pattern}; * stands for any characters")
        return found


def make_plan(
    a: Trace, b: Trace, *, offset: int | None, renames: Sequence[Rename], rank: int | None, thorough: bool
) -> Plan:
    """Decide what is laid beside what.

    Args:
        a: One trace.
        b: The other.
        offset: Batch N of A is batch N + offset of B; None to find it from the figures.
        renames: The user's rules about modules' names.
        rank: The only rank wanted.
        thorough: Whether to look for modules in all of both traces. A model's modules are nearly always all in the
            first row groups, so without it only some are read, and who reads on may meet a module without a code.

    Raises:
        NotRecordedError: Neither trace has that rank.
        DamagedTraceError: A row group cannot be read.
    """
    ranks = _pair_ranks(a, b, rank)
    found = find_offset(*ranks[0]) if offset is None and ranks else None
    shift = offset if offset is not None else found or 0
    classes_a = _classes((one for one, _ in ranks), thorough=thorough)
    classes_b = _classes((other for _, other in ranks), thorough=thorough)
    sequencer = functools.partial(_match_sequences, ranks, shift)
    matches = match_modules(classes_a, classes_b, renames, sequencer)
    names = [pair.a for pair in matches.pairs] + [*matches.only_a, *matches.only_b]
    only_b_from = len(names) - len(matches.only_b)
    codes_a = {name: code for code, name in enumerate(names[:only_b_from])}
    codes_b = {pair.b: code for code, pair in enumerate(matches.pairs)}
    codes_b |= {name: code for code, name in enumerate(matches.only_b, only_b_from)}
    return Plan(
        ranks=ranks,
        offset=shift,
        offset_found=offset is None and bool(found),
        matches=matches,
        classes_a=classes_a,
        classes_b=classes_b,
        codes_a=codes_a | dict.fromkeys(matches.wrappers_a, SET_ASIDE),
        codes_b=codes_b | dict.fromkeys(matches.wrappers_b, SET_ASIDE),
        names=shared_names(names),
    )


def _pair_ranks(a: Trace, b: Trace, wanted: int | None) -> tuple[RankPair, ...]:
    in_a, in_b = {one.rank: one for one in a.ranks}, {one.rank: one for one in b.ranks}
    if wanted is not None and wanted not in in_a and wanted not in in_b:
        raise NotRecordedError(f"neither trace has a rank {wanted}")
    if wanted is None and len(in_a) == len(in_b) == 1:
        return ((a.ranks[0], b.ranks[0]),)
    common = [rank for rank in in_a if rank in in_b and wanted in (None, rank)]
    return tuple((in_a[rank], in_b[rank]) for rank in common)


def _classes(ranks: Iterable[RankTrace], *, thorough: bool) -> dict[str, str]:
    """Return name -> class of the modules, in order of their first call: of all, or of some row groups."""
    found: dict[str, str] = {}
    for rank in ranks:
        groups = rank.row_groups
        some = {0, 1, len(groups) // 2, len(groups) - 2, len(groups) - 1}
        chosen = [group for at, group in enumerate(groups) if thorough or at in some]
        pieces = (piece for group in chosen for piece in rank.pieces(group, _CLASS_COLUMNS))
        for table in itertools.chain(pieces, [rank.ring]):
            for batch in table.to_batches():
                _add_classes(batch["module_name"], batch["module_class"], found)
    return found


def _add_classes(names: pa.DictionaryArray, classes: pa.DictionaryArray, found: dict[str, str]) -> None:
    # A row group's dictionary has its names: rows are looked at only where one of them is new.
    fresh = [code for code, name in enumerate(names.dictionary.to_pylist()) if name not in found]
    if not fresh:
        return
    codes, _ = plain(names.indices)
    first = np.full(len(names.dictionary), -1)
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # of several assigned to one place, the last stays
    for row in sorted(row for row in first[fresh].tolist() if row >= 0):
        found.setdefault(names[row].as_py(), classes[row].as_py())


def _match_sequences(
    ranks: Sequence[RankPair],
    offset: int,
    matched: Mapping[str, str],
    free_a: Collection[str],
    free_b: Collection[str],
) -> dict[str, str]:
    """Match renamed modules by the calls of batches that both runs have, the first few that name any of them."""
    found: dict[str, str] = {}
    for a, b in ranks:
        for batch in itertools.islice(_common_batches(a, b, offset), _MOST_BATCHES_TO_SEQUENCE):
            left_a = [name for name in free_a if name not in found]
            left_b = set(free_b) - set(found.values())
            if left_a and left_b:
                calls_a = call_signatures(a.tables(SEQUENCE_COLUMNS, batch=batch))
                calls_b = call_signatures(b.tables(SEQUENCE_COLUMNS, batch=batch + offset))
                found |= match_renamed(calls_a, calls_b, {**matched, **found}, left_a, left_b)
    return found


def _common_batches(a: RankTrace, b: RankTrace, offset: int) -> Iterator[int]:
    """Yield the batches that both have, in A's numbers; either is read only as far as is asked."""
    batches_b = _batches(b)
    other = next(batches_b, None)
    for batch in _batches(a):
        while other is not None and other < batch + offset:
            other = next(batches_b, None)
        if other == batch + offset:
            yield batch


def _batches(rank: RankTrace) -> Iterator[int]:
    last = -1
    for table in rank.tables(["batch_number"]):
        for batch in np.unique(numbers(table, "batch_number")).tolist():
            if batch > last:
                last = batch
                yield batch
