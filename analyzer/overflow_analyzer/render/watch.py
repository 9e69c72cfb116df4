"""A ``Snapshot`` as text: lines that scroll, or a display that stays in place on a terminal."""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Final

from click import style

from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.sparkline import shows_bars, sparkline
from overflow_analyzer.text.tables import Column, render_table
from overflow_analyzer.text.terminal import shorten, shows_colour, terminal_width
from overflow_analyzer.text.wording import counted, nonfinite_counts

if TYPE_CHECKING:
    from overflow_analyzer.headroom.watching import Alarm, Snapshot


_SHOWN_ALARMS: Final = 5
_LOOKS: Final = 60
_CURVE: Final = "nearest to a limit, look by look  "
_COLUMNS: Final = (
    Column("headroom bits", lambda one: f"{one.bits:.2f}", "right"),
    Column("abs max", lambda one: f"{one.nearest.abs_max:.2e}", "right"),
    Column("dtype", lambda one: one.nearest.dtype),
    Column("module", lambda one: one.module_name or "(root)", name=True),
    Column("tensor", lambda one: one.nearest.context, name=True),
)


class LineDisplay:
    """A line for each snapshot and for each alarm."""

    _alarms = 0

    def show(self, snapshot: Snapshot) -> str:
        """Return what is to be printed for a snapshot: nothing if nothing is new and the run goes on."""
        alarms = [_alarm_line(alarm) for alarm in snapshot.alarms]
        self._alarms += len(alarms)
        if not snapshot.changed and snapshot.living:
            return ""
        line = _head(snapshot, self._alarms)
        if snapshot.worst:
            one = snapshot.worst[0]
            where = f"{escape(one.module_name) or '(root)'} {escape(one.nearest.context)}"
            limit = one.nearest.limits.describe(one.nearest.abs_max)
            line += f"  least headroom {one.bits:.2f} bits: {where} ({limit})"
        return "".join(f"{one}\n" for one in (*alarms, line))


class ScreenDisplay:
    """A display that replaces itself, headed by the trace's path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._alarms: deque[str] = deque(maxlen=_SHOWN_ALARMS)
        self._count = 0
        self._height = 0
        self._used: deque[float] = deque(maxlen=_LOOKS)

    def show(self, snapshot: Snapshot) -> str:
        """Return what takes the last display off the terminal and puts the new one there."""
        width, coloured = terminal_width(sys.stdout) or 80, shows_colour(sys.stdout)
        self._alarms.extend(map(_alarm_line, snapshot.alarms))
        self._count += len(snapshot.alarms)
        lines = [
            style(shorten(f"{escape(self._path)}  {_head(snapshot, self._count)}", width - 1), bold=coloured or None),
            "",
        ]
        lines += render_table(_COLUMNS, snapshot.worst, width=width - 1).splitlines()
        lines += self._curve(snapshot, width)
        lines += ["", *(style(shorten(alarm, width - 1), "red" if coloured else None) for alarm in self._alarms)]
        # Lines are kept below the terminal's width: one that wraps would count as two.
        erase = f"\x1b[{self._height}F\x1b[J" if self._height else ""
        self._height = len(lines)
        return erase + "".join(f"{line}\n" for line in lines)

    def _curve(self, snapshot: Snapshot, width: int) -> list[str]:
        """Return the least headroom over the looks so far: the higher a bar, the nearer a figure is to its limit."""
        if snapshot.worst:
            self._used.append(2.0 ** -snapshot.worst[0].bits)
        if len(self._used) < 2:  # noqa: PLR2004  a curve takes two
            return []
        bars = sparkline(self._used, min(_LOOKS, width - len(_CURVE) - 1), ascii_only=not shows_bars(sys.stdout))
        return ["", f"{_CURVE}{bars}"]


def _head(snapshot: Snapshot, alarms: int) -> str:
    ended = " / ".join(dict.fromkeys(snapshot.ended))
    return f"{ended}  batch {snapshot.batch_number}  frame {snapshot.frame_number}  {counted(alarms, 'alarm')}"


def _alarm_line(alarm: Alarm) -> str:
    what = nonfinite_counts(alarm.nan_count, alarm.inf_count)
    where = f"{escape(alarm.module_name) or '(root)'} {escape(alarm.context)}"
    return f"ALARM rank {alarm.rank} batch {alarm.batch_number} frame {alarm.frame_number}: {what} in {where}"
