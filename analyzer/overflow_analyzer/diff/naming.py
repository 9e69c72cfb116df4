"""From codes back to names and values: what was collected becomes the model's plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overflow_analyzer.diff.compare.differences import COMPARED_FIGURES
from overflow_analyzer.diff.model import (
    Divergence,
    FigureDifference,
    ModuleDifference,
    OnlyIn,
    StructureDifference,
)
from overflow_analyzer.format.columns import COUNT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from overflow_analyzer.diff.align.vocabulary import Shapes
    from overflow_analyzer.diff.collect.collecting import OtherValues, Tally, UnmatchedRows
    from overflow_analyzer.diff.collect.ranking import ModuleRanks, PairedRow
    from overflow_analyzer.diff.finding_first import Found
    from overflow_analyzer.diff.model import ModulePair, Reason
    from overflow_analyzer.diff.stream.reading import SharedNames


@dataclass(frozen=True)
class Naming:
    """What the codes of one comparison stand for."""

    names: SharedNames
    names_b: Mapping[int, str]
    """Code of a module -> its name in B, where B has it."""
    classes: Mapping[int, str]
    """Code of a module -> its class, in A where A has it."""
    shapes_a: Shapes
    shapes_b: Shapes
    offset: int

    def module(self, code: int) -> str:
        """Return a module's name, in A where A has it."""
        return self.names.modules.names[code]

    def module_b(self, code: int) -> str:
        """Return a module's name in B, or in A where B does not have it."""
        return self.names_b.get(code, self.module(code))

    def role(self, code: int) -> str:
        """Return a role, or nothing for -1."""
        return self.names.roles.names[code] if code >= 0 else ""

    def context(self, code: int) -> str:
        """Return a context, or nothing for -1."""
        return self.names.contexts.names[code] if code >= 0 else ""

    def divergence(self, found: Found, rank_b: int | None, only: Collection[str]) -> Divergence:
        """Return a divergence.

        Args:
            found: In codes.
            rank_b: The rank of B that was compared.
            only: Names of the modules that are only on its side.
        """
        row = found.row
        name = self.module(row["module"])
        return Divergence(
            rank=found.rank,
            rank_b=rank_b,
            batch_number=row["batch"],
            batch_number_b=row["batch"] + self.offset,
            module_name=name,
            module_name_b=self.module_b(row["module"]),
            module_class=self.classes.get(row["module"], ""),
            role="" if found.whole_frame else self.role(row["role"]),
            context="" if found.whole_frame else self.context(row["context"]),
            kind=found.kind,
            call_index=row["call"],
            frame_number_a=None if found.only_in == "b" else found.frames[0],
            frame_number_b=None if found.only_in == "a" else found.frames[1],
            largest=None if found.paired is None else self.figure(found.paired),
            only_in=found.only_in,
            nonfinite_in=None if found.paired is None or not found.nonfinite else self._nonfinite_side(found.paired),
            agreed_before=found.before.entries,
            weights_before=found.before.weights,
            exact_before=found.before.exact,
            weights_exact_before=found.before.weights_exact,
            compared_batch_before=found.batch_before,
            at_start=row["batch"] == row["batch"] + self.offset == row["call"] == found.step == 0,
            operands_exact=found.operands_exact,
            operands_unseen=tuple(self.role(one) for one in found.operands_unseen),
            part_of=_outermost(name, only) if found.whole_frame else None,
        )

    @staticmethod
    def _nonfinite_side(pair: PairedRow) -> Any:
        a, b = (sum(max(0, row[name]) for name in COUNT_COLUMNS) for row in (pair.a, pair.b))
        return "a" if a > b else "b"

    def figure(self, pair: PairedRow) -> FigureDifference:
        """Return what of a pair differs most."""
        name = self._figure_name(pair)
        if name in COMPARED_FIGURES:
            a, b = pair.a[name], pair.b[name]
        elif name == "shape":
            a, b = _shape(self.shapes_a, pair.a["shape"]), _shape(self.shapes_b, pair.b["shape"])
        else:
            names = self.names.kinds.names if name == "kind" else self.names.dtypes.names
            a, b = names[pair.a[name]], names[pair.b[name]]
        return FigureDifference(name, a, b, pair.relative, pair.epsilons, pair.tolerated_epsilons)

    @staticmethod
    def _figure_name(pair: PairedRow) -> str:
        if pair.reshaped:
            return "kind" if pair.a["kind"] != pair.b["kind"] else "shape"
        return COMPARED_FIGURES[pair.figure] if pair.relative > 0 else "dtype"

    def differences(self, ranks: ModuleRanks) -> tuple[ModuleDifference, ...]:
        """Return the modules' differences, largest first, then in order of when they began."""
        found = []
        for code, module in ranks.modules.items():
            worst, first = module.worst, module.first
            found.append(
                ModuleDifference(
                    module_name=self.module(code),
                    module_name_b=self.module_b(code),
                    module_class=self.classes.get(code, ""),
                    entries=module.entries,
                    rank=worst.rank,
                    batch_number=worst.a["batch"],
                    role=self.role(worst.a["role"]),
                    context=self.context(worst.a["context"]),
                    largest=self.figure(worst),
                    first_batch=first.a["batch"],
                    first_rank=first.rank,
                    first_role=self.role(first.a["role"]),
                    first_context=self.context(first.a["context"]),
                    last_batch=module.last_batch,
                )
            )
        return tuple(sorted(found, key=lambda one: (-one.largest.epsilons, one.first_batch, one.module_name)))

    def structure(
        self, values: OtherValues, pairs: Collection[ModulePair], a: Mapping[str, str], b: Mapping[str, str]
    ) -> tuple[StructureDifference, ...]:
        """Return the structural differences: classes, then shapes, kinds, dtypes, modes in order of batches.

        Args:
            values: Of paired rows.
            pairs: Of modules.
            a: Name -> class of A's modules.
            b: Of B's.
        """
        found = [
            StructureDifference("class", a[pair.a], b[pair.b], pair.a, "", "", None, 0)
            for pair in pairs
            if a[pair.a] != b[pair.b]
        ]
        for (what, a_code, b_code, _), where in values.pairs.items():
            a_value, b_value = self._value(what, a_code, self.shapes_a), self._value(what, b_code, self.shapes_b)
            found.append(
                StructureDifference(
                    what,
                    a_value,
                    b_value,
                    self.module(where.module),
                    self.role(where.role),
                    self.context(where.context),
                    where.first_batch,
                    where.entries,
                )
            )
        # In order of batches, and in one that does not depend on where regions were cut.
        return tuple(
            sorted(
                found,
                key=lambda one: (one.first_batch or 0, one.what != "class", one.module_name, one.context, one.what),
            )
        )

    def _value(self, what: str, code: int, shapes: Shapes) -> str:
        if what == "shape":
            return _shape(shapes, code)
        vocabulary = {"kind": self.names.kinds, "dtype": self.names.dtypes, "mode": self.names.phases}[what]
        return vocabulary.names[code] or "none"

    def only_in(self, rows: UnmatchedRows, rank: int, *, of_a: bool) -> list[OnlyIn]:
        """Return what one side's rank has alone."""
        return [self._only_in(key, tally, rank, of_a=of_a) for key, tally in rows.tallies.items()]

    def _only_in(self, key: tuple[Reason, int, int, int], tally: Tally, rank: int, *, of_a: bool) -> OnlyIn:
        reason, module, role, context = key
        shift = 0 if of_a else self.offset
        is_about_batches, is_about_frames = module < 0, role < 0
        name = self.module(module) if of_a else self.module_b(module)
        return OnlyIn(
            reason=reason,
            rank=rank,
            module_name=None if is_about_batches else name,
            module_class=None if is_about_batches else self.classes.get(module, ""),
            role=None if is_about_frames else self.role(role),
            context=None if is_about_frames else self.context(context),
            first_batch=tally.first_batch + shift,
            last_batch=tally.last_batch + shift,
            batches=tally.batches if is_about_batches else None,
            frames=tally.frames,
            entries=tally.entries,
        )


def _shape(shapes: Shapes, fingerprint: int) -> str:
    shape = shapes.shape(fingerprint)
    return "none" if shape is None else str(list(shape))


def _outermost(name: str, only: Collection[str]) -> str | None:
    """Return the outermost module around ``name`` that is only on its side; None where it is itself that."""
    parts = name.split(".")
    outer = [".".join(parts[:count]) for count in range(1, len(parts))]
    return next((one for one in outer if one in only), None)
