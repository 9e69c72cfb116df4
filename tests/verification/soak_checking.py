"""What a trace must hold after a kill, by a run that nobody killed, and what it holds."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from overflow_analyzer import open_trace

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self

    from overflow_analyzer.trace.rank_trace import RankTrace

__all__ = ["Acknowledged", "Control", "Figures", "check_rank"]

Row = dict[str, Any]


class Acknowledged(NamedTuple):
    """What a run said itself, after the fact, into files of its own."""

    forward_frames: int
    """Forward hooks that have returned."""
    batches: int
    """Batches that have ended, with their backward and their step."""


@dataclass
class Figures:
    """Frames, of one rank or of many."""

    acknowledged: int = 0
    """Frames whose hook had returned, as far as they were measured."""
    wanted: int = 0
    """Of these, frames that the trace must hold."""
    found: int = 0
    """Of those, frames that it holds."""
    gave_way: int = 0
    """Frames of batches that nobody asked for, which found the ring full and are counted so in the trace."""
    lost: int = 0
    doubled: int = 0
    different: int = 0

    def __iadd__(self, other: Figures) -> Self:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self

    @property
    def faults(self) -> int:
        """Frames with which something is wrong."""
        return self.lost + self.doubled + self.different


class Control:
    """A run that nobody killed: the rows of each frame that is measured.

    Args:
        path: Its trace.
        forward_frames: Frames of a batch's forward.
    """

    def __init__(self, path: Path, forward_frames: int) -> None:
        self.rows: dict[int, list[Row]] = {}
        for number, rows in _frames(open_trace(path).rank(0)):
            if number in self.rows:
                raise ValueError(f"{path}: frame {number} is there twice in the control run")
            self.rows[number] = rows
        self._forward_frames = forward_frames

    def is_selected(self, number: int, options: dict[str, Any]) -> bool:
        """Whether a frame is of a batch that is written whole."""
        batch, every = self.rows[number][0]["batch_number"], options.get("every_n_batches")
        return batch in options.get("trace_batch_nums", ()) or (every is not None and batch % every == 0)

    def acknowledged(self, said: Acknowledged) -> list[int]:
        """Return the numbers of the measured frames whose hook had returned, in order."""
        numbers = [number for number, rows in self.rows.items() if rows[0]["batch_number"] < said.batches]
        # Of the batch under way: its forward's frames come in order of completion.
        forward = [
            number
            for number, rows in self.rows.items()
            if rows[0]["batch_number"] == said.batches and rows[0]["phase"] == "train"
        ]
        return numbers + forward[: said.forward_frames - said.batches * self._forward_frames]


def check_rank(path: Path, rank: int, control: Control, said: Acknowledged, options: dict[str, Any]) -> Figures:
    """Open a killed run's trace and compare.

    Args:
        path: The trace.
        rank: Whose.
        control: What its frames are.
        said: What the run acknowledged.
        options: The recorder's.

    Raises:
        TraceError: It does not open.
    """
    trace, figures, found = open_trace(path).rank(rank), Figures(), {}
    for number, rows in _frames(trace):
        figures.doubled += number in found or len(rows) > len(control.rows.get(number, rows))
        found[number] = rows
    acknowledged = control.acknowledged(said)
    oldest = _oldest(path / f"rank={rank}", found, options)
    newest = max(found, default=-1)
    wanted = {
        number: selected
        for number in acknowledged
        if number >= oldest
        if (selected := control.is_selected(number, options)) or number > newest - options["max_frames_to_save"]
    }
    missing = [selected for number, selected in wanted.items() if number not in found]
    figures.acknowledged, figures.wanted, figures.found = len(acknowledged), len(wanted), len(wanted) - len(missing)
    figures.gave_way = min(missing.count(False), trace.dropped_frames)
    figures.lost = len(missing) - figures.gave_way
    # Frames behind the last acknowledged one may be of a forward that an exception left.
    last = acknowledged[-1] if acknowledged else -1
    figures.different = sum(found[number] != control.rows.get(number) for number in found if number <= last)
    return figures


def _oldest(directory: Path, found: dict[int, Any], options: dict[str, Any]) -> int:
    """Return the frame before which all may be gone: under a bound the oldest go, while the rest fills most of it."""
    bound = options.get("max_bytes")
    full = bound is not None and sum(one.stat().st_size for one in directory.iterdir()) > bound // 2
    return min(found, default=0) if full else 0


def _frames(trace: RankTrace) -> list[tuple[int, list[Row]]]:
    """Return number and rows of each frame, in the trace's order; a frame in two places is there twice."""
    rows = itertools.chain.from_iterable(table.drop_columns(["time_ns"]).to_pylist() for table in trace.tables())
    return [(number, list(group)) for number, group in itertools.groupby(rows, lambda row: row["frame_number"])]
