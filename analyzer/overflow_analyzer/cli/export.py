"""``overflow-analyze export``: a trace as TensorBoard events, CSV or JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from overflow_analyzer.cli.options import TraceCommand, rank_option, trace_argument
from overflow_analyzer.cli.output import write

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


@click.command(cls=TraceCommand)
@trace_argument()
@click.option(
    "--to",
    "kind",
    type=click.Choice(["tensorboard", "csv", "jsonl"]),
    required=True,
    help="TensorBoard scalars over batches, or every row as CSV or strict JSON lines.",
)
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    type=click.Path(),
    required=True,
    help="A directory for tensorboard, else a file; - is stdout.",
)
@click.option("--overwrite", is_flag=True, help="Replace the file if it is there.")
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
    from overflow_analyzer.convert.export import csv_pieces, json_lines, save
    from overflow_analyzer.convert.tensorboard import export_tensorboard

    tables = _tables(trace, rank)
    if kind == "tensorboard":
        if overwrite or output == "-":
            raise click.UsageError(
                "tensorboard is written into a new directory: neither --overwrite nor -o - has a meaning"
            )
        write(f"{output}: {export_tensorboard(tables, Path(output))} scalars\n")
        return 0
    pieces = csv_pieces(tables) if kind == "csv" else json_lines(tables)
    if output == "-":
        write(pieces)
    else:
        write(f"{output}: {save(pieces, Path(output), overwrite=overwrite)} bytes\n")
    return 0


def _tables(path: str, rank: int | None) -> Iterator[pa.Table]:
    from overflow_analyzer.convert.export import ranked_tables
    from overflow_analyzer.text.terminal import progress
    from overflow_analyzer.trace.opening import open_trace

    return ranked_tables(
        open_trace(path), rank=rank, progress=lambda tables, total: progress(tables, total, "exporting")
    )
