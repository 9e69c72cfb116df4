"""A ``Finding``, or that there is none, as text, as Markdown and as what becomes JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.render.explanation import explanation_sections, headline, render_explanation
from overflow_analyzer.render.report import render_report
from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.markdown import code_block, escape_markdown, name_span
from overflow_analyzer.text.strict_json import fields_of
from overflow_analyzer.text.terminal import highlight
from overflow_analyzer.text.wording import counted, section_lines
from overflow_analyzer.trace.batches import batch_bounds

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.finding import Finding
    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.trace.opening import Trace


def render_finding(finding: Finding, *, markdown: bool = False, coloured: bool = False) -> str:
    """Return the verdict, the standard report and the rest of the explanation, each set apart; Markdown has it in one.

    In text inf and nan are red where coloured.
    """
    report = render_report(finding.window, finding.frame.batch_number)
    if finding.world_size > 1:
        report = f"rank {finding.rank} of {finding.world_size}\n{report}"
    if markdown:
        return f"### {_title(finding)}\n\n{code_block(report)}{_sections(render_explanation(finding))}"
    sections = explanation_sections(finding)
    first = sorted((one for one in sections if _place(one) < len(_VERDICT)), key=_place)
    rest = [one for one in sections if one not in first]
    verdict = _lines([headline(finding), *section_lines(first)])
    return f"{verdict}\n{highlight(report, on=coloured)}\n{_lines(section_lines(rest))}"


_VERDICT: Final = ("Cause", "Made by", "What changed")


def _place(section: tuple[str, list[str]]) -> int:
    """Where a section stands in the verdict; behind it if it does not."""
    title = section[0].partition(":")[0]
    return _VERDICT.index(title) if title in _VERDICT else len(_VERDICT)


def _title(finding: Finding) -> str:
    frame, entry = finding.frame, finding.entry
    module = name_span(frame.module_name) if frame.module_name else "the model"
    return (
        f"inf/nan in {module} ({name_span(frame.module_class)}), {name_span(entry.context)}, batch {frame.batch_number}"
    )


def _sections(text: str) -> str:
    """Return the explanation's sections as bold lines with lists under them."""
    lines = [line for line in text.splitlines() if line.strip()]
    items = ((line.startswith(" "), escape_markdown(line.strip())) for line in lines)
    return "".join(f"- {line}\n" if is_item else f"\n**{line}**\n\n" for is_item, line in items)


def render_nothing_found(
    trace: Trace, coverage: Sequence[str], *, rank: int | None = None, batch: int | None = None, markdown: bool = False
) -> str:
    """Return what was looked at, of a rank or batch if given, without finding an inf/nan, and what is not covered."""
    sentence = f"No inf/nan in what was recorded: {_looked_at(trace, rank, batch)}."
    uncovered = ["What this trace does not say", *(f"  {line}" for line in coverage)] if coverage else []
    if markdown:
        return f"{escape_markdown(sentence)}\n{_sections(_lines(uncovered))}"
    return _lines([sentence, *uncovered])


def _lines(lines: Sequence[str]) -> str:
    return "".join(f"{escape(line)}\n" for line in lines)


def _looked_at(trace: Trace, rank: int | None, batch: int | None) -> str:
    ranks = trace.ranks if rank is None else (trace.rank(rank),)
    of_ranks = f"rank {rank}" if rank is not None else counted(len(ranks), "rank")
    if batch is not None:
        return f"batch {batch} of {of_ranks}"
    first, last = batch_bounds(ranks) or (0, 0)
    batches = f"batch {first}" if first == last else f"batches {first} to {last}"
    return f"{counted(sum(one.rows for one in ranks), 'row')}, {batches}, {of_ranks}"


def finding_as_json(finding: Finding | None, coverage: Sequence[str]) -> dict[str, Any]:
    """Return a finding for ``to_json``; where there is none the same keys, most of them null."""
    if finding is None:
        return {"found": False, **dict.fromkeys(_KEYS), "coverage": coverage, "frames": []}
    replay = finding.replay
    replayed: dict[str, Any] = {
        "operation": None if replay is None else replay.operation,
        "no_operation_because": None if replay is None else replay.reason,
        "place": None if replay is None else replay.place,
        "changes": () if replay is None else replay.changes,
    }
    parts = (replayed, vars(finding), vars(finding.entry), vars(finding.frame))
    values = {name: next(part[name] for part in parts if name in part) for name in _KEYS}
    places = {name: _placed(values[name]) for name in _PLACES}
    return {"found": True, **values, **places, "coverage": coverage, "frames": finding.window}


_PLACES: Final = ("origin", "finite_before", "chain", "propagated", "absorbed", "absorbed_before")
_KEYS: Final = (
    "rank", "world_size",
    "batch_number", "frame_number", "call_index", "module_name", "module_class", "phase", "optimizer_step",
    "role", "context", "dtype", "shape", "abs_min", "abs_max", "nan_count", "posinf_count", "neginf_count",
    "finite_abs_max", "origin", "settings", "operation", "no_operation_because", "place", "cause", "finite_before",
    "chain", "propagated", "absorbed", "absorbed_before", "growth", "other_ranks",
)  # fmt: skip


def _placed(frames: Frame | Sequence[Frame] | None) -> Any:
    if frames is None:
        return None
    if isinstance(frames, Sequence):
        return [_placed(one) for one in frames]
    return fields_of(frames, "module_name", "module_class", "batch_number", "frame_number")
