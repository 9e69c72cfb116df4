"""The answer in words: where two runs first differ and what that means."""

from __future__ import annotations

import itertools
import shlex
from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overflow_analyzer.diff import Divergence, FigureDifference, RunDifference, TraceDiff


_NAMES: Final = {
    "abs_max": "abs max",
    "abs_min": "abs min",
    "finite_abs_max": "the largest finite magnitude",
    "abs_mean": "the mean magnitude",
    "nan_count": "the number of nan",
    "posinf_count": "the number of +inf",
    "neginf_count": "the number of -inf",
    "zero_count": "the number of zeros",
}
_MOST_SETTINGS: Final = 4
_LONGEST_SETTING: Final = 60
_OTHER: Final = {"a": "B", "b": "A"}


def answer(diff: TraceDiff) -> list[str]:
    """Return sentences; the first answers whether the runs differ and where."""
    if diff.nothing_compared is not None:
        return [f"Nothing could be compared: {diff.nothing_compared}."]
    first = diff.first_divergence
    if first is None:
        return [_no_difference(diff)]
    sentences = [_headline(first), *_evidence(first, several_ranks=len(diff.alignment.ranks) > 1)]
    earlier = diff.first_difference
    if earlier is not None and _place(earlier) != _place(first):
        sentences.append(f"The runs differ before that already. {_headline(earlier)}")
        sentences += _evidence(earlier, several_ranks=len(diff.alignment.ranks) > 1)[
            :-1
        ]  # what came before it is in the first sentences
    return sentences


def run_difference(one: RunDifference) -> tuple[str, str]:
    """Return the kind of a difference between two runs, and both values, as ``option``, ``max_bytes: none -> 1000``."""
    a, b = map(shlex.join, _differing(one.a, one.b)) if one.what == "command" else (_value(one.a), _value(one.b))
    return one.what, f"{f'{one.name}: ' if one.name else ''}{a} -> {b}"


def _differing(a: Sequence[str], b: Sequence[str]) -> Iterator[list[str]]:
    """Yield both commands without the words between the program and the first that differs, where there are several."""
    alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
    yield from ([one[0], "...", *one[alike:]] if alike > 2 else list(one) for one in (a, b))  # noqa: PLR2004  worth it


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "none"
    return "not set" if value is None else str(value)


def _no_difference(diff: TraceDiff) -> str:
    compared = diff.compared
    extent = f"{counted(compared.frames, 'frame')} in {counted(compared.batches, 'batch')}"
    if not compared.tolerated:
        return f"No difference: all figures of {counted(compared.entries, 'entry')} of {extent} agree bit for bit."
    return (
        f"No difference beyond rounding: of {counted(compared.entries, 'entry')} of {extent}, "
        f"{compared.tolerated} differ by less than is tolerated, the figures of the others agree bit for bit."
    )


def _place(one: Divergence) -> tuple[object, ...]:
    """Return where an entry stands. Divergences are never compared themselves: nan is unlike nan."""
    return one.rank, one.frame_number_a, one.frame_number_b, one.role, one.context


def _headline(first: Divergence) -> str:
    where = f"In batch {first.batch_number}, {_module(first)}"
    if first.nonfinite_in is not None:
        run, other = first.nonfinite_in.upper(), _OTHER[first.nonfinite_in]
        return f"{where} has inf or nan in its {_entry(first)} in {run} and none in {other}, {_origin(first)}."
    return f"{where} {_change(first)}."


def _origin(first: Divergence) -> str:
    if first.kind == "module" and first.operands_unseen:
        return f"while {_operands(first.operands_unseen)} were not compared: whether it was made here is not known"
    if first.kind == "module":
        return f"which {_operands(_known_operands(first))} do not explain: it was made here"
    return "which came in here" if first.kind == "input" else "which was there before the forward"


def _change(first: Divergence) -> str:
    if first.kind == "structure":
        return _structure(first)
    if first.kind == "input":
        return f"is the first to differ, and its {_entry(first)} does already: it came in here"
    if first.kind == "weight":
        # Figures of buffers are those after the forward.
        itself = ", or the forward itself changed it" if first.role == "buffer" else ""
        return f"is the first to differ, and its {_entry(first)} does already: {_update(first)}{itself}"
    where = f"is the first to differ, in its {_entry(first)}, while"
    but = "" if first.operands_exact else " but for rounding"
    if not first.operands_unseen:
        changed = f"the module changed ({_settings(first)})" if first.settings else "the module changed"
        return f"{where} {_operands(_known_operands(first))} agree{but}: {changed}"
    unseen = f"{_operands(first.operands_unseen)} were not compared: what changed is not known"
    known = [one for one in _known_operands(first) if one not in first.operands_unseen]
    return f"{where} {_operands(known)} agree{but} and {unseen}" if known else f"{where} {unseen}"


