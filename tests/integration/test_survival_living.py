"""Opening the trace of a run that goes on: never an error, never a frame missing that was published before."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from overflow_analyzer.errors import EmptyTraceError
from overflow_analyzer.format.run_info import EndInfo
from overflow_analyzer.trace.opening import open_trace
from tests.integration.runs import Seen
from tests.windows import make_storage, publish

if TYPE_CHECKING:
    from overflow_analyzer.trace.rank_trace import RankTrace
    from tests.crew import Crew

WINDOW = 21
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "the window alone": {"max_frames_to_save": WINDOW},
    "every batch": {"every_n_batches": 1},
    "every batch, within a bound": {"every_n_batches": 1, "max_bytes": 1 << 18},
    "a tiny ring": {"max_bytes": 1 << 16, "max_frames_to_save": 5},
}


def publish_for_ever(path: str, seen: str, options: dict[str, Any], pause: float = 0.0) -> None:
    """Publish frames; how many is said after each, so that a reader knows what it may ask for."""
    counter = Seen(seen)
    storage = make_storage(Path(path), **options)
    at = 0
    while True:
        publish(storage, at * 10.0, selected="every_n_batches" in options)
        at += 1
        counter.frames = at
        time.sleep(pause)


def read_numbers(path: Path) -> tuple[RankTrace, Any]:
    """Open a trace and read all of it, without a Python object a row; returns the numbers of its frames, in order."""
    (rank,) = open_trace(path).ranks
    columns = ["frame_number", "context", "abs_max"]
    tables = [table.unify_dictionaries().combine_chunks() for table in rank.tables(columns)]
    numbers = np.concatenate([table["frame_number"].to_numpy() for table in tables])
    row = np.concatenate([table["context"].cast("string").to_numpy() for table in tables])
    values = np.concatenate([table["abs_max"].to_numpy() for table in tables])
    assert (np.diff(numbers) >= 0).all()
    frames, rows = np.unique(numbers, return_counts=True)
    assert (rows == 2).all(), "a frame is there twice or in part"
    assert (values == numbers * 10.0 + (row == "output[1]")).all()
    return rank, frames


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_reading_while_it_writes(name: str, crew: Crew, tmp_path: Path) -> None:
    # GIVEN a run that publishes as fast as it goes
    path, seen = tmp_path / "run.parquet", Seen(tmp_path / "seen")
    member = crew.start(publish_for_ever, path, tmp_path / "seen", CONFIGURATIONS[name])
    member.wait_until(lambda: seen.frames > 100)
    try:
        for _ in range(40):
            # WHEN its trace is opened and read whole
            before = seen.frames
            rank, frames = read_numbers(path)

            # THEN it has whole frames, none twice, with the figures they were published with, and nothing is lost
            assert (rank.ended, rank.lost) == ("still running", ())

            # AND whatever was to be kept when the reading began, or something newer
            if name == "every batch":
                assert before - rank.dropped_frames <= len(frames)
                assert rank.dropped_frames or len(frames) == frames[-1] + 1
            assert frames[-1] >= before - 1 - rank.dropped_frames
    finally:
        member.kill()
        member.wait()


def start_and_end_again_and_again(path: str, seen: str) -> None:
    """Start, record a little, close, and start anew at the same path."""
    counter = Seen(seen)
    for run in range(10**9):
        storage = make_storage(Path(path), every_n_batches=1, overwrite=run > 0)
        for at in range(30):
            publish(storage, at * 10.0)
        counter.frames = run + 1
        storage.close(EndInfo("closed", 1))


def test_reading_while_runs_start_and_end(crew: Crew, tmp_path: Path) -> None:
    # GIVEN a path at which one run takes the place of another all the time
    path, seen = tmp_path / "run.parquet", Seen(tmp_path / "seen")
    member = crew.start(start_and_end_again_and_again, path, tmp_path / "seen")
    member.wait_until(lambda: seen.frames > 2)
    states = set()
    try:
        for _ in range(150):
            # WHEN it is opened, THEN there is a trace, or one in which nothing is recorded yet
            try:
                rank = open_trace(path).ranks[0]
            except EmptyTraceError:
                continue
            states.add(rank.ended)
            assert rank.lost == ()
    finally:
        member.kill()
        member.wait()
    assert states & {"still running", "closed"}


def test_the_command_line_reads_a_living_run(crew: Crew, tmp_path: Path) -> None:
    # GIVEN a run that goes on
    path, seen = tmp_path / "run.parquet", Seen(tmp_path / "seen")
    member = crew.start(publish_for_ever, path, tmp_path / "seen", {"every_n_batches": 1, "max_bytes": 1 << 18}, 0.001)
    member.wait_until(lambda: seen.frames > 500)
    try:
        # WHEN its trace is looked at, THEN the command answers, and says that the run has not ended
        for command in ("info", "report"):
            done = subprocess.run(
                [sys.executable, "-m", "overflow_analyzer", command, str(path), "--format", "json"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            answer = json.loads(done.stdout)
            assert command == "report" or answer["closed"] is False
    finally:
        member.kill()
        member.wait()
