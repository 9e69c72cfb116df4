"""What is in a trace, counted independently with pandas."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.convert.compact import compact_trace
from overflow_analyzer.format.run_info import EndInfo, HowEnded
from overflow_analyzer.render.summary import render_summary, summary_as_json, why_missing
from overflow_analyzer.trace.gaps import Gap
from overflow_analyzer.trace.opening import open_trace
from overflow_analyzer.trace.rank_trace import RankTrace
from overflow_analyzer.trace.summary import summarize
from tests.analyzer.samples import two_batches, write_ranks
from tests.rings import Ring, write_killed
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.format.parts import RowGroup


def frames_numbered(numbers: Sequence[int], frames_a_batch: int) -> list[Frame]:
    dtypes = ["float16", "float32", "int64", None]
    return [
        frame(
            at,
            at // frames_a_batch,
            "a",
            tensor("output", "output", dtype=dtypes[at // 7 % 4]),
            tensor("input", "input[0]"),
        )
        for at in numbers
    ]


@settings(max_examples=40)
@given(
    numbers=st.sets(st.integers(0, 60), min_size=1, max_size=30),
    frames_a_batch=st.integers(1, 5),
    frames_a_part=st.integers(1, 12),
    as_file=st.booleans(),
)
def test_counts_agree_with_pandas(
    tmp_path_factory: pytest.TempPathFactory,
    numbers: set[int],
    frames_a_batch: int,
    frames_a_part: int,
    as_file: bool,
) -> None:
    # GIVEN a trace with any frames in it, in a directory or in one file
    path = tmp_path_factory.mktemp("run") / "run.parquet"
    frames = frames_numbered(sorted(numbers), frames_a_batch)
    write_trace(path, frames, frames_per_part=frames_a_part)
    if as_file:
        compact_trace(open_trace(path), path.with_name("one.parquet"), rows_a_group=7)
        path = path.with_name("one.parquet")

    # WHEN it is summed up, from its footers as far as they go
    summary = summarize(open_trace(path))

    # THEN another tool that reads every row agrees
    table = pd.read_parquet(path)
    (rank,) = summary.ranks
    assert (summary.rows, summary.frames) == (len(table), table["frame_number"].nunique())
    assert summary.batches == rank.batches.count == table["batch_number"].nunique()
    assert (rank.frames.first, rank.frames.last) == (table["frame_number"].min(), table["frame_number"].max())
    assert set(rank.dtypes) == set(table["dtype"].dropna())
    assert rank.frames.missing == max(numbers) + 1 - len(numbers)


def columns_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The columns that summing up reads."""
    read: set[str] = set()
    real = RankTrace.read

    def spy(self: RankTrace, group: RowGroup, columns: Sequence[str] | None = None) -> Any:
        read.update(columns or ["all of them"])
        return real(self, group, columns)

    monkeypatch.setattr(RankTrace, "read", spy)
    summarize(open_trace(path))
    return read


def test_frames_that_a_footer_proves_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN parts without a gap, each of at most two neighbouring batches
    path = write_trace(tmp_path / "run.parquet", frames_numbered(range(20), 5), frames_per_part=6)
    assert columns_read(path, monkeypatch) == {"dtype"}


def test_what_a_footer_leaves_open_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(tmp_path / "run.parquet", frames_numbered([0, 1, 9, 10], 1), frames_per_part=6)
    assert columns_read(path, monkeypatch) == {"frame_number", "batch_number", "dtype"}


def test_ranks_are_summed_up_together(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "run.parquet")
    summary = summarize(open_trace(path))
    assert (summary.rows, summary.frames, summary.batches) == (46, 17, 3)
    assert summary.bytes == sum(one.stat().st_size for one in path.rglob("*.parquet"))
    assert (summary.world_size, summary.missing_ranks, summary.closed) == (4, (2,), False)
    assert summary.ranks[2].frames.gaps == [Gap(2, 3)]
    assert summary.ranks[2].ring_rows == 13


