"""Opening whatever lies under a path."""

from __future__ import annotations

import fcntl
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.convert.compact import compact_trace
from overflow_analyzer.errors import (
    NotATraceError,
    NotRecordedError,
    TraceNotFoundError,
)
from overflow_analyzer.format.files import RING_FILE
from overflow_analyzer.trace import rank_trace
from overflow_analyzer.trace.opening import open_trace
from tests.analyzer.samples import two_batches, write_clean, write_ranks
from tests.rings import Ring, write_killed
from tests.traces import RUN, table_of, write_trace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "run.parquet", two_batches(), frames_per_part=2)


def test_frames_come_back_in_order(trace: Path) -> None:
    (rank,) = open_trace(trace).ranks
    assert list(rank.frames()) == two_batches()
    assert (rank.rows, rank.frame_count, rank.ended, rank.run) == (16, 6, "closed", RUN)


def test_a_ranks_directory_is_a_trace_too(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.rank for one in open_trace(trace / "rank=0").ranks] == [0]
    monkeypatch.chdir(trace / "rank=0")
    assert list(open_trace(".").ranks[0].frames()) == two_batches()


def test_a_part_is_a_trace_too(trace: Path) -> None:
    part = trace / "rank=0" / "part-00000001.parquet"
    assert [one.frame_number for one in open_trace(part).ranks[0].frames()] == [2, 3]


@pytest.mark.parametrize(
    ("batch", "frames", "expected"),
    [
        (None, None, [0, 1, 2, 3, 4, 5]),
        (1, None, [3, 4, 5]),
        (7, None, []),
        (None, range(1, 4), [1, 2, 3]),
        (0, range(2, 9), [2]),
        (None, range(9, 3), []),
    ],
)
@pytest.mark.parametrize("whole_rows", [1, 1 << 17])
def test_a_selection_of_frames(
    *,
    batch: int | None,
    frames: range | None,
    expected: list[int],
    whole_rows: int,
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN row groups that are read whole, and ones so large that they are streamed
    monkeypatch.setattr(rank_trace, "_ROWS_READ_WHOLE", whole_rows)
    (rank,) = open_trace(trace).ranks

    # THEN the same frames are selected
    assert [one.frame_number for one in rank.frames(batch=batch, frames=frames)] == expected


def test_a_selection_has_the_columns_that_were_asked_for(trace: Path) -> None:
    (rank,) = open_trace(trace).ranks
    assert next(rank.tables(["abs_max", "role"], batch=1)).column_names == ["abs_max", "role"]


@settings(max_examples=25)
@given(sealed=st.integers(0, 6), window=st.integers(1, 9), capacity=st.integers(16, 40))
def test_no_frame_is_there_twice_and_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory, sealed: int, window: int, capacity: int
) -> None:
    # GIVEN a killed run, some of whose frames had been sealed while the ring still holds them
    path = tmp_path_factory.mktemp("run") / "run.parquet"
    write_trace(path, two_batches()[:sealed], replace(RUN, end=None))
    Ring(capacity, window).append(two_batches(), kept=True).save(path / "rank=0")

    # THEN each frame is there once
    assert list(open_trace(path).ranks[0].frames()) == two_batches()


def test_several_ranks_and_missing_ones(tmp_path: Path) -> None:
    found = open_trace(write_ranks(tmp_path / "run.parquet"))
    assert [one.rank for one in found.ranks] == [0, 1, 3]
    assert (found.world_size, found.missing_ranks) == (4, (2,))
    assert found.rank(3).rank == 3


def test_a_rank_that_is_not_there(trace: Path) -> None:
    with pytest.raises(NotRecordedError, match=r"has no rank 1; the ranks in it are 0"):
        open_trace(trace).rank(1)


def test_how_a_run_ended_is_told_by_the_lock_on_its_ring(tmp_path: Path) -> None:
    # GIVEN a ring whose owner is gone
    path = write_killed(tmp_path / "run.parquet", two_batches(), replace(RUN, end=None))
    assert open_trace(path).ranks[0].ended == "killed"

    # WHEN somebody holds its lock, THEN the run lives
    with (path / "rank=0" / RING_FILE).open("rb") as ring:
        fcntl.flock(ring, fcntl.LOCK_EX)
        assert open_trace(path).ranks[0].ended == "still running"


def test_looking_at_a_living_run_does_not_get_in_its_way(tmp_path: Path) -> None:
    # GIVEN a trace that is open for reading
    path = write_killed(tmp_path / "run.parquet", two_batches(), replace(RUN, end=None))
    before = sorted((one.name, one.stat().st_mtime_ns) for one in (path / "rank=0").iterdir())
    found = open_trace(path)

    # THEN its lock is free, and nothing was written
    with (path / "rank=0" / RING_FILE).open("rb") as ring:
        fcntl.flock(ring, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert sorted((one.name, one.stat().st_mtime_ns) for one in (path / "rank=0").iterdir()) == before
    assert found.ranks[0].frame_count == 6


def test_a_file_that_another_tool_rewrote_is_a_trace(tmp_path: Path) -> None:
    # GIVEN a file of two ranks in one row group, without a word about the run
    table = table_of(two_batches())
    ranks = pa.array([at % 2 for at in range(table.num_rows)], pa.int32())
    path = tmp_path / "one.parquet"
    pq.write_table(table.append_column("rank", ranks).replace_schema_metadata(None), path)

    # THEN each rank has its rows
    found = open_trace(path)
    assert [(one.rank, one.rows, one.ended) for one in found.ranks] == [(0, 8, "unknown"), (1, 8, "unknown")]
    rows = [row for one in found.ranks for table in one.tables(["context"]) for row in table["context"].to_pylist()]
    assert sorted(rows) == sorted(table["context"].to_pylist())


@pytest.mark.parametrize("whole_rows", [1, 1 << 17])
def test_frames_are_counted_once_where_a_piece_ends_within_one(
    whole_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a file whose footer does not say how many frames a rank has, read in small pieces
    monkeypatch.setattr(rank_trace, "_ROWS_READ_WHOLE", whole_rows)
    monkeypatch.setattr("overflow_analyzer.format.parts._ROWS_STREAMED", 3)
    path = write_ranks(tmp_path / "run.parquet")
    compact_trace(open_trace(path), tmp_path / "one.parquet")

    # THEN its frames are counted as the directory's are
    assert [one.frame_count for one in open_trace(tmp_path / "one.parquet").ranks] == [6, 7, 4]
    assert [one.frame_count for one in open_trace(path).ranks] == [6, 7, 4]


def test_bytes_are_those_of_the_parts(tmp_path: Path) -> None:
    path = write_clean(tmp_path / "run.parquet")
    assert open_trace(path).ranks[0].bytes == sum(one.stat().st_size for one in path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "the path of the trace is empty"),
        ("s3://bucket/run.parquet", "s3://bucket/run.parquet: a trace is read from a local path"),
        ("nosuch", "nosuch: there is no such file or directory"),
    ],
)
def test_a_path_that_cannot_be_one(path: str, message: str) -> None:
    with pytest.raises(TraceNotFoundError, match=message):
        open_trace(path)


def test_a_directory_of_several_traces_names_them(tmp_path: Path) -> None:
    for name in ("b.parquet", "a.parquet"):
        write_clean(tmp_path / name)
    (tmp_path / "notes").mkdir()
    with pytest.raises(NotATraceError, match=r"it has no rank=N directory; traces in it: a\.parquet, b\.parquet$"):
        open_trace(tmp_path)
