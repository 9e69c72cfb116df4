"""What a comparison of two traces says: plain values, ready to be rendered or read by a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from overflow_analyzer.diff.compare.tolerance import Tolerance
    from overflow_analyzer.format.frames import Frame


DivergenceKind = Literal["weight", "input", "module", "structure"]
"""Why the first differing frame differs: its weights do, its inputs do, neither does and so the module itself does, or
the runs have no such frame, value or shape in common."""
Pass = Literal["exact", "wrapper", "map", "sequence", "class"]
"""How two modules were matched, strongest first but for ``map``, which is asked first of all because the user said so:
same name and class; same name without wrappers; a rule; same class and shapes at the same place of a batch; same name
alone."""
Reason = Literal["structure", "batch", "window", "recompute", "role", "rank"]
"""Why something is in one trace alone. ``structure``: the other run was recorded there and did not have it. The others
are matters of what was recorded: a batch, frames of a batch, recomputed frames, a role, a rank."""
Side = Literal["a", "b"]


@dataclass(frozen=True)
class RunDifference:
    """Something about how the runs were started that is not the same."""

    what: Literal[
        "command", "model", "ranks", "option", "version", "device", "optimizer", "seed", "dtype", "environment"
    ]
    name: str
    """Which option, version, default of an optimizer, variable or choice beside the seed; empty for the others."""
    a: Any
    """As ``RunInfo`` has it; None where A does not have it."""
    b: Any


@dataclass(frozen=True)
class SettingDifference:
    """A setting of one module that is not the same."""

    module_name: str
    """In A."""
    module_name_b: str
    module_class: str
    setting: str
    """Its name, as eps; class, parameters or training; empty for a value that ``extra_repr`` does not name."""
    a: str | None
    """None where A does not have it."""
    b: str | None
    batch_number: int
    """The first batch in which it was seen to differ, in A's numbers."""
    after: int | None
    """The last batch in which it was seen to agree; None where it differs from the first."""


@dataclass(frozen=True)
class FigureDifference:
    """The figure of one entry that differs most."""

    figure: str
    """A column of the trace: abs_max, nan_count, ..., or "shape", "kind", "dtype" with their names as values."""
    a: float | int | str | None
    b: float | int | str | None
    relative: float
    """Relative to the larger of the two (abs_min: to the tensor's largest finite magnitude); inf where one is nan or
    infinite and the other is not."""
    epsilons: float
    """The same in epsilons of the coarser dtype (of float64's for integers)."""
    tolerated_epsilons: float
    """The epsilons that would have been tolerated as rounding."""


@dataclass(frozen=True)
class Divergence:
    """One entry in which the runs differ, with where it stands in both."""

    rank: int
    """Of A."""
    batch_number: int
    """In A's numbers; for something only in B, the same batch in A's numbers."""
    module_name: str
    """In A; for something only in B, in B."""
    module_class: str
    role: str
    """Empty where a whole frame is only on one side; so is ``context``."""
    context: str
    kind: DivergenceKind
    call_index: int
    batch_number_b: int
    module_name_b: str
    frame_number_a: int | None
    """None where A does not have it."""
    frame_number_b: int | None
    largest: FigureDifference | None
    """None where the entry is only on one side."""
    only_in: Side | None = None
    nonfinite_in: Side | None = None
    """The run that has an inf or nan here while the other has none."""
    rank_b: int | None = None
    agreed_before: int = 0
    """Entries of this rank that were compared before it."""
    weights_before: int = 0
    """Weights and buffers among them."""
    exact_before: bool = True
    """Whether all of them were equal bit for bit."""
    weights_exact_before: bool = True
    """Whether the weights and buffers were."""
    compared_batch_before: int | None = None
    """The last batch before it in which weights or buffers of its module were compared, in A's numbers."""
    at_start: bool = False
    """Whether it stands in batch 0 of both runs, before any optimizer step and any second call: nothing that the
    recorder saw can have changed a weight or buffer."""
    operands_exact: bool = True
    """Whether the inputs, weights and buffers that were compared in its frame are equal bit for bit."""
    operands_unseen: tuple[str, ...] = ()
    """Roles of what its frame computes from, as far as their figures were not compared: input, weight, grad_output."""
    part_of: str | None = None
    """The outermost module around it that is only on that side too."""
    settings: tuple[SettingDifference, ...] = ()
    """Settings of the module that differ, or may have differed by then."""


