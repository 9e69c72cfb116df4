"""``overflow-analyze batch``: one batch, whole, as tracing mode prints it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from overflow_analyzer.cli.options import Format, TraceCommand, format_option, rank_option, trace_argument
from overflow_analyzer.cli.output import note, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.trace.rank_trace import RankTrace


@click.command(cls=TraceCommand)
@trace_argument()
@click.argument("number", metavar="N", type=click.IntRange(min=0))
@rank_option()
@format_option()
def command(trace: str, number: int, rank: int | None, output_format: Format) -> int:
    """Print every recorded frame of batch N of TRACE (0-based), in the standard report's format.

    The exit code is 0 whatever the figures are. Use `report` to look for an inf/nan.

    Example:
      overflow-analyze batch run.parquet 1
    """
    from overflow_analyzer.trace.batches import batch_of
    from overflow_analyzer.trace.opening import open_trace

    opened = open_trace(trace)
    ranks = batch_of(opened, number, rank=rank)
    if output_format == "json":
        write(_json(ranks, number))
    else:
        write(_text(ranks, number, opened.world_size, markdown=output_format == "markdown"))
    return 0


def _text(ranks: tuple[RankTrace, ...], number: int, world_size: int, *, markdown: bool) -> Iterator[str]:
    from overflow_analyzer.render.report import render_batch
    from overflow_analyzer.text.terminal import highlight, shows_colour

    coloured = shows_colour(sys.stdout) and not markdown
    yield "```text\n" if markdown else ""  # lines of frames are indented too far to close it
    for rank in ranks:
        yield f"rank {rank.rank} of {world_size}\n" if world_size > 1 else ""
        for frame in _noting_gaps(rank, number):
            yield highlight(render_batch([frame]), on=coloured)
    yield "```\n" if markdown else ""


def _json(ranks: tuple[RankTrace, ...], number: int) -> Iterator[str]:
    """Yield one object, a frame a line, so that a batch of any size is never in memory whole."""
    from overflow_analyzer.text.strict_json import to_json_line

    yield f'{{"batch_number": {number}, "ranks": ['
    for at, rank in enumerate(ranks):
        yield f'{"," if at else ""}\n{{"rank": {rank.rank}, "frames": ['
        for position, frame in enumerate(_noting_gaps(rank, number)):
            yield f"{',' if position else ''}\n{to_json_line(frame).rstrip()}"
        yield "\n]}"
    yield "\n]}\n"


def _noting_gaps(rank: RankTrace, number: int) -> Iterator[Frame]:
    from overflow_analyzer.text.wording import counted

    expected = missing = 0
    for frame in rank.frames(batch=number):
        missing += max(0, frame.frame_in_batch - expected)
        expected = frame.frame_in_batch + 1
        yield frame
    if missing:
        note(f"rank {rank.rank}: {counted(missing, 'frame')} of batch {number} not in the trace")
