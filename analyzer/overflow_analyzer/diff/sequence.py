"""Renamed modules: in one batch of each run, what has the same class and shapes at the same place is the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    import pyarrow as pa

__all__ = ["SEQUENCE_COLUMNS", "CallSignature", "call_signatures", "match_renamed"]

SEQUENCE_COLUMNS = ("frame_number", "module_name", "module_class", "role", "shape")


@dataclass(frozen=True)
class CallSignature:
    """One call of a module, by what does not depend on the module's name."""

    module_name: str
    module_class: str
    weights: tuple[Hashable, ...]
    """Shapes of weights and buffers."""
    values: tuple[Hashable, ...]
    """Role and shape of everything else."""


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
        if left_a and left_b:
            renamed |= _matched_once(a, b, anchors=anchors, free_a=left_a, free_b=left_b, key=key)
    return renamed


def _matched_once(
    a: Sequence[CallSignature],
    b: Sequence[CallSignature],
    *,
    anchors: Mapping[str, str],
    free_a: Collection[str],
    free_b: Collection[str],
    key: Callable[[CallSignature], Hashable],
) -> dict[str, str]:
    names_b = set(anchors.values())
    calls_a = [call for call in a if call.module_name in anchors or call.module_name in free_a]
    calls_b = [call for call in b if call.module_name in names_b or call.module_name in free_b]
    elements_a = [anchors.get(call.module_name, (call.module_class, key(call))) for call in calls_a]
    elements_b = [
        call.module_name if call.module_name in names_b else (call.module_class, key(call)) for call in calls_b
    ]
    found: dict[str, str] = {}
    used: set[str] = set()
    for block in SequenceMatcher(None, elements_a, elements_b, autojunk=False).get_matching_blocks():
        for one, other in zip(calls_a[block.a :][: block.size], calls_b[block.b :][: block.size], strict=True):
            unused = one.module_name not in found and other.module_name not in used
            if one.module_name in free_a and other.module_name in free_b and unused:
                found[one.module_name] = other.module_name
                used.add(other.module_name)
    return found
