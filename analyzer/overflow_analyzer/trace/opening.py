"""``open_trace``: a directory of parts and leftover rings, a single file, one rank or many -> ``Trace``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from overflow_analyzer.errors import (
    DamagedTraceError,
    EmptyTraceError,
    NotATraceError,
    NotRecordedError,
    TraceNotFoundError,
)
from overflow_analyzer.format.columns import SCHEMA
from overflow_analyzer.format.files import RUN_FILE
from overflow_analyzer.format.parts import Footer, read_footer, read_row_group
from overflow_analyzer.format.run_info import RunInfo
from overflow_analyzer.trace.rank_trace import RankTrace, open_rank

_RANK_DIRECTORY = re.compile(r"rank=(\d{1,9})", re.ASCII)
_URI = re.compile(r"[a-z][a-z0-9+.-]+://", re.ASCII)
_SHOWN_TRACES = 8
_UNKNOWN_RUN = RunInfo(run_id="", rank=0, world_size=1, model_class="", started_ns=0)


@dataclass(frozen=True)
class Trace:
    """A whole trace, with one ``RankTrace`` for each rank that left something."""

    path: Path
    ranks: tuple[RankTrace, ...]
    lost: tuple[str, ...] = field(default=())
    """Sentences about ranks that could not be read at all."""

    @property
    def world_size(self) -> int:
        """The number of ranks with which the run was started."""
        return max([len(self.ranks), *(one.run.world_size for one in self.ranks)])

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the run that left nothing readable."""
        present = {one.rank for one in self.ranks}
        return tuple(rank for rank in range(min(self.world_size, 1 << 20)) if rank not in present)

    def rank(self, rank: int) -> RankTrace:
        """Return one rank's trace.

        Raises:
            NotRecordedError: The trace has no such rank.
        """
        for one in self.ranks:
            if one.rank == rank:
                return one
        present = ", ".join(str(one.rank) for one in self.ranks)
        raise NotRecordedError(f"{self.path}: has no rank {rank}; the ranks in it are {present}")


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Open a trace: a directory, one rank's directory, or one Parquet file.

    Nothing is written; a living run can be opened.

    Args:
        path: What ``TraceRecorder`` was given, or a compacted file.

    Returns:
        The trace, with at least one row.

    Raises:
        TraceNotFoundError: Nothing is there, or it may not be read.
        NotATraceError: Something else is there.
        UnknownVersionError: Written in another format version.
        DamagedTraceError: Nothing of it can be read.
        EmptyTraceError: Nothing was recorded.
    """
    text = os.fspath(path)
    if not text:
        raise TraceNotFoundError("the path of the trace is empty")
    if _URI.match(text):
        raise TraceNotFoundError(f"{text}: a trace is read from a local path; copy it to this machine first")
    where = Path(text)
    try:
        trace = _open_directory(where) if where.is_dir() else _open_file(where)
    except FileNotFoundError:
        raise TraceNotFoundError(f"{where}: there is no such file or directory") from None
    except PermissionError:
        raise TraceNotFoundError(f"{where}: permission denied") from None
    except OSError as error:
        raise TraceNotFoundError(f"{where}: cannot be read ({error.strerror or error})") from None
    if not any(one.ring.num_rows or one.row_groups for one in trace.ranks):
        raise _nothing_in(trace)
    return trace


def _nothing_in(trace: Trace) -> DamagedTraceError | EmptyTraceError:
    lost = [*trace.lost, *(sentence for one in trace.ranks for sentence in one.lost)]
    if lost:
        return DamagedTraceError(f"{trace.path}: nothing of it can be read: {lost[0]}")
    ended = trace.ranks[0].ended if trace.ranks else "unknown"
    reasons = [one.run.end.reason for one in trace.ranks if one.run.end and one.run.end.reason]
    because = f": {reasons[0]}" if reasons else ""
    return EmptyTraceError(
        f"{trace.path}: nothing was recorded (run {ended}{because}), so nothing can be said about the numbers"
    )


def _open_file(path: Path) -> Trace:
    footer = read_footer(path)
    runs = {run.rank: run for run in footer.runs}
    ranks = []
    for rank in sorted(runs or _ranks_in(footer)):
        run = runs.get(rank, _UNKNOWN_RUN)
        ended = run.end.how if run.end is not None else "unknown"
        ranks.append(RankTrace(rank, run, ended, (footer,), pa.Table.from_batches([], SCHEMA)))
    return Trace(path, tuple(ranks))


def _ranks_in(footer: Footer) -> set[int]:
    """The ranks of a file that another tool rewrote without our metadata."""
    ranks: set[int] = set()
    for group in footer.row_groups:
        if group.first_rank is None:
            ranks.add(0)
        elif group.first_rank == group.last_rank:
            ranks.add(group.first_rank)
        else:
            ranks.update(read_row_group(group, ["rank"])["rank"].unique().to_pylist())
    return ranks or {0}


def _open_directory(path: Path) -> Trace:
    directories = {
        int(match[1]): one for one in path.iterdir() if (match := _RANK_DIRECTORY.fullmatch(one.name)) and one.is_dir()
    }
    if not directories and (path / RUN_FILE).exists():
        match = _RANK_DIRECTORY.fullmatch(path.absolute().name)
        directories = {int(match[1]) if match else 0: path}
    if not directories:
        traces = sorted(one.name for one in path.iterdir() if any(one.glob("rank=*")))
        several = f"; traces in it: {', '.join(traces[:_SHOWN_TRACES])}" if traces else ""
        raise NotATraceError(f"{path}: a directory, but not a trace: it has no rank=N directory{several}")
    ranks, lost = [], []
    for rank, directory in sorted(directories.items()):
        try:
            ranks.append(open_rank(rank, directory))
        except DamagedTraceError as error:
            lost.append(str(error))
        except OSError as error:
            lost.append(f"{directory}: cannot be read ({error.strerror or error})")
    if not ranks:
        raise DamagedTraceError(f"{path}: nothing of it can be read: {lost[0]}")
    return Trace(path, tuple(ranks), tuple(lost))