@dataclass(frozen=True)
class ModuleDifference:
    """The differences of one module's entries."""

    module_name: str
    module_name_b: str
    module_class: str
    entries: int
    """Entries that differ by more than is tolerated, in all batches and ranks."""
    rank: int
    """Of the entry that differs most, and so the next four."""
    batch_number: int
    role: str
    context: str
    largest: FigureDifference
    first_batch: int
    """When it began."""
    first_rank: int
    first_role: str
    first_context: str
    last_batch: int


@dataclass(frozen=True)
class BatchGrowth:
    """The largest difference in one batch, tolerated ones included."""

    rank: int
    batch_number: int
    relative: float
    epsilons: float
    entries: int
    """Entries that differ by more than is tolerated."""


@dataclass(frozen=True)
class StructureDifference:
    """A shape, kind, dtype, mode or class that differs in B.

    Dtypes, modes and classes alone do not make runs differ; dtypes do where the comparison is exact.
    """

    what: Literal["shape", "kind", "dtype", "mode", "class"]
    a: str
    b: str
    module_name: str
    """The first module where it is so."""
    role: str
    context: str
    first_batch: int | None
    entries: int
    """In all, over all modules for a dtype or mode."""


@dataclass(frozen=True)
class OnlyIn:
    """Something that only one trace holds."""

    reason: Reason
    rank: int
    module_name: str | None
    """None where it is about whole ranks or batches."""
    module_class: str | None
    role: str | None
    """None where whole frames are meant; so is ``context``."""
    context: str | None
    first_batch: int | None
    """In the numbers of the trace that has it."""
    last_batch: int | None
    batches: int | None
    """How many batches, where it is about whole ones."""
    frames: int
    entries: int


@dataclass(frozen=True)
class ModulePair:
    """Two modules that were matched."""

    a: str
    b: str
    matched_by: Pass


@dataclass(frozen=True)
class Alignment:
    """How the entries of A and B were matched."""

    ranks: tuple[tuple[int, int], ...]
    """Ranks of A and of B that were compared."""
    offset: int
    """Batch N of A is batch N + offset of B."""
    offset_found: bool
    """Whether the offset was found from the figures rather than given."""
    modules: int
    """The number of matched modules."""
    weaker: tuple[ModulePair, ...]
    """The modules that match by less than name and class."""
    wrappers_a: tuple[str, ...]
    """Wrapper modules of A that B does not have: their frames repeat the wrapped module's and are not compared."""
    wrappers_b: tuple[str, ...]


@dataclass(frozen=True)
class Compared:
    """The numbers of what was compared."""

    entries: int
    frames: int
    batches: int
    differing: int
    """Entries that differ by more than is tolerated."""
    tolerated: int
    """Entries that differ by less."""


@dataclass(frozen=True)
class FramePair:
    """A frame of each run, side by side."""

    a: Frame | None
    b: Frame | None
    differing: frozenset[tuple[str, str]] = frozenset()
    """Role and context of the entries that differ by more than is tolerated."""


@dataclass(frozen=True)
class TraceDiff:
    """The differences of two traces."""

    same: bool
    """Whether something was compared and nothing differs. What only one trace recorded does not count."""
    first_divergence: Divergence | None
    """The first entry, in order of execution, that is inf or nan in one run only; else the first that differs."""
    first_difference: Divergence | None
    """The first entry that differs, finite or not. The fault may have begun there."""
    differences: tuple[ModuleDifference, ...]
    """By module, the largest first."""
    growth: tuple[BatchGrowth, ...]
    """At most a hundred batches a rank, in order."""
    structure: tuple[StructureDifference, ...]
    only_in_a: tuple[OnlyIn, ...]
    only_in_b: tuple[OnlyIn, ...]
    compared: Compared
    alignment: Alignment
    tolerance: Tolerance
    nothing_compared: str | None = None
    """The reason, if nothing in the two traces could be compared."""
    around: tuple[FramePair, ...] = ()
    """The frames around the first divergence."""
    run_differences: tuple[RunDifference, ...] = ()
    """How the runs themselves differ: command, options, versions, device, optimizers, seeds, dtypes, environment."""
    settings: tuple[SettingDifference, ...] = ()
    """The modules' settings that differ; they alone do not make runs differ."""
    notes: tuple[str, ...] = field(default=())
    """What else limits the comparison: unreadable parts, runs that ended early."""
