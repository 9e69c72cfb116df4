"""From codes back to names and values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overflow_analyzer.diff.compare.differences import COMPARED_FIGURES
from overflow_analyzer.diff.model import FigureDifference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overflow_analyzer.diff.align.plan import Plan
    from overflow_analyzer.diff.align.vocabulary import Shapes
    from overflow_analyzer.diff.compare.differences import Pairs
    from overflow_analyzer.diff.model import Side


class Naming:
    """What the codes of one comparison stand for.

    Args:
        plan: Of the comparison.
        shapes: By side, what the column ``shape`` stands for.
    """

    def __init__(self, plan: Plan, shapes: Mapping[Side, Shapes]) -> None:
        self.names = plan.names
        self.offset = plan.offset
        self.shapes = shapes
        self.only: Mapping[Side, frozenset[str]] = {
            "a": frozenset(plan.matches.only_a),
            "b": frozenset(plan.matches.only_b),
        }
        """Names of the modules that are only on a side."""
        self.classes = {code: plan.classes_b[name] for name, code in plan.codes_b.items()}
        """Code of a module -> its class, in A where A has it."""
        self.classes |= {code: plan.classes_a[name] for name, code in plan.codes_a.items()}
        self._names_b = {code: name for name, code in plan.codes_b.items()}

    def module(self, code: int, side: Side = "a") -> str:
        """Return a module's name on a side, or on the other where that side does not have it."""
        name = self.names["module"].names[code]
        return name if side == "a" else self._names_b.get(code, name)

    def module_names(self, code: int) -> tuple[str, str, str]:
        """Return a module's name in A, in B, and its class."""
        return self.module(code), self.module(code, "b"), self.classes.get(code, "")

    def name(self, column: str, code: int, side: Side = "a") -> str:
        """Return what a code of a column of names, or of shape, stands for."""
        if column == "shape":
            shape = self.shapes[side].shape(int(code))
            return "none" if shape is None else str(list(shape))
        return self.names[column].names[code]

    def figure(self, pairs: Pairs, at: int) -> FigureDifference:
        """Return what differs most in the ``at``-th difference of pairs."""
        differences = pairs.differences
        row, relative = int(differences.rows[at]), float(differences.relative[at])
        if differences.reshaped[at]:
            figure = "kind" if pairs.a["kind"][row] != pairs.b["kind"][row] else "shape"
        else:
            figure = COMPARED_FIGURES[differences.figure[at]] if relative > 0 else "dtype"
        a: Any = pairs.a[figure][row].item()
        b: Any = pairs.b[figure][row].item()
        if figure not in COMPARED_FIGURES:
            a, b = self.name(figure, a), self.name(figure, b, "b")
        epsilons, tolerated = float(differences.epsilons[at]), float(differences.tolerated_epsilons[at])
        return FigureDifference(figure, a, b, relative, epsilons, tolerated)
