"""``overflow-analyze html``: a run, or two runs side by side, as one page with pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from overflow_analyzer.cli.options import TraceCommand, output_options, trace_argument
from overflow_analyzer.cli.output import open_output, say_done

if TYPE_CHECKING:
    from overflow_analyzer.overview import Overview
    from overflow_analyzer.trace.opening import Trace


@click.command(cls=TraceCommand)
@trace_argument()
@click.argument("other", required=False, type=click.Path(readable=False))
@output_options("FILE", "The page to write; - is stdout.")
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
def command(*, trace: str, other: str | None, output: str, overwrite: bool, show: bool) -> int:
    """Write one page on TRACE: the first inf/nan, and every module over the batches in pictures.

    With OTHER, the page shows where that run differs from TRACE. The page is one file. It holds all that it needs, asks
    no network for anything and runs nothing out of the trace. A living run is shown as far as it has come. The page
    needs the extra: pip install 'overflow-trace[html]'.

    Example:
      overflow-analyze html run.parquet -o run.html
      overflow-analyze html good.parquet bad.parquet -o diff.html
    """
    from overflow_analyzer.trace.opening import open_trace

    opened = open_trace(trace)
    with open_output(output, overwrite=overwrite, reading=opened.path) as file:
        page = (_of_run(opened) if other is None else _of_both(opened, open_trace(other), (trace, other))).encode()
        file.write(page)
    say_done(output, f"{len(page)} bytes")
    if show and output != "-":
        import webbrowser
        from pathlib import Path

        webbrowser.open(Path(output).resolve().as_uri())
    return 0


def _of_run(trace: Trace) -> str:
    from overflow_analyzer.first_nonfinite.finding import find_first_nonfinite
    from overflow_analyzer.render.html import render_page
    from overflow_analyzer.trace.coverage import coverage_of
    from overflow_analyzer.trace.summary import summarize

    finding = find_first_nonfinite(trace)
    return render_page(trace, finding, _overview(trace), summarize(trace), coverage_of(trace))


def _of_both(a: Trace, b: Trace, names: tuple[str, str]) -> str:
    from overflow_analyzer.diff import DifferencesOverBatches, diff_traces
    from overflow_analyzer.overview import recorded_batches
    from overflow_analyzer.render.html import render_comparison

    over_batches = DifferencesOverBatches(recorded_batches(a))
    diff = diff_traces(a, b, over_batches=over_batches)
    return render_comparison(diff, over_batches.finish(), (_overview(a), _overview(b)), names)


def _overview(trace: Trace) -> Overview:
    from overflow_analyzer.overview import overview_of
    from overflow_analyzer.text.terminal import progress

    return overview_of(trace, progress=lambda tables, total: progress(tables, total, "reading"))
