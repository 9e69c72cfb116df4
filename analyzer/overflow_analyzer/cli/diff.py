"""``overflow-analyze diff``: the first divergence of two runs, then the ranked rest."""

from __future__ import annotations

import sys
from typing import Any

import click

from overflow_analyzer.cli.options import Format, TraceCommand, format_option, rank_option, trace_argument
from overflow_analyzer.cli.output import write


@click.command(cls=TraceCommand)
@trace_argument("a")
@trace_argument("b")
@click.option(
    "--offset", type=int, metavar="N", help="Batch 0 of A is batch N of B. Found where figures make it plain."
)
@click.option(
    "--map",
    "renames",
    multiple=True,
    metavar="A=B",
    help="Modules called A in A are called B in B; * and ? are wildcards. May be given several times.",
)
@click.option(
    "--rtol", type=click.FloatRange(min=0), metavar="R", help="Tolerate this relative difference, whatever the dtype."
)
@click.option("--atol", type=click.FloatRange(min=0), metavar="X", help="Tolerate differences up to this.")
@click.option("--exact", is_flag=True, help="Tolerate nothing.")
@rank_option()
@click.option("--batch", type=click.IntRange(min=0), metavar="N", help="Only this batch, in A's numbers.")
@click.option("--module", metavar="NAME", help="Only modules with this name; * and ? are wildcards.")
@click.option(
    "--limit", type=click.IntRange(min=0), metavar="N", help="Rows a table (20 in text, all in json). 0 for all."
)
@format_option()
@click.option("--exit-zero", is_flag=True, help="Exit with 0 where the traces differ too.")
def command(a: str, b: str, *, format: Format, limit: int | None, exit_zero: bool, **options: Any) -> int:  # noqa: A002  the option's name
    """Compare two runs: where B first differs from A, in order of execution, and everything else that does.

    Modules are matched by name, wrappers such as module. and _orig_mod. aside, then by --map, then by class and shape.
    Figures are compared up to the rounding of the coarser dtype of the two. What only one trace recorded is listed and
    is no difference.

    Exits with 0 where the runs agree and with 1 where they differ or nothing could be compared.

    Example:
      overflow-analyze diff good.parquet bad.parquet
      overflow-analyze diff fp32.parquet bf16.parquet --map 'encoder.*=model.encoder.*'
    """
    from overflow_analyzer.diff import diff_traces
    from overflow_analyzer.render.diff import diff_as_json, render_diff
    from overflow_analyzer.text.strict_json import to_json
    from overflow_analyzer.text.terminal import terminal_width
    from overflow_analyzer.trace.opening import open_trace

    tolerance, renames = _tolerance(options), _renames(options.pop("renames"))
    diff = diff_traces(open_trace(a), open_trace(b), tolerance=tolerance, renames=renames, **options)
    if format == "json":
        write(to_json(diff_as_json(diff, limit=limit or None)))
    else:
        rows = 20 if limit is None else limit or None
        markdown, width = format == "markdown", terminal_width(sys.stdout)
        write(render_diff(diff, names=(a, b), limit=rows, markdown=markdown, width=width))
    return 0 if diff.same or (exit_zero and diff.nothing_compared is None) else 1


def _tolerance(options: dict[str, Any]) -> Any:
    """Take the options of the tolerance out of ``options``."""
    from overflow_analyzer.diff import Tolerance

    try:
        return Tolerance(rtol=options.pop("rtol"), atol=options.pop("atol") or 0.0, exact=options.pop("exact"))
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _renames(rules: tuple[str, ...]) -> Any:
    from overflow_analyzer.diff import Rename

    try:
        return [Rename.parse(rule) for rule in rules]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--map") from None
