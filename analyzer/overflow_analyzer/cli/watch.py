"""``overflow-analyze watch``: follow a living run."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import click

from overflow_analyzer.cli.options import TraceCommand, trace_argument
from overflow_analyzer.cli.output import finish, note, write
from overflow_analyzer.errors import EmptyTraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_analyzer.headroom.watching import Snapshot, Watcher


_REST: Final = 20.0  # times as long as a snapshot took
_PATIENCE: Final = 60.0  # seconds without a new frame, where nobody can tell whether the run lives


@click.command(cls=TraceCommand)
@trace_argument()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait this long between two looks, or longer if a look takes long.",
)
@click.option("--once", is_flag=True, help="Look once and end.")
def command(trace: str, interval: float, once: bool) -> int:
    """Follow the run that is being recorded at TRACE: its batch, the least headroom, each tensor that gets an inf/nan.

    Headroom is how many times a value can double before it passes its dtype's limit, in bits. The command ends when the
    run ends; the exit code is 1 if there was an inf/nan. On a terminal the display stays in place; elsewhere each look
    prints a line.

    Example:
      overflow-analyze watch run.parquet --interval 10
    """
    from overflow_analyzer.headroom.watching import Watcher
    from overflow_analyzer.render.watch import LineDisplay, ScreenDisplay
    from overflow_analyzer.text.terminal import is_terminal

    display = ScreenDisplay(trace) if is_terminal(sys.stdout) else LineDisplay()
    alarmed = False
    for snapshot in _snapshots(Watcher(trace), interval, once=once):
        alarmed = alarmed or bool(snapshot.alarms)
        write(display.show(snapshot))
        finish()
    return int(alarmed)


def _snapshots(watcher: Watcher, interval: float, *, once: bool) -> Iterator[Snapshot]:
    """Yield snapshots until the run has ended, is given up, or one was enough."""
    changed, waiting = time.monotonic(), False
    while True:
        started = time.monotonic()
        try:
            snapshot = watcher.snapshot()
        except EmptyTraceError as error:
            if once or time.monotonic() - changed > _PATIENCE:
                raise
            if not waiting:
                note(f"waiting for the first frame ({error})")
            waiting = True
        else:
            yield snapshot
            if snapshot.changed:
                changed = time.monotonic()
            idle = time.monotonic() - changed
            if once or (not snapshot.living and ("unknown" not in snapshot.ended or idle > _PATIENCE)):
                return
        # Watching must not slow the training down: with thousands of parts a snapshot takes a while.
        time.sleep(max(interval, _REST * (time.monotonic() - started)))
