"""What differs between two runs, as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from overflow_analyzer.render.diff.listings import listings
from overflow_analyzer.render.diff.rendering import diff_facts
from overflow_analyzer.render.diff.sentences import answer, run_difference
from overflow_analyzer.render.diff.side_by_side import beside
from overflow_analyzer.render.html.document import render_document
from overflow_analyzer.render.html.packing import pack_differences, pack_run
from overflow_analyzer.render.html.pictures import palettes, pictures
from overflow_analyzer.text.escape import escape

if TYPE_CHECKING:
    from overflow_analyzer.diff import DifferenceMap, TraceDiff
    from overflow_analyzer.overview import Overview


_MOST_ROWS: Final = 200
_BUDGET: Final = 2_500_000  # bytes of each run's figures


def render_comparison(
    diff: TraceDiff, differences: DifferenceMap, overviews: tuple[Overview, Overview], names: tuple[str, str]
) -> str:
    """Return a page on where two runs differ.

    Args:
        diff: Of ``diff_traces``.
        differences: What was gathered on the way.
        overviews: Of A and of B.
        names: What the two traces are called, paths usually.

    Raises:
        MissingExtraError: What the extra ``html`` brings is not installed.
    """
    headline, *evidence = (escape(sentence) for sentence in answer(diff))
    tables = listings(diff)
    first = diff.first_divergence
    pairs = ((pair.a, pair.b) for pair in diff.alignment.weaker)
    sections = [("verdict", "Answer"), *([("frames", "Frames")] if diff.around else [])]
    return render_document(
        "comparison.html.jinja",
        {
            "figures": pictures(("heat", "curves", "values")),
            "palettes": palettes(),
            "runs": [pack_run(one, budget=_BUDGET) for one in overviews],
            "differences": pack_differences(differences, overviews[0]),
            "renamed": [(escape(a), escape(b)) for a, b in pairs if a != b],
            "offset": diff.alignment.offset,
            "guilty": None if first is None else escape(first.module_name),
        },
        title=headline,
        paths=[f"{side}: {escape(name)}" for side, name in zip("AB", names, strict=True)],
        sections=[*sections, ("map", "Modules"), ("curve", "Curves"), ("lists", "Differences")],
        same=diff.same,
        headline=headline,
        evidence=evidence,
        beside=[row for pair in diff.around for row in beside(pair)],
        listings=[
            (
                escape(title),
                [(column.header, column.align) for column in columns],
                [[escape(column.cell(row)) for column in columns] for row in rows[:_MOST_ROWS]],
                max(0, len(rows) - _MOST_ROWS),
            )
            for title, columns, rows in tables
        ],
        facts=[
            (label, escape(text))
            for label, text in (*map(run_difference, diff.run_differences), *diff_facts(diff, names))
        ],
        map_title="Largest difference of each module over batches of A",
        hatched="≠ has an inf or nan in one run alone. Empty: not compared",
    )
