"""``overflow-analyze info``: what is in a trace."""

from __future__ import annotations

import sys
from typing import Any

import click

from overflow_analyzer.cli.options import Format, TraceCommand, format_option, trace_argument
from overflow_analyzer.cli.output import write


@click.command(cls=TraceCommand)
@trace_argument()
@click.option("--modules", is_flag=True, help="List the modules too: class, settings, dtypes, and what changed.")
@format_option()
def command(trace: str, *, modules: bool, output_format: Format) -> int:
    """Show what is in TRACE: ranks, batches, frames, gaps, dtypes, sizes, and how the run ended.

    A gap is a range of frames or batches that the trace does not hold: nobody asked for them, or they are lost.

    Example:
      overflow-analyze info run.parquet
    """
    from overflow_analyzer.render.modules import modules_as_json, render_modules
    from overflow_analyzer.render.summary import render_summary, summary_as_json
    from overflow_analyzer.text.strict_json import to_json
    from overflow_analyzer.text.terminal import progress, terminal_width
    from overflow_analyzer.trace.opening import open_trace
    from overflow_analyzer.trace.summary import summarize

    opened = open_trace(trace)
    summary = summarize(opened, lambda groups: progress(groups, len(groups), "reading"))
    if output_format == "json":
        listed = {"modules": modules_as_json(opened)} if modules else {}
        write(to_json({**summary_as_json(summary), **listed}))
    else:
        layout: dict[str, Any] = {"markdown": output_format == "markdown", "width": terminal_width(sys.stdout)}
        write(render_summary(summary, **layout))
        if modules:
            write(f"\n{render_modules(opened, **layout)}")
    return 0
