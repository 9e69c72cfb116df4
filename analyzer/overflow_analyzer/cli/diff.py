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
    "--offset", type=int, metavar="N", help="Batch 0 of A is batch N of B. Default: found from the figures, or 0."
)
@click.option(
    "--map",
    "renames",
    multiple=True,
    metavar="A=B",
    help="The modules A of the first run are the modules B of the second; * and ? are wildcards. Repeatable.",
)
@click.option(
    "--rtol",
    type=click.FloatRange(min=0),
    metavar="R",
    help="Tolerate relative differences up to R, whatever the dtype.",
)
@click.option("--atol", type=click.FloatRange(min=0), metavar="X", help="Tolerate absolute differences up to X.")
@click.option("--exact", is_flag=True, help="Tolerate no difference.")
@rank_option()
@click.option("--batch", type=click.IntRange(min=0), metavar="N", help="Only this batch, by A's batch numbers.")
@click.option("--module", metavar="NAME", help="Only modules with this name; * and ? are wildcards.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show N rows in each table; 0 shows all. Default: 20 in text, all in json.",
)
@format_option()
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if the traces differ.")
def command(a: str, b: str, *, output_format: Format, limit: int | None, exit_zero: bool, **options: Any) -> int:
    """Compare two runs: show where B first differs from A, in order of execution, and every other difference.

    Modules match by --map, then by name without wrappers such as module. and _orig_mod., then by class and shape. The
    rounding of the coarser dtype is tolerated. What only one trace recorded is listed and is no difference.

    The exit code is 0 if the runs agree, and 1 if they differ or nothing could be compared.

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
    if output_format == "json":
        write(to_json(diff_as_json(diff, limit=limit or None)))
    else:
        rows = 20 if limit is None else limit or None
        markdown, width = output_format == "markdown", terminal_width(sys.stdout)
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
