"""A ``TraceDiff`` as text or Markdown, and as what becomes JSON."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.render.diff.listings import listings
from overflow_analyzer.render.diff.sentences import answer, run_difference
from overflow_analyzer.render.diff.side_by_side import render_side_by_side
from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.markdown import code_block, escape_markdown
from overflow_analyzer.text.tables import render_table
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_analyzer.diff import TraceDiff


_LABEL_WIDTH: Final = 14
_LISTS: Final = ("differences", "settings", "structure", "only_in_a", "only_in_b")


def diff_as_json(diff: TraceDiff, *, limit: int | None = None) -> dict[str, Any]:
    """Return a comparison for ``to_json``: its fields, and ``explanation``, the answer in sentences.

    Args:
        diff: What ``diff_traces`` returned.
        limit: Of each list this many; None for all.
    """
    values = {one.name: getattr(diff, one.name) for one in dataclasses.fields(diff)}
    shortened = {name: values[name][:limit] for name in _LISTS}
    return {"same": values.pop("same"), "explanation": answer(diff), **values, **shortened}


def render_diff(
    diff: TraceDiff,
    *,
    names: tuple[str, str] = ("A", "B"),
    limit: int | None = 20,
    markdown: bool = False,
    width: int | None = None,
) -> str:
    """Return a comparison for reading, ended by a newline: the answer in words, the frames around it, tables.

    Args:
        diff: What ``diff_traces`` returned.
        names: What the two traces are called, paths usually.
        limit: Rows a table; None for all.
        markdown: For pasting into an issue.
        width: Columns of the terminal; None where lines may be of any length.
    """
    parts = [_words(diff, names, markdown=markdown)]
    if diff.around:
        beside = render_side_by_side(diff.around, (f"A: {escape(names[0])}", f"B: {escape(names[1])}"), width)
        parts.append(code_block(beside) if markdown else beside)
    for title, columns, rows in listings(diff):
        more = f" ({limit} of {len(rows)})" if limit is not None and len(rows) > limit else ""
        heading = f"#### {escape_markdown(title + more)}\n" if markdown else f"{title}{more}:"
        parts.append(f"{heading}\n{render_table(columns, rows[:limit], markdown=markdown, width=width)}")
    return "\n".join(parts)


def _words(diff: TraceDiff, names: tuple[str, str], *, markdown: bool) -> str:
    headline, *evidence = answer(diff)
    runs, facts = [run_difference(one) for one in diff.run_differences], list(diff_facts(diff, names))
    if markdown:
        listed, lines = ([f"- **{label}**: {escape_markdown(text)}" for label, text in some] for some in (runs, facts))
        paragraph = [escape_markdown(" ".join(evidence)), ""] if evidence else []
        between = [*listed, ""] if listed else []
        return "\n".join([f"### {escape_markdown(headline)}", "", *between, *paragraph, *lines, ""])
    listed, lines = ([f"{label:<{_LABEL_WIDTH}}{escape(text)}" for label, text in some] for some in (runs, facts))
    between = ["", *listed, *([""] if evidence else [])] if listed else []
    return "\n".join([escape(headline), *between, *(f"  {escape(one)}" for one in evidence), "", *lines, ""])


def diff_facts(diff: TraceDiff, names: tuple[str, str]) -> Iterator[tuple[str, str]]:
    """Yield what was compared and how, each with its label; names in it are not escaped."""
    compared, alignment = diff.compared, diff.alignment
    yield "A", names[0]
    yield "B", names[1]
    if compared.entries:
        extent = [counted(compared.entries, "entry"), counted(compared.frames, "frame")]
        extent.append(counted(compared.batches, "batch"))
        ranks = f" on {counted(len(alignment.ranks), 'rank')}" if len(alignment.ranks) > 1 else ""
        differing = f"{compared.differing} differ by more than is tolerated, {compared.tolerated} by less"
        yield "compared", f"{', '.join(extent)}{ranks}; {differing}"
    yield "tolerated", _tolerance(diff)
    if alignment.offset:
        found = ", found from the figures" if alignment.offset_found else ""
        yield (
            "batches",
            f"batch N of A is batch N {'+' if alignment.offset > 0 else '-'} {abs(alignment.offset)} of B{found}",
        )
    for one, other in alignment.ranks:
        if one != other:
            yield "ranks", f"rank {one} of A is laid beside rank {other} of B"
    wrappers = [
        f"{counted(len(around), 'module')} around others in {run} alone, whose frames repeat theirs"
        for run, around in (("A", alignment.wrappers_a), ("B", alignment.wrappers_b))
        if around
    ]
    if wrappers:
        yield "wrappers", ", ".join(wrappers)
    if diff.only_in_a or diff.only_in_b:
        yield "not compared", "what one trace alone has is listed below"
    for note in diff.notes:
        yield "note", note


def _tolerance(diff: TraceDiff) -> str:
    tolerance = diff.tolerance
    if tolerance.exact:
        return "nothing: figures and dtypes must be the same bit for bit"
    absolute = f", and {tolerance.atol:g} absolute" if tolerance.atol else ""
    if tolerance.rtol is not None:
        return f"{tolerance.rtol:g} relative{absolute}"
    slack = f"{tolerance.slack:g} epsilons of the coarser dtype, {2 * tolerance.slack:g} in float32 and float64"
    return f"{slack}, more behind frames that differ already{absolute}"
