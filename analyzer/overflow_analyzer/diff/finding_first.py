"""The first divergence of one rank, watched for while the regions go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.model import Divergence
from overflow_analyzer.diff.stream.block import UNKNOWN
from overflow_analyzer.format.columns import COUNT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overflow_analyzer.diff.collect.coverage import Unmatched
    from overflow_analyzer.diff.compare.differences import Pairs
    from overflow_analyzer.diff.model import DivergenceKind, Side
    from overflow_analyzer.diff.naming import Naming
    from overflow_analyzer.diff.stream.block import Block


_KINDS: Final[tuple[DivergenceKind, ...]] = ("structure", "weight", "input", "module")
"""In the order in which they explain a frame: a frame whose weights differ needs no look at its inputs."""
_STRUCTURE, _WEIGHT, _INPUT, _MODULE = range(len(_KINDS))
_KIND_OF_ROLE: Final = {
    "weight": _WEIGHT,
    "buffer": _WEIGHT,
    "optimizer_state": _WEIGHT,
    "input": _INPUT,
    "grad_output": _INPUT,
    "value": _INPUT,
}
_STATE_ROLES: Final = ("weight", "buffer")
_GRADIENT_ROLES: Final = ("grad_input", "weight_grad")
_OPERAND_KINDS: Final = (_WEIGHT, _INPUT)
_STRUCTURE_REASON: Final = 0
_NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Found:
    """A divergence, and where to look at it."""

    order: tuple[Any, ...]
    """Compares as the order of execution does, over all ranks."""
    divergence: Divergence
    frames: Mapping[Side, int]
    """The frames of A and of B to look at; -1 where there is none."""
    coarseness: float
    """Of what had been compared before it."""


class _Before(NamedTuple):
    """What had been compared, in the fields of a ``Divergence``."""

    agreed_before: int = 0
    weights_before: int = 0
    exact_before: bool = True
    weights_exact_before: bool = True


class FirstOfRank:
    """Finds the first pair, or row without counterpart, that differs, and the first that is inf or nan in one run only.

    Args:
        ranks: Of A and of B.
        naming: Its names also break ties, in a way that does not depend on which trace is called A.
        recorded: Roles that both runs recorded.
    """

    def __init__(self, ranks: tuple[int, int], naming: Naming, recorded: frozenset[int]) -> None:
        self._ranks = ranks
        self._naming = naming
        self._recorded = recorded
        self._state_roles = [naming.names["role"].code(role) for role in _STATE_ROLES]
        self.first: Found | None = None
        self.first_nonfinite: Found | None = None
        self._before = _Before()
        self._last_batches = np.full(len(naming.names["module"].names), _NEVER)
        """By the code of a module: the last batch in which weights or buffers of it were compared."""

    def look(self, pairs: Pairs, unmatched: Iterable[Unmatched], coarseness: float) -> None:
        """Look at one region's pairs, in order, and at its rows without a counterpart."""
        if self.first is None:
            found = [self._in_pairs(pairs, coarseness, nonfinite=False)]
            found += [self._among(one, pairs, coarseness) for one in unmatched]
            self.first = earliest(found)
        if self.first_nonfinite is None:
            self.first_nonfinite = self._in_pairs(pairs, coarseness, nonfinite=True)
            self._before = self._up_to(pairs, len(pairs.a))
            states = np.flatnonzero(self._is_state(pairs.a["role"]))
            # Of several batches of a module, the last stays.
            self._last_batches[pairs.a["module"][states]] = pairs.a["batch"][states]

    def _up_to(self, pairs: Pairs, row: int) -> _Before:
        """Return what had been compared before a row of the region."""
        is_state = self._is_state(pairs.a["role"][:row])
        before, rows = self._before, pairs.differences.rows
        differing = rows[rows < row] if before.weights_exact_before else rows[:0]
        return _Before(
            before.agreed_before + row,
            before.weights_before + int(np.count_nonzero(is_state)),
            before.exact_before and not len(differing),
            before.weights_exact_before and not is_state[differing].any(),
        )

    def _is_state(self, roles: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (roles == self._state_roles[0]) | (roles == self._state_roles[1])
        return found

    def _in_pairs(self, pairs: Pairs, coarseness: float, *, nonfinite: bool) -> Found | None:
        a, b, differences = pairs.a, pairs.b, pairs.differences
        candidates = np.flatnonzero(differences.nonfinite if nonfinite else differences.beyond)
        if not len(candidates):
            return None
        rows = differences.rows[candidates]
        first = rows[0]
        # A frame is judged as a whole: what explains it may stand after what was met first.
        in_frame = candidates[(a["frame"][rows] == a["frame"][first]) & (a["batch"][rows] == a["batch"][first])]
        kinds = [
            _STRUCTURE
            if differences.reshaped[at] and not nonfinite
            else self._kind_of_role(a, int(differences.rows[at]))
            for at in in_frame
        ]
        at = int(in_frame[int(np.argmin(kinds))])
        frame = np.flatnonzero((a["frame"] == a["frame"][first]) & (a["batch"] == a["batch"][first]))
        row_a, row_b = (_row(block, int(differences.rows[at])) for block in (a, b))
        operands = frame[[self._kind_of_role(a, one) in _OPERAND_KINDS for one in frame.tolist()]]
        nonfinite_a, nonfinite_b = (sum(max(0, row[name]) for name in COUNT_COLUMNS) for row in (row_a, row_b))
        divergence = self._divergence(
            row_a,
            self._up_to(pairs, int(frame[0])),
            kind=_KINDS[min(kinds)],
            frame_number_a=row_a["frame"],
            frame_number_b=row_b["frame"],
            largest=self._naming.figure(pairs, at),
            nonfinite_in=("a" if nonfinite_a > nonfinite_b else "b") if differences.nonfinite[at] else None,
            compared_batch_before=self._last_batch_before(a, int(frame[0])),
            at_start=max(row_a["step"], row_b["step"]) == row_a["batch"] == row_a["call"] == self._naming.offset == 0,
            operands_exact=not np.isin(operands, differences.rows).any(),
            operands_unseen=self._unseen(a, b, operands, row_a),
        )
        order = self._order(row_a, row_a["in_batch"] + row_b["in_batch"], min(kinds))
        return Found(order, divergence, {"a": row_a["frame"], "b": row_b["frame"]}, coarseness)

    def _kind_of_role(self, a: Block, row: int) -> int:
        return _KIND_OF_ROLE.get(self._naming.name("role", a["role"][row]), _MODULE)

    def _last_batch_before(self, a: Block, row: int) -> int | None:
        """Return the last batch before a row's in which weights or buffers of its module were compared."""
        module, batch = int(a["module"][row]), int(a["batch"][row])
        earlier = (a["module"][:row] == module) & (a["batch"][:row] < batch) & self._is_state(a["role"][:row])
        last = int(a["batch"][:row][earlier][-1] if earlier.any() else self._last_batches[module])
        return None if last in (_NEVER, batch) else last

    def _unseen(self, a: Block, b: Block, operands: npt.NDArray[np.int64], row: dict[str, Any]) -> tuple[str, ...]:
        """Return the roles of what a frame computes from that were not recorded, or not measured, in both runs."""
        backward = self._naming.name("role", row["role"]) in _GRADIENT_ROLES
        unmeasured = (a["abs_max"][operands] == UNKNOWN) != (b["abs_max"][operands] == UNKNOWN)
        seen = self._recorded.difference(a["role"][operands[unmeasured]].tolist())
        needed = ("grad_output",) if backward else ("input", "weight")
        return tuple(role for role in needed if self._naming.names["role"].code(role) not in seen)

    def _among(self, unmatched: Unmatched, pairs: Pairs, coarseness: float) -> Found | None:
        candidates = np.flatnonzero(unmatched.reason == _STRUCTURE_REASON)
        if not len(candidates):
            return None
        a, batches = pairs.a, unmatched.rows["batch"]
        batch = batches[candidates].min()
        candidates = candidates[batches[candidates] == batch]
        place = unmatched.position[candidates].min()
        candidates = candidates[unmatched.position[candidates] == place]
        rows = {at: _row(unmatched.rows, at) for at in candidates.tolist()}
        orders = {at: self._order(row, float(place), _STRUCTURE) for at, row in rows.items()}
        at = min(orders, key=orders.__getitem__)
        row, side = rows[at], unmatched.side
        earlier = (a["batch"] < batch) | ((a["batch"] == batch) & (a["in_batch"] + pairs.b["in_batch"] < place))
        divergence = self._divergence(
            row,
            self._up_to(pairs, int(earlier.sum())),
            kind="structure",
            frame_number_a=row["frame"] if side == "a" else None,
            frame_number_b=row["frame"] if side == "b" else None,
            largest=None,
            only_in=side,
            at_start=row["batch"] == row["call"] == self._naming.offset == 0,
            **self._of_whole_frame(row, side) if unmatched.whole_frame[at] else {},
        )
        beside: Side = "b" if side == "a" else "a"
        return Found(orders[at], divergence, {side: row["frame"], beside: int(unmatched.beside[at])}, coarseness)

    def _of_whole_frame(self, row: dict[str, Any], side: Side) -> dict[str, Any]:
        """Return what is said of a frame, and not of one entry; the outermost module around it that is only there."""
        parts = self._naming.module(row["module"]).split(".")
        around = [".".join(parts[:count]) for count in range(1, len(parts))]
        part_of = next((one for one in around if one in self._naming.only[side]), None)
        return {"role": "", "context": "", "part_of": part_of}

    def _divergence(self, row: dict[str, Any], before: _Before, **others: Any) -> Divergence:
        """Make a divergence of its row: A's, or that of the side that has it."""
        naming, (rank, rank_b) = self._naming, self._ranks
        name, name_b, module_class = naming.module_names(row["module"])
        of_row = {
            "rank": rank,
            "rank_b": rank_b,
            "batch_number": row["batch"],
            "batch_number_b": row["batch"] + naming.offset,
            "module_name": name,
            "module_name_b": name_b,
            "module_class": module_class,
            "role": naming.name("role", row["role"]),
            "context": naming.name("context", row["context"]),
            "call_index": row["call"],
        }
        return Divergence(**of_row | before._asdict() | others)

    def _order(self, row: dict[str, Any], position: float, kind: int) -> tuple[Any, ...]:
        names = [self._naming.name(name, row[name]) for name in ("role", "context")]
        return (row["batch"], position, kind, self._naming.module(row["module"]), *names, self._ranks[0])


def earliest(found: Iterable[Found | None]) -> Found | None:
    """Return the first in order of execution."""
    return min((one for one in found if one is not None), key=lambda one: one.order, default=None)


def _row(rows: Block, at: int) -> dict[str, Any]:
    return {name: column[at].item() for name, column in rows.columns.items()}
