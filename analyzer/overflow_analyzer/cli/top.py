"""``overflow-analyze top``: which modules are nearest to the ends of their format, and how fast they get there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from overflow_analyzer.cli.options import Format, TraceCommand, format_option, rank_option, trace_argument
from overflow_analyzer.cli.output import write

if TYPE_CHECKING:
    from overflow_analyzer.render.headroom import By


@click.command(cls=TraceCommand)
@trace_argument()
@click.option(
    "--by",
    type=click.Choice(["headroom", "growth", "underflow"]),
    default="headroom",
    show_default=True,
    help="headroom: nearest to the limit. growth: fastest towards it. underflow: nearest to 0 everywhere.",
)
@click.option(
    "--dtype",
    metavar="FORMAT",
    help="Compare all figures with this format, such as float16: would the run fit it?",
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Show N modules.")
@rank_option()
@format_option()
def command(*, trace: str, by: By, dtype: str | None, limit: int, rank: int | None, output_format: Format) -> int:
    """Rank the modules of TRACE by how near their figures come to the limits of their floating-point format.

    Headroom is how many times the largest figure can double before it overflows, in bits. Growth is the number of
    doublings a batch; from it follow the batches that are left. The bars are the largest share of the limit in the last
    recorded batches, on a logarithmic scale. The exit code is 0 whatever the figures are.

    Example:
      overflow-analyze top run.parquet --dtype float16
    """
    from overflow_analyzer.format.float_formats import FLOAT_FORMATS
    from overflow_analyzer.headroom.headroom import headroom_of
    from overflow_analyzer.render.headroom import headroom_as_json, render_headroom
    from overflow_analyzer.text.sparkline import shows_bars
    from overflow_analyzer.text.strict_json import to_json
    from overflow_analyzer.text.terminal import progress, terminal_width
    from overflow_analyzer.trace.opening import open_trace

    # Not a ``click.Choice``: that would import the formats for --help.
    if dtype is not None and dtype not in FLOAT_FORMATS:
        raise click.BadParameter(f"{dtype!r} is not one of {', '.join(FLOAT_FORMATS)}.", param_hint="'--dtype'")
    headroom = headroom_of(
        open_trace(trace), rank=rank, dtype=dtype, progress=lambda tables, total: progress(tables, total, "reading")
    )
    if output_format == "json":
        write(to_json(headroom_as_json(headroom, by, limit=limit)))
    else:
        ascii_only, width = not shows_bars(sys.stdout), terminal_width(sys.stdout)
        markdown = output_format == "markdown"
        write(render_headroom(headroom, by, limit=limit, markdown=markdown, ascii_only=ascii_only, width=width))
    return 0
