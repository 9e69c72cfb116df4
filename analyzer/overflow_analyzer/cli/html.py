"""``overflow-analyze html``: a run as one page with pictures."""

from __future__ import annotations

import click

from overflow_analyzer.cli.options import TraceCommand, output_options, trace_argument
from overflow_analyzer.cli.output import open_output, say_done


@click.command(cls=TraceCommand)
@trace_argument()
@output_options("FILE", "The page to write; - is stdout.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
def command(trace: str, output: str, overwrite: bool, show: bool) -> int:
    """Write one page on TRACE: the first inf/nan, and every module over the batches in pictures.

    The page is one file. It holds all that it needs, asks no network for anything and runs nothing out of the trace. A
    living run is shown as far as it has come. It needs the extra: pip install 'overflow-trace[html]'.

    Example:
      overflow-analyze html run.parquet -o run.html
    """
    from overflow_analyzer.first_nonfinite.finding import find_first_nonfinite
    from overflow_analyzer.overview import overview_of
    from overflow_analyzer.render.html import render_page
    from overflow_analyzer.text.terminal import progress
    from overflow_analyzer.trace.coverage import coverage_of
    from overflow_analyzer.trace.opening import open_trace
    from overflow_analyzer.trace.summary import summarize

    opened = open_trace(trace)
    with open_output(output, overwrite=overwrite, reading=opened.path) as file:
        page = render_page(
            opened,
            find_first_nonfinite(opened),
            overview_of(opened, progress=lambda tables, total: progress(tables, total, "reading")),
            summarize(opened),
            coverage_of(opened),
        )
        file.write(page.encode())
    say_done(output, f"{len(page.encode())} bytes")
    if show and output != "-":
        import webbrowser
        from pathlib import Path

        webbrowser.open(Path(output).resolve().as_uri())
    return 0
