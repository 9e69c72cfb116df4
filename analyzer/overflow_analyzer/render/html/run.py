"""What is known of one run, as a page."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from overflow_analyzer.render.explanation import explanation_sections
from overflow_analyzer.render.finding import render_nothing_found
from overflow_analyzer.render.html.document import render_document
from overflow_analyzer.render.html.packing import module_numbers, pack_run
from overflow_analyzer.render.html.pictures import palettes, pictures
from overflow_analyzer.render.report import report_lines
from overflow_analyzer.render.summary import RANK_COLUMNS, summary_facts
from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overflow_analyzer.first_nonfinite.finding import Finding
    from overflow_analyzer.overview import Overview
    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.summary import Summary


_MOST_NAMED: Final = 16


class Part(NamedTuple):
    """A piece of the report's text."""

    text: str
    module: int | None = None
    """The number of the module whose name it is."""
    is_guilty: bool = False


def render_page(
    trace: Trace, finding: Finding | None, overview: Overview, summary: Summary, coverage: Sequence[str]
) -> str:
    """Return a page on one run.

    Args:
        trace: What was looked at.
        finding: Of ``find_first_nonfinite``.
        overview: Of ``overview_of``.
        summary: Of ``summarize``.
        coverage: Of ``coverage_of``.

    Raises:
        MissingExtraError: What the extra ``html`` brings is not installed.
    """
    names = ("heat", "curves", "values", *(("ranks",) if summary.world_size > 1 else ()))
    sections = [("verdict", "Verdict"), ("map", "Modules"), ("curve", "Curves"), ("info", "The run")]
    if finding is not None:
        sections.insert(1, ("frames", "Frames"))
    if summary.world_size > 1:
        sections.insert(-1, ("rank", "Ranks"))
    return render_document(
        "run.html.jinja",
        {
            "figures": pictures(names),
            "palettes": palettes(),
            "runs": [pack_run(overview, starts=_starts(finding), has_ranks=summary.world_size > 1)],
            "guilty": None if finding is None else escape((finding.origin or finding.frame).module_name),
        },
        title=f"{_headline(finding)} - {escape(str(trace.path))}",
        paths=[escape(str(trace.path))],
        sections=sections,
        found=finding is not None,
        headline=_headline(finding),
        verdict=_verdict(trace, finding, coverage),
        report=[] if finding is None else _report(finding, module_numbers(overview)),
        ranks=list(_ranks(finding, summary)) if summary.world_size > 1 else [],
        info_title=escape(_title(summary)),
        facts=[(label, escape(text)) for label, text in summary_facts(summary)],
        rank_columns=[(column.header, column.align) for column in RANK_COLUMNS],
        rank_rows=[[escape(column.cell(one)) for column in RANK_COLUMNS] for one in summary.ranks],
        map_title="Modules over batches",
        hatched="N has nan, ∞ has inf. Empty: not recorded",
    )


def _title(summary: Summary) -> str:
    return f"Trace of {summary.ranks[0].run.model_class or 'a model'}, format version {summary.format_version}"


def _headline(finding: Finding | None) -> str:
    if finding is None:
        return "No inf/nan in what was recorded"
    frame = finding.frame
    return escape(f"inf/nan in {finding.entry.label} of {frame.label}, batch {frame.batch_number}")


def _verdict(trace: Trace, finding: Finding | None, coverage: Sequence[str]) -> list[tuple[str, list[str], bool]]:
    """Return headings with their lines, and whether those are laid out in columns."""
    if finding is None:
        looked_at, *_ = render_nothing_found(trace, coverage).splitlines()
        sections = [("What was looked at", [looked_at]), ("What this trace does not say", list(coverage))]
        return [(title, [escape(line) for line in lines], False) for title, lines in sections if lines]
    return [
        (escape(title), [escape(line) for line in lines], title == "Made by")
        for title, lines in explanation_sections(finding)
    ]


def _report(finding: Finding, modules: dict[str, int]) -> list[Part]:
    """Return the standard report in pieces: names of modules lead to their curves, the guilty row is marked."""
    parts: list[Part] = []
    for text, frame, entry in report_lines(finding.window, finding.frame.batch_number):
        if frame is not None and entry is None:
            name = text.lstrip()
            parts += [Part(text[: len(text) - len(name)]), Part(name, modules.get(frame.module_name)), Part("\n")]
        elif frame is finding.frame and entry is finding.entry:
            parts += [Part(text, is_guilty=True), Part("\n")]
        else:
            parts.append(Part(f"{text}\n"))
    return parts


def _starts(finding: Finding | None) -> list[tuple[int, int]]:
    if finding is None:
        return []
    others = [(one.rank, one.batch_number) for one in finding.other_ranks or ()]
    return [(finding.rank, finding.frame.batch_number), *others]


def _ranks(finding: Finding | None, summary: Summary) -> Iterator[str]:
    """Yield which rank was first and which are missing."""
    if finding is not None:
        yield f"rank {finding.rank} was first: batch {finding.frame.batch_number}"
        others = sorted(finding.other_ranks or (), key=lambda one: one.batch_number)
        for batch, some in itertools.groupby(others, lambda one: one.batch_number):
            yield f"then in batch {batch}: {_named([one.rank for one in some])}"
        if not others:
            yield "no other recorded rank has an inf/nan"
    missing = summary.missing_ranks
    if missing:
        yield f"{counted(len(missing), 'rank')} of {summary.world_size} left nothing readable: {_named(missing)}"
    else:
        yield f"all {summary.world_size} ranks are in the trace"


def _named(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"