def _settings(first: Divergence) -> str:
    """Return the module's settings that differ, as ``eps 1e-05 -> 0.001``."""
    texts = []
    for one in first.settings[:_MOST_SETTINGS]:
        name = "" if one.module_name == first.module_name else f"{one.module_name}: "
        later = "" if one.batch_number <= first.batch_number else f", seen in batch {one.batch_number}"
        setting = f"{one.setting} " if one.setting else ""
        texts.append(f"{name}{setting}{setting_text(one.a)} -> {setting_text(one.b)}{later}")
    more = len(first.settings) - _MOST_SETTINGS
    return "; ".join([*texts, *([f"{more} more"] if more > 0 else [])])


def setting_text(value: str | None) -> str:
    """Return a setting's value, a long one cut."""
    if value is None:
        return "not set"
    return value if len(value) <= _LONGEST_SETTING else f"{value[: _LONGEST_SETTING - 3]}..."


def _known_operands(first: Divergence) -> tuple[str, ...]:
    """Return the roles of what a module computes from: in its forward, or in its backward."""
    return ("grad_output",) if first.role in ("grad_input", "weight_grad") else ("input", "weight")


def _operands(roles: Sequence[str]) -> str:
    nouns = {"input": "inputs", "weight": "weights", "grad_output": "output's gradients"}
    return f"its {' and '.join(nouns[one] for one in roles)}"


def _update(first: Divergence) -> str:
    before = first.compared_batch_before
    if before is None and first.at_start:
        return "the runs did not start from the same state"
    if before is None:
        return f"an update before batch {first.batch_number}, or the state from which the runs started"
    if before == first.batch_number - 1:
        return f"the update before batch {first.batch_number}"
    return f"an update between batch {before} and batch {first.batch_number}"


def _structure(first: Divergence) -> str:
    if first.only_in is not None:
        run = first.only_in.upper()
        if first.role:
            return f"has {_entry(first)} in {run} alone: the structure changed"
        part = f", as does all of {first.part_of}" if first.part_of else ""
        call = f" for the {_ordinal(first.call_index)} time" if first.call_index else ""
        return f"runs{call} in {run} alone{part}: the structure changed"
    largest = first.largest
    if largest is None:
        return "has another structure"
    return f"has another {largest.figure} of its {_entry(first)}, {largest.a} in A and {largest.b} in B"


def _evidence(first: Divergence, *, several_ranks: bool) -> list[str]:
    frames = [
        f"frame {number} of {run}"
        for run, number in (("A", first.frame_number_a), ("B", first.frame_number_b))
        if number is not None
    ]
    rank = f"rank {first.rank}, " if several_ranks else ""
    shifted = f" (batch {first.batch_number_b} of B)" if first.batch_number_b != first.batch_number else ""
    found = [f"It is {rank}{' and '.join(frames)}{shifted}."]
    if first.largest is not None:
        found.append(figure_text(first.largest))
    if first.settings and _settings(first) not in _headline(first):
        found.append(f"Its settings differ: {_settings(first)}.")
    return [*found, _before(first)]


def _before(first: Divergence) -> str:
    if not first.agreed_before:
        return "Nothing was compared before it."
    compared = f"Before it, the figures of {counted(first.agreed_before, 'entry')} were compared"
    weights = counted(first.weights_before, "weight or buffer", "weights and buffers")
    if first.exact_before:
        return f"{compared} and agree bit for bit, {weights} among them."
    if not first.weights_exact_before:
        return f"{compared}, {weights} among them; not all weights and buffers agree bit for bit."
    among = f", but those of all {weights} among them do" if first.weights_before else ""
    return f"{compared}; they do not all agree bit for bit{among}."


def figure_text(largest: FigureDifference) -> str:
    """Return a sentence with both values, their distance and what is tolerated."""
    name = _NAMES.get(largest.figure, largest.figure)
    values = f"{name[:1].upper()}{name[1:]} is {number_text(largest.a)} in A and {number_text(largest.b)} in B"
    if largest.relative in (0.0, float("inf")) or largest.figure.endswith("_count"):
        return f"{values}."
    return (
        f"{values}: {largest.relative:.2g} relative, {largest.epsilons:.3g} epsilons of the coarser dtype; "
        f"up to {largest.tolerated_epsilons:.3g} epsilons would be taken for rounding."
    )


def number_text(value: float | str | None) -> str:
    """Return a figure as the report prints it, a count or a name as it is."""
    if value is None or value == -1:
        return "unknown"
    return f"{value:.2e}" if isinstance(value, float) else str(value)


def _module(first: Divergence) -> str:
    name = f"module {first.module_name}" if first.module_name else "the root"
    renamed = first.module_name_b != first.module_name
    called = f"called {first.module_name_b or 'the root'} in B" if renamed else ""
    known = ", ".join(filter(None, [first.module_class, called]))
    return f"{name} ({known})" if known else name


def _entry(first: Divergence) -> str:
    return first.context if first.context.startswith(first.role) else f"{first.role} {first.context}"


def _ordinal(index: int) -> str:
    number = index + 1
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
