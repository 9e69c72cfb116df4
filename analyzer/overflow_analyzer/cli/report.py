"""``overflow-analyze report``: the first inf/nan, the frames before it, what produced it."""

from __future__ import annotations

import sys

import click

from overflow_analyzer.cli.options import Format, TraceCommand, format_option, rank_option, trace_argument
from overflow_analyzer.cli.output import write


@click.command(cls=TraceCommand)
@trace_argument()
@click.option(
    "--frames",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show N frames, the one with the inf/nan among them. Default: the run's window.",
)
@rank_option()
@click.option("--batch", type=click.IntRange(min=0), metavar="N", help="Look in this batch only.")
@format_option()
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if an inf/nan was found.")
def command(
    *, trace: str, frames: int | None, rank: int | None, batch: int | None, output_format: Format, exit_zero: bool
) -> int:
    """Report the first inf/nan in TRACE: the frames before it, what produced it, what the trace does not cover.

    "First" means the first of what was recorded. The exit code is 1 if an inf/nan was found, and 0 if not or if all
    that came of it is finite.

    Example:
      overflow-analyze report run.parquet --frames 40
    """
    from overflow_analyzer.first_nonfinite.finding import find_first_nonfinite
    from overflow_analyzer.render.finding import finding_as_json, render_finding, render_nothing_found
    from overflow_analyzer.text.strict_json import to_json
    from overflow_analyzer.text.terminal import progress, shows_colour
    from overflow_analyzer.trace.coverage import coverage_of
    from overflow_analyzer.trace.opening import open_trace

    opened = open_trace(trace)
    finding = find_first_nonfinite(
        opened,
        rank=rank,
        batch=batch,
        frames=frames,
        progress=lambda groups: progress(groups, len(groups), "searching"),
    )
    coverage = finding.coverage if finding else coverage_of(opened)
    if output_format == "json":
        write(to_json(finding_as_json(finding, coverage)))
    elif finding is None:
        write(render_nothing_found(opened, coverage, rank=rank, batch=batch, markdown=output_format == "markdown"))
    else:
        write(render_finding(finding, markdown=output_format == "markdown", coloured=shows_colour(sys.stdout)))
    return int(finding is not None and not finding.rule.is_harmless and not exit_zero)
