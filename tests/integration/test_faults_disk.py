"""A real disk that is small, full or read-only."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer.errors import TraceError
from overflow_analyzer.trace.opening import open_trace
from tests.integration.failing_disks import record_many, train
from tests.integration.runs import FRAMES, rows_of, warnings_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.crew import Crew

BATCHES = 600


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("only root mounts a file system; elsewhere test_faults.py stands in for it")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_fills_up_in_the_middle(small_disk: Path, crew: Crew) -> None:
    # GIVEN a disk with room for some parts beside the ring
    path = small_disk / "run.parquet"

    # WHEN more is recorded than fits on it
    ended = crew.run(record_many, path, {"every_n_batches": 1}, BATCHES)

    # THEN training goes on to its end after one warning: no store into the ring needs room that is not there
    assert ended.status == 0, ended.output
    assert ended.output.count("RESULT") == 1
    assert len(warnings_in(ended.output)) == 1, ended.output
    assert "No space left on device" in ended.output

    # AND all that was sealed and all that the ring holds is there; what found no room any more is counted
    rows = rows_of(path)
    (rank,) = open_trace(path).ranks
    assert (rank.ended, rank.lost) == ("switched off", ())
    assert len(rank.footers) > 3
    assert len(rows) > 1000
    assert max(rows) + 1 - len(rows) <= rank.dropped_frames


def test_a_disk_without_room_for_the_ring(small_disk: Path, crew: Crew, bits_without_a_recorder: str) -> None:
    # GIVEN a disk that is full from the start
    (small_disk / "full").write_bytes(bytes(390 * 1024))
    ended = crew.run(train, small_disk / "run.parquet", {"every_n_batches": 1}, "none", "", "error")

    # THEN training starts all the same, with one warning
    assert ended.status == 0, ended.output
    assert bits_without_a_recorder in ended.output.splitlines()
    assert len(warnings_in(ended.output)) == 1, ended.output


def test_a_bound_keeps_a_small_disk_from_filling_up(small_disk: Path, crew: Crew) -> None:
    path = small_disk / "run.parquet"
    ended = crew.run(record_many, path, {"every_n_batches": 1, "max_bytes": 300_000}, BATCHES)
    assert ended.status == 0, ended.output
    assert warnings_in(ended.output) == []
    assert max(rows_of(path)) == BATCHES * FRAMES - 1


def test_a_read_only_disk(small_disk: Path, crew: Crew, bits_without_a_recorder: str) -> None:
    # GIVEN
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    # WHEN
    ended = crew.run(train, small_disk / "run.parquet", {}, "none", "", "always")

    # THEN
    assert ended.status == 0, ended.output
    assert bits_without_a_recorder in ended.output.splitlines()
    assert len(warnings_in(ended.output)) == 1, ended.output
    assert "Read-only file system" in ended.output
    with pytest.raises(TraceError):
        open_trace(small_disk / "run.parquet")
