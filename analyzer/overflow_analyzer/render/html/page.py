"""``render_page``: what is known of one run, as a page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.overview.overview import PLANES
from overflow_analyzer.render.explanation import explanation_sections
from overflow_analyzer.render.finding import render_nothing_found
from overflow_analyzer.render.html.arrays import pack
from overflow_analyzer.render.html.document import render_document
from overflow_analyzer.render.html.pictures import palettes, pictures
from overflow_analyzer.render.report import report_lines
from overflow_analyzer.render.summary import RANK_COLUMNS, summary_facts
from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overflow_analyzer.first_nonfinite.finding import Finding
    from overflow_analyzer.overview import Level, Overview, RankStrip
    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.summary import Summary


_BUDGET: Final = 6_000_000
_STEPS: Final = (1 << 16, 32, 8)
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
        {
            "figures": pictures(names),
            "palettes": palettes(),
            "runs": [pack_run(overview, starts=_starts(finding), has_ranks=summary.world_size > 1)],
            "guilty": None if finding is None else escape((finding.origin or finding.frame).module_name),
        },
        title=f"{_headline(finding)} - {escape(str(trace.path))}",
        path=escape(str(trace.path)),
        sections=sections,
        found=finding is not None,
        headline=_headline(finding),
        verdict=_verdict(trace, finding, coverage),
        report=[] if finding is None else _report(finding, module_numbers(overview)),
        ranks=list(_ranks(finding, summary)) if summary.world_size > 1 else [],
        info_title=escape(_title(summary)),
        facts=[(label, escape(text)) for label, text in summary_facts(summary)],
        rank_columns=[(column.header, column.align) for column in RANK_COLUMNS],
        rank_rows=[[(escape(column.cell(one)), column.align) for column in RANK_COLUMNS] for one in summary.ranks],
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
        others = finding.other_ranks or ()
        named = ", ".join(f"rank {one.rank} in batch {one.batch_number}" for one in others[:_MOST_NAMED])
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        yield f"then {named}{more}" if others else "no other recorded rank has an inf/nan"
    missing = summary.missing_ranks
    if missing:
        named = ", ".join(map(str, missing[:_MOST_NAMED]))
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        yield f"{counted(len(missing), 'rank')} of {summary.world_size} left nothing readable: {named}{more}"
    else:
        yield f"all {summary.world_size} ranks are in the trace"


def module_numbers(overview: Overview) -> dict[str, int]:
    """Return the number by which a page knows each module, in order of first appearance."""
    numbers: dict[str, int] = {}
    for tensor in overview.tensors:
        numbers.setdefault(tensor.module_name, len(numbers))
    return numbers


def pack_run(
    overview: Overview, *, starts: Sequence[tuple[int, int]] = (), has_ranks: bool = False, budget: int = _BUDGET
) -> dict[str, Any]:
    """Return what ``page.js`` draws of one run.

    Args:
        overview: Of ``overview_of``.
        starts: (rank, batch) of the first inf/nan of each rank that has one.
        has_ranks: Whether there is a picture of the ranks.
        budget: Bytes that the figures may take; they are rounded, and then drawn together, until they do.
    """
    modules = module_numbers(overview)
    roles = list(dict.fromkeys(tensor.role for tensor in overview.tensors))
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in overview.tensors))
    return {
        "modules": [escape(name) for name in modules],
        "roles": [escape(role) for role in roles],
        "dtypes": [_dtype(dtype) for dtype in dtypes],
        "tensors": [
            (modules[one.module_name], roles.index(one.role), escape(one.context), dtypes.index(one.dtype))
            for one in overview.tensors
        ],
        "levels": _levels(overview, budget),
        "fits": {escape(module): fit for module, fit in overview.fits.items()},
        "strip": _strip(overview.strip, starts) if has_ranks else None,
    }


def _dtype(name: str | None) -> dict[str, Any]:
    limits = float_format(name)
    if limits is None:
        return {"name": escape(name or ""), "limit": None, "normal": None}
    return {"name": name, "limit": math.log2(limits.max), "normal": math.log2(limits.smallest_normal)}


def _strip(strip: RankStrip, starts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return {
        "ranks": strip.ranks,
        "first": strip.first.tolist(),
        "last": strip.last.tolist(),
        "width": strip.width,
        "headroom": pack(strip.headroom, _STEPS[1]),
        "nonfinite": pack(strip.nonfinite),
        "starts": starts,
    }


def _levels(overview: Overview, budget: int) -> list[dict[str, Any]]:
    whole = overview.whole
    while True:
        for steps in _STEPS:
            levels = [_level(level, steps) for level in (whole, overview.recent) if level is not None]
            size = sum(len(plane["data"]) for level in levels for plane in level.values() if isinstance(plane, dict))
            if size <= budget or (steps == _STEPS[-1] and len(whole.first) == 1):
                return levels
        whole = whole.halved()


def _level(level: Level, steps: float) -> dict[str, Any]:
    planes = {name: getattr(level, name) for name in PLANES}
    counts = {name: getattr(level, name).tolist() for name in ("first", "last", "count", "optimizer_step")}
    return {
        **counts,
        **{
            name: None if plane is None else pack(plane, None if name in ("nan", "inf") else steps)
            for name, plane in planes.items()
        },
    }
