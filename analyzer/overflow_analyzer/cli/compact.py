"""``overflow-analyze compact``: one Parquet file of a whole trace."""

from __future__ import annotations

import click

from overflow_analyzer.cli.options import TraceCommand, output_options, trace_argument
from overflow_analyzer.cli.output import note, open_output, say_done


@click.command(cls=TraceCommand)
@trace_argument()
@output_options("FILE", "The file to write; - is stdout.")
def command(trace: str, output: str, overwrite: bool) -> int:
    """Write all ranks and parts of TRACE into one Parquet file, which is a trace too.

    It holds the same frames in the same order, with a column `rank`. The trace of a killed or a living run is written
    as far as it goes. FILE gets its name when it is whole.

    Example:
      overflow-analyze compact run.parquet -o run-1.parquet
    """
    from overflow_analyzer.convert.compact import compact_trace
    from overflow_analyzer.text.terminal import progress
    from overflow_analyzer.text.wording import counted
    from overflow_analyzer.trace.opening import open_trace

    opened = open_trace(trace)
    with open_output(output, overwrite=overwrite, reading=opened.path) as file:
        done = compact_trace(opened, file, progress=lambda tables, total: progress(tables, total, "compacting"))
    for sentence in (*opened.lost, *(sentence for rank in opened.ranks for sentence in rank.lost)):
        note(f"not in {output}: {sentence}")
    sizes = (counted(done.ranks, "rank"), counted(done.frames, "frame"), counted(done.rows, "row"))
    say_done(output, f"{', '.join(sizes)}, {done.bytes} bytes")
    return 0
