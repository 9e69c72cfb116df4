"""``overflow-analyze info``: what is in a trace."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from overflow_analyzer.cli.options import Format, TraceCommand, format_option, trace_argument
from overflow_analyzer.cli.output import write

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overflow_analyzer.format.parts import RowGroup


@click.command(cls=TraceCommand)
@trace_argument()
@format_option()
def command(trace: str, format: Format) -> int:  # noqa: A002  the option's name
    """Show what is in TRACE: ranks, batches, frames, gaps, dtypes, sizes, and how the run ended.

    A gap is a range of frames or batches that the trace does not hold: nobody asked for them, or they are lost.

    Example:
      overflow-analyze info run.parquet
    """
    from overflow_analyzer.render.summary import render_summary, summary_as_json
    from overflow_analyzer.text.strict_json import to_json
    from overflow_analyzer.text.terminal import terminal_width
    from overflow_analyzer.trace.opening import open_trace
    from overflow_analyzer.trace.summary import summarize

    summary = summarize(open_trace(trace), _progress)
    if format == "json":
        write(to_json(summary_as_json(summary)))
    else:
        write(render_summary(summary, markdown=format == "markdown", width=terminal_width(sys.stdout)))
    return 0


def _progress(groups: Sequence[RowGroup]) -> Iterable[RowGroup]:
    from overflow_analyzer.text.terminal import progress

    return progress(groups, len(groups), "reading")
