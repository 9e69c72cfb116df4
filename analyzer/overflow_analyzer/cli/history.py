"""``overflow-analyze history``: tensors over batches, jumps marked."""

from __future__ import annotations

import sys
from typing import Any

import click

from overflow_analyzer.cli.options import TraceCommand, format_option, rank_option, trace_argument
from overflow_analyzer.cli.output import write


@click.command(cls=TraceCommand)
@trace_argument()
@click.argument("tensors", metavar="MODULE[:CONTEXT]...", nargs=-1, required=True)
@click.option(
    "--figure",
    metavar="COLUMN",
    default="abs_max",
    show_default=True,
    help="The column to follow: abs_max, abs_min, finite_abs_max, nan_count, rms or another figure of the trace.",
)
@click.option("--role", metavar="ROLE", help="Only tensors of this role, such as weight, input, output or weight_grad.")
@click.option("--since", type=click.IntRange(min=0), default=0, metavar="N", help="Begin at batch N (0-based).")
@click.option(
    "--points",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="N",
    help="Show the last N batches of each tensor and all jumps. json and csv hold every batch.",
)
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Show N tensors.")
@rank_option()
@format_option("csv")
def command(*, trace: str, tensors: tuple[str, ...], points: int, output_format: str, **options: Any) -> int:
    """Follow tensors of TRACE over its recorded batches and mark where a figure jumped.

    A tensor is named by its module, or by its module and context. `*` stands for any characters, `?` for one. A batch
    in which a module was called several times shows its largest figure. A jump is a change of at least a factor of 8
    that is four times as large as the changes before it usually are, or a figure that became inf, nan or 0. The exit
    code is 0 whatever the figures are.

    Example:
      overflow-analyze history run.parquet 'encoder.*.dropout:output' --since 100
    """
    from overflow_analyzer.render.history import history_as_csv, render_history
    from overflow_analyzer.text.sparkline import shows_bars
    from overflow_analyzer.text.strict_json import to_json
    from overflow_analyzer.text.terminal import progress, terminal_width
    from overflow_analyzer.trace.history import FIGURES, history_of
    from overflow_analyzer.trace.opening import open_trace

    if options["figure"] not in FIGURES:
        raise click.BadParameter(f"{options['figure']!r} is not one of {', '.join(FIGURES)}.", param_hint="'--figure'")
    opened = open_trace(trace)
    history = history_of(opened, tensors, progress=lambda of, total: progress(of, total, "reading"), **options)
    if output_format == "json":
        write(to_json(history))
    elif output_format == "csv":
        write(history_as_csv(history))
    else:
        ascii_only = not shows_bars(sys.stdout)
        width = terminal_width(sys.stdout)
        write(
            render_history(
                history, points=points, markdown=output_format == "markdown", ascii_only=ascii_only, width=width
            )
        )
    return 0
