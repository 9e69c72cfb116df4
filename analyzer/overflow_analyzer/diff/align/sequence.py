"""Renamed modules: in one batch of each run, what has the same class and shapes at the same place is the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa


SEQUENCE_COLUMNS = ("frame_number", "frame_in_batch", "module_name", "module_class", "role", "shape")


@dataclass(frozen=True)
class CallSignature:
    """One call of a module, by what does not depend on the module's name."""

    module_name: str
    module_class: str
    weights: tuple[Hashable, ...]
    """Shapes of weights and buffers."""
    values: tuple[Hashable, ...]
    """Role and shape of everything else."""
    place: int = 0
    """Its frame_in_batch."""


def call_signatures(tables: Iterable[pa.Table]) -> list[CallSignature]:
    """Return the calls of one batch in order.

    Args:
        tables: With the columns frame_number, module_name, module_class, role and shape, in order.
    """
    rows = (row for table in tables for row in table.select(SEQUENCE_COLUMNS).to_pylist())
    return [_signature(list(group)) for _, group in itertools.groupby(rows, lambda row: row["frame_number"])]


def _signature(rows: list[dict[str, Any]]) -> CallSignature:
    shapes = [(row["role"], None if row["shape"] is None else tuple(row["shape"])) for row in rows]
    weights = tuple(one for one in shapes if one[0] in ("weight", "buffer"))
    return CallSignature(
        rows[0]["module_name"],
        rows[0]["module_class"],
        weights,
        tuple(one for one in shapes if one not in weights),
        rows[0]["frame_in_batch"],
    )


def match_renamed(
    a: Sequence[CallSignature],
    b: Sequence[CallSignature],
    matched: Mapping[str, str],
    free_a: Collection[str],
    free_b: Collection[str],
) -> dict[str, str]:
    """Match modules by the order of their calls.

    Args:
        a: One batch of A.
        b: The same batch of B.
        matched: Names of A and of B that are known to belong together; they hold the two sequences in place.
        free_a: Names of A still to match.
        free_b: Names of B still to match.

    Returns:
        Name in A -> name in B, no name twice. First all shapes must agree, then, where batches are of another size,
        those of the weights.
    """
    renamed: dict[str, str] = {}
    for key in (lambda call: (call.weights, call.values), lambda call: call.weights):
        anchors = {**matched, **renamed}
        left_a, left_b = set(free_a) - set(renamed), set(free_b) - set(renamed.values())
        for some_a, some_b in _between_anchors(a, b, anchors):
            here_a = [call for call in some_a if call.module_name in left_a]
            here_b = [call for call in some_b if call.module_name in left_b]
            for one, other in _matching_calls(here_a, here_b, key):
                if one not in renamed and other not in renamed.values():
                    renamed[one] = other
    return renamed


def _between_anchors(
    a: Sequence[CallSignature], b: Sequence[CallSignature], anchors: Mapping[str, str]
) -> Iterator[tuple[Sequence[CallSignature], Sequence[CallSignature]]]:
    """Yield the stretches of both between calls that are known to belong together.

    Where none is, both must begin with their batch: of two windows that do not meet nothing can be told.
    """
    names_b = set(anchors.values())
    at_a = [at for at, call in enumerate(a) if call.module_name in anchors]
    at_b = [at for at, call in enumerate(b) if call.module_name in names_b]
    known = [anchors[a[at].module_name] for at in at_a], [b[at].module_name for at in at_b]
    begin_alike = bool(a) and bool(b) and a[0].place == b[0].place == 0
    last_a, last_b = -1, -1
    for block in SequenceMatcher(None, *known, autojunk=False).get_matching_blocks():
        for step in range(block.size):
            next_a, next_b = at_a[block.a + step], at_b[block.b + step]
            yield a[last_a + 1 : next_a], b[last_b + 1 : next_b]
            last_a, last_b = next_a, next_b
    if begin_alike or last_a >= 0:
        yield a[last_a + 1 :], b[last_b + 1 :]


def _matching_calls(
    a: Sequence[CallSignature], b: Sequence[CallSignature], key: Callable[[CallSignature], Hashable]
) -> Iterator[tuple[str, str]]:
    """Yield the names of calls of one class and one key, in an order that both have."""
    elements_a, elements_b = ([(call.module_class, key(call)) for call in calls] for calls in (a, b))
    for block in SequenceMatcher(None, elements_a, elements_b, autojunk=False).get_matching_blocks():
        for step in range(block.size):
            yield a[block.a + step].module_name, b[block.b + step].module_name
