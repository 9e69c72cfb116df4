"""The first divergence of one rank, watched for while the regions go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.collect.ranking import PairedRow
from overflow_analyzer.diff.stream.block import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
_GRADIENT_ROLES: Final = ("grad_input", "weight_grad")
_OPERAND_KINDS: Final = (_WEIGHT, _INPUT)
_STRUCTURE_REASON: Final = 0
_NEVER: Final = np.iinfo(np.int64).min


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
    unmatched: dict[str, Any] | None
    """The row of the side that has it, where only one has."""
    beside: int
    """Then: frame_number, on the other side, of the last pair before it; -1 where there is none."""
    only_in: Side | None
    whole_frame: bool
    nonfinite: bool
    before: Before
    coarseness: float
    batch_before: int | None = None
    """The last batch before it in which weights or buffers of its module were compared."""
    step: int = 0
    """Optimizer steps before it, in the run that had taken more."""
    operands_exact: bool = True
    """Whether the inputs, weights and buffers of its frame are equal bit for bit."""
    operands_unseen: tuple[int, ...] = ()
    """Roles of what its frame computes from, as far as their figures were not compared."""

    @property
    def row(self) -> dict[str, Any]:
        """Its row: A's, or that of the side that has it."""
        row = self.unmatched if self.paired is None else self.paired.a
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
        recorded: Roles that both runs recorded.
    """

    def __init__(
        self, rank: int, modules: Vocabulary, roles: Vocabulary, contexts: Vocabulary, recorded: frozenset[int]
    ) -> None:
        self._rank = rank
        self._recorded = recorded
        self._names = {"module": modules, "role": roles, "context": contexts}
        self._state_roles = [roles.code(role) for role in _STATE_ROLES]
        self.first: Found | None = None
        self.first_nonfinite: Found | None = None
        self._before = Before()
        self._last_batches = np.full(len(modules.names), _NEVER)
        """By the code of a module: the last batch in which weights or buffers of it were compared."""

    def look(
        self,
        a: Block,
        b: Block,
        differences: Differences,
        unmatched: Iterable[tuple[Side, Unmatched]],
        coarseness: float,
    ) -> None:
        """Look at one region's pairs, in order, and at its rows without a counterpart."""
        if self.first is None:
            found = [self._in_pairs(a, b, differences, differences.beyond, coarseness=coarseness, kind=self._kind)]
            found += [
                self._among(side, rows, a=a, b=b, differences=differences, coarseness=coarseness)
                for side, rows in unmatched
            ]
            self.first = min((one for one in found if one is not None), key=lambda one: one.order, default=None)
        if self.first_nonfinite is None:
            self.first_nonfinite = self._in_pairs(
                a, b, differences, differences.nonfinite, coarseness=coarseness, kind=self._kind_of_difference
            )
            self._before = self._up_to(a, differences, len(a))
            states = np.flatnonzero(self._is_state(a["role"]))
            self._last_batches[a["module"][states]] = a["batch"][states]  # of several, the last stays

    def _up_to(self, a: Block, differences: Differences, row: int) -> Before:
        """Return what had been compared before a row of the region."""
        is_state = self._is_state(a["role"][:row])
        before = self._before
        differing = differences.rows[differences.rows < row] if before.weights_exact else differences.rows[:0]
        return Before(
            entries=before.entries + row,
            weights=before.weights + int(np.count_nonzero(is_state)),
            exact=before.exact and not len(differing),
            weights_exact=before.weights_exact and not is_state[differing].any(),
        )

    def _is_state(self, roles: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (roles == self._state_roles[0]) | (roles == self._state_roles[1])
        return found

    def _in_pairs(
        self,
        a: Block,
        b: Block,
        differences: Differences,
        which: npt.NDArray[np.bool_],
        *,
        coarseness: float,
        kind: Callable[[Block, Differences, int], int],
    ) -> Found | None:
        candidates = np.flatnonzero(which)
        if not len(candidates):
            return None
        rows = differences.rows[candidates]
        first = rows[0]
        # A frame is judged as a whole: what explains it may stand after what was met first.
        in_frame = candidates[(a["frame"][rows] == a["frame"][first]) & (a["batch"][rows] == a["batch"][first])]
        kinds = [kind(a, differences, at) for at in in_frame.tolist()]
        at = int(in_frame[int(np.argmin(kinds))])
        frame = np.flatnonzero((a["frame"] == a["frame"][first]) & (a["batch"] == a["batch"][first]))
        frame_start = int(frame[0])
        row = PairedRow.of(self._rank, a, b, differences, at)
        operands = frame[[self._kind_of_role(a, at) in _OPERAND_KINDS for at in frame.tolist()]]
        return Found(
            rank=self._rank,
            order=self._order(row.a["batch"], row.a["in_batch"] + row.b["in_batch"], min(kinds), row.a),
            kind=_KINDS[min(kinds)],
            paired=row,
            unmatched=None,
            beside=-1,
            only_in=None,
            whole_frame=False,
            nonfinite=bool(differences.nonfinite[at]),
            before=self._up_to(a, differences, frame_start),
            coarseness=coarseness,
            batch_before=self._last_batch_before(a, frame_start),
            step=max(row.a["step"], row.b["step"]),
            operands_exact=not np.isin(operands, differences.rows).any(),
            operands_unseen=self._unseen(a, b, operands, row),
        )

    def _kind(self, a: Block, differences: Differences, at: int) -> int:
        return _STRUCTURE if differences.reshaped[at] else self._kind_of_difference(a, differences, at)

    def _kind_of_difference(self, a: Block, differences: Differences, at: int) -> int:
        return self._kind_of_role(a, int(differences.rows[at]))

    def _kind_of_role(self, a: Block, row: int) -> int:
        return _KIND_OF_ROLE.get(self._names["role"].names[int(a["role"][row])], _MODULE)

    def _last_batch_before(self, a: Block, row: int) -> int | None:
        """Return the last batch before a row's in which weights or buffers of its module were compared."""
        module, batch = int(a["module"][row]), int(a["batch"][row])
        earlier = (a["module"][:row] == module) & (a["batch"][:row] < batch) & self._is_state(a["role"][:row])
        last = int(a["batch"][:row][earlier][-1] if earlier.any() else self._last_batches[module])
        return None if last in (_NEVER, batch) else last

    def _unseen(self, a: Block, b: Block, operands: npt.NDArray[np.int64], found: PairedRow) -> tuple[int, ...]:
        """Return the roles of what a frame computes from that were not recorded, or not measured, in both runs."""
        names = self._names["role"]
        backward = names.names[found.a["role"]] in _GRADIENT_ROLES
        needed = [names.code(one) for one in (("grad_output",) if backward else ("input", "weight"))]
        unmeasured = (a["abs_max"][operands] == UNKNOWN) != (b["abs_max"][operands] == UNKNOWN)
        unmeasured_roles = set(a["role"][operands[unmeasured]].tolist())
        return tuple(one for one in needed if one not in self._recorded or one in unmeasured_roles)

    def _among(
        self, side: Side, unmatched: Unmatched, *, a: Block, b: Block, differences: Differences, coarseness: float
    ) -> Found | None:
        candidates = np.flatnonzero(unmatched.reason == _STRUCTURE_REASON)
        if not len(candidates):
            return None
        batches = unmatched.rows["batch"]
        batch = batches[candidates].min()
        candidates = candidates[batches[candidates] == batch]
        place = unmatched.position[candidates].min()
        candidates = candidates[unmatched.position[candidates] == place]
        earlier = (a["batch"] < batch) | ((a["batch"] == batch) & (a["in_batch"] + b["in_batch"] < place))
        before = self._up_to(a, differences, int(earlier.sum()))
        rows = [(self._row(unmatched.rows, at), at) for at in candidates.tolist()]
        found = [
            Found(
                rank=self._rank,
                order=self._order(row["batch"], float(place), _STRUCTURE, row),
                kind="structure",
                paired=None,
                unmatched=row,
                beside=int(unmatched.beside[at]),
                only_in=side,
                whole_frame=bool(unmatched.whole_frame[at]),
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
