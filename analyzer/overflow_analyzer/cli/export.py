"""``overflow-analyze export``: a trace as TensorBoard events, CSV or JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from overflow_analyzer.cli.options import TraceCommand, output_options, rank_option, trace_argument
from overflow_analyzer.cli.output import open_output, say_done


@click.command(cls=TraceCommand)
@trace_argument()
@click.option(
    "--to",
    "kind",
    type=click.Choice(["tensorboard", "csv", "jsonl"]),
    required=True,
    help="TensorBoard scalars over batches, or every row as CSV or strict JSON lines.",
)
@output_options("PATH", "A directory for tensorboard, otherwise a file; - is stdout.")
@rank_option()
def command(
    trace: str, kind: Literal["tensorboard", "csv", "jsonl"], output: str, overwrite: bool, rank: int | None
) -> int:
    """Write the rows of TRACE for other tools.

    In CSV a null is an empty field. In JSON lines a non-finite number is the string "inf", "-inf" or "nan". TensorBoard
    needs the extra: pip install 'overflow-trace[tensorboard]'.

    Example:
      overflow-analyze export run.parquet --to tensorboard -o events
      overflow-analyze export run.parquet --to csv -o run.csv
    """
    from overflow_analyzer.convert.export import csv_pieces, json_lines, ranked_tables
    from overflow_analyzer.convert.tensorboard import export_tensorboard
    from overflow_analyzer.text.terminal import progress
    from overflow_analyzer.trace.opening import open_trace

    opened = open_trace(trace)
    tables = ranked_tables(opened, rank=rank, progress=lambda tables, total: progress(tables, total, "exporting"))
    if kind == "tensorboard":
        if overwrite or output == "-":
            raise click.UsageError(
                "tensorboard is written into a new directory: neither --overwrite nor -o - has a meaning"
            )
        say_done(output, f"{export_tensorboard(tables, Path(output))} scalars")
        return 0
    pieces = csv_pieces(tables) if kind == "csv" else json_lines(tables)
    with open_output(output, overwrite=overwrite, reading=opened.path) as file:
        size = sum(file.write(piece.encode()) for piece in pieces)
    say_done(output, f"{size} bytes")
    return 0
