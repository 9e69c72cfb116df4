"""The first divergence of one rank, watched for while the regions go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.collect.ranking import PairedRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overflow_analyzer.diff.align.vocabulary import Vocabulary
    from overflow_analyzer.diff.collect.coverage import Unmatched
    from overflow_analyzer.diff.compare.differences import Differences
    from overflow_analyzer.diff.model import DivergenceKind, Side
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
_STRUCTURE_REASON: Final = 0


@dataclass(frozen=True)
class Before:
    """What had been compared before a divergence."""

    entries: int = 0
    weights: int = 0
    exact: bool = True
    weights_exact: bool = True


@dataclass(frozen=True)
class Found:
    """A divergence in codes."""

    rank: int
    """Of A."""
    order: tuple[Any, ...]
    """Compares as the order of execution does, over all ranks."""
    kind: DivergenceKind
    paired: PairedRow | None
    alone: dict[str, Any] | None
    """The row of the side that has it, where only one has."""
    beside: int
    """Then: frame_number, on the other side, of the last pair before it; -1 where there is none."""
    only_in: Side | None
    whole_frame: bool
    nonfinite: bool
    before: Before
    coarseness: float

    @property
    def row(self) -> dict[str, Any]:
        """Its row: A's, or that of the side that has it."""
        row = self.alone if self.paired is None else self.paired.a
        if row is None:
            raise ValueError("a divergence is either a pair or a row without counterpart")
        return row

    @property
    def frames(self) -> tuple[int, int]:
        """The frames of A and of B to look at; -1 where there is none."""
        if self.paired is not None:
            return self.paired.a["frame"], self.paired.b["frame"]
        own = self.row["frame"]
        return (own, self.beside) if self.only_in == "a" else (self.beside, own)


class FirstOfRank:
    """Finds the first pair, or row without counterpart, that differs, and the first that is inf or nan in one run only.

    Args:
        rank: Of A.
        modules, roles, contexts: The names behind the columns, to break ties in a way that does not depend on which
            trace is called A.
    """

    def __init__(self, rank: int, modules: Vocabulary, roles: Vocabulary, contexts: Vocabulary) -> None:
        self._rank = rank
        self._names = {"module": modules, "role": roles, "context": contexts}
        self._state_roles = [roles.code(role) for role in _STATE_ROLES]
        self.first: Found | None = None
        self.first_nonfinite: Found | None = None
        self._before = Before()

    def look(
        self, a: Block, b: Block, differences: Differences, alone: Iterable[tuple[Side, Unmatched]], coarseness: float
    ) -> None:
        """Look at one region's pairs, in order, and at its rows without a counterpart."""
        if self.first is None:
            found = [self._in_pairs(a, b, differences, differences.beyond, coarseness)]
            found += [
                self._among(side, rows, a=a, b=b, differences=differences, coarseness=coarseness)
                for side, rows in alone
            ]
            self.first = min((one for one in found if one is not None), key=lambda one: one.order, default=None)
        if self.first_nonfinite is None:
            self.first_nonfinite = self._in_pairs(a, b, differences, differences.nonfinite, coarseness)
            self._before = self._up_to(a, differences, len(a))

    def _up_to(self, a: Block, differences: Differences, row: int) -> Before:
        """Return what had been compared before a row of the region."""
        roles = a["role"][:row]
        is_state = (roles == self._state_roles[0]) | (roles == self._state_roles[1])
        before = self._before
        differing = differences.rows[differences.rows < row] if before.weights_exact else differences.rows[:0]
        return Before(
            entries=before.entries + row,
            weights=before.weights + int(np.count_nonzero(is_state)),
            exact=before.exact and not len(differing),
            weights_exact=before.weights_exact and not is_state[differing].any(),
        )

    def _in_pairs(
        self, a: Block, b: Block, differences: Differences, which: npt.NDArray[np.bool_], coarseness: float
    ) -> Found | None:
        candidates = np.flatnonzero(which)
        if not len(candidates):
            return None
        rows = differences.rows[candidates]
        first = rows[0]
        # A frame is judged as a whole: what explains it may stand after what was met first.
        in_frame = candidates[(a["frame"][rows] == a["frame"][first]) & (a["batch"][rows] == a["batch"][first])]
        kinds = [self._kind(a, differences, at) for at in in_frame.tolist()]
        at = int(in_frame[int(np.argmin(kinds))])
        frame_start = int(np.argmax((a["frame"] == a["frame"][first]) & (a["batch"] == a["batch"][first])))
        row = PairedRow.of(self._rank, a, b, differences, at)
        return Found(
            rank=self._rank,
            order=self._order(row.a["batch"], row.a["in_batch"] + row.b["in_batch"], min(kinds), row.a),
            kind=_KINDS[min(kinds)],
            paired=row,
            alone=None,
            beside=-1,
            only_in=None,
            whole_frame=False,
            nonfinite=bool(differences.nonfinite[at]),
            before=self._up_to(a, differences, frame_start),
            coarseness=coarseness,
        )

    def _kind(self, a: Block, differences: Differences, at: int) -> int:
        if differences.reshaped[at]:
            return _STRUCTURE
        role = self._names["role"].names[int(a["role"][differences.rows[at]])]
        return _KIND_OF_ROLE.get(role, _MODULE)

    def _among(
        self, side: Side, alone: Unmatched, *, a: Block, b: Block, differences: Differences, coarseness: float
    ) -> Found | None:
        candidates = np.flatnonzero(alone.reason == _STRUCTURE_REASON)
        if not len(candidates):
            return None
        batches = alone.rows["batch"]
        batch = batches[candidates].min()
        candidates = candidates[batches[candidates] == batch]
        place = alone.position[candidates].min()
        candidates = candidates[alone.position[candidates] == place]
        earlier = (a["batch"] < batch) | ((a["batch"] == batch) & (a["in_batch"] + b["in_batch"] < place))
        before = self._up_to(a, differences, int(earlier.sum()))
        rows = [(self._row(alone.rows, at), at) for at in candidates.tolist()]
        found = [
            Found(
                rank=self._rank,
                order=self._order(row["batch"], float(place), _STRUCTURE, row),
                kind="structure",
                paired=None,
                alone=row,
                beside=int(alone.beside[at]),
                only_in=side,
                whole_frame=bool(alone.whole_frame[at]),
                nonfinite=False,
                before=before,
                coarseness=coarseness,
            )
            for row, at in rows
        ]
        return min(found, key=lambda one: one.order)

    @staticmethod
    def _row(rows: Block, at: int) -> dict[str, Any]:
        return {name: column[0].item() for name, column in rows.take(slice(at, at + 1)).columns.items()}

    def _order(self, batch: int, position: float, kind: int, row: dict[str, Any]) -> tuple[Any, ...]:
        names = [vocabulary.names[row[name]] for name, vocabulary in self._names.items()]
        return (batch, position, kind, *names, self._rank)