def test_a_file_of_several_ranks_has_its_bytes_once(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "run.parquet")
    compact_trace(open_trace(path), tmp_path / "one.parquet")
    summary = summarize(open_trace(tmp_path / "one.parquet"))
    assert summary.bytes == (tmp_path / "one.parquet").stat().st_size
    assert [one.frames.count for one in summary.ranks] == [6, 7, 4]


@pytest.mark.parametrize(
    ("how", "closed"),
    [("closed", True), ("detected", True), ("aborted", True), ("exception", False), ("switched off", False)],
)
def test_closed_means_ended_as_asked(how: HowEnded, closed: bool, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.parquet", two_batches(), replace(RUN, end=EndInfo(how, 1)))
    assert summarize(open_trace(path)).closed is closed


def test_a_killed_run_is_not_closed(tmp_path: Path) -> None:
    path = write_killed(tmp_path / "run.parquet", two_batches(), replace(RUN, end=None))
    summary = summarize(open_trace(path))
    assert (summary.closed, summary.ranks[0].ended, summary.frames) == (False, "killed", 6)


def test_frames_after_the_last_kept_one_are_a_gap(tmp_path: Path) -> None:
    end = EndInfo("closed", 1, frames_seen=9)
    path = write_trace(tmp_path / "run.parquet", two_batches(), replace(RUN, end=end))
    assert summarize(open_trace(path)).ranks[0].frames.gaps == [Gap(6, 8)]


def test_why_frames_are_missing(tmp_path: Path) -> None:
    # GIVEN a run that kept every third batch and lost frames to a slow and a small disk
    options = {**RUN.options, "every_n_batches": 3, "trace_batch_nums": [1, 2]}
    end = EndInfo("closed", 1, frames_seen=99, frames_dropped=4, parts_removed=1)
    path = write_trace(tmp_path / "run.parquet", two_batches(), replace(RUN, options=options, end=end))

    # THEN all of it is said
    assert why_missing(summarize(open_trace(path)).ranks[0]) == (
        "the recorder was asked to keep one batch in 3, batches 1, 2, the window of the last 21 frames",
        "max_bytes removed 1 part, the oldest first",
        "4 frames given up because the disk was slower than the run",
    )


def test_where_nothing_is_missing_nothing_is_explained(tmp_path: Path) -> None:
    assert why_missing(summarize(open_trace(write_trace(tmp_path / "run.parquet", two_batches()))).ranks[0]) == ()


def test_what_the_recorder_did_not_see_is_quoted(tmp_path: Path) -> None:
    # GIVEN two ranks, of which one did not see everything
    path = tmp_path / "run.parquet"
    for rank, notes in enumerate([(), ("lm_head: never called", "norm: never called")]):
        write_trace(path, frames_numbered([0, 1], 1), replace(RUN, rank=rank, world_size=2, notes=notes))
    # WHEN they are summed up
    summary = summarize(open_trace(path))
    # THEN text and JSON have its words
    assert "not seen  rank 1: lm_head: never called; norm: never called\n" in render_summary(summary)
    assert [one["notes"] for one in summary_as_json(summary)["by_rank"]] == [
        (),
        ("lm_head: never called", "norm: never called"),
    ]


def test_parts_and_ring_are_one_run(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.parquet", two_batches()[:3], replace(RUN, end=None))
    Ring(64).append(two_batches(), kept=True).save(path / "rank=0")
    rank = summarize(open_trace(path)).ranks[0]
    assert (rank.frames.count, rank.frames.missing, rank.parts, rank.ring_rows) == (6, 0, 1, 8)


def test_the_json_has_what_is_promised(tmp_path: Path) -> None:
    values = summary_as_json(summarize(open_trace(write_ranks(tmp_path / "run.parquet"))))
    assert {"format_version", "frames", "batches", "ranks", "rows", "bytes", "closed"} <= set(values)
    assert (values["ranks"], values["frames"], values["closed"]) == (3, 17, False)
