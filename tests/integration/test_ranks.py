"""Two real processes of one run: each has its own files, and what one loses costs the other nothing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer.first_nonfinite.finding import find_first_nonfinite
from overflow_analyzer.trace.coverage import coverage_of
from overflow_analyzer.trace.opening import open_trace
from overflow_recorder.errors import TraceExistsError
from tests.integration.runs import FRAMES, Seen, rows_of, train
from tests.windows import make_storage

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crew import Crew, Member

BATCHES = 40
OPTIONS = {"every_n_batches": 1}
LAUNCHERS = {
    "torchrun": ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK"),
    "srun": ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}, "SLURM_PROCID"),
    "mpirun": ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK"),
}
"""What each launcher sets for rank 0, and which of it is the rank."""


def start(crew: Crew, tmp_path: Path, launcher: str, rank: int, batches: int | None) -> Member:
    """Start one rank that records so many batches, or goes on for ever."""
    variables, name = LAUNCHERS[launcher]
    environment = {**variables, name: str(rank)}
    return crew.start(train, tmp_path / "run.parquet", tmp_path / f"seen{rank}", OPTIONS, batches, 0.001, **environment)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_is_killed_leaves_the_others_whole(launcher: str, victim: int, crew: Crew, tmp_path: Path) -> None:
    # GIVEN two ranks that record into one trace, one of which is killed
    path, other = tmp_path / "run.parquet", 1 - victim
    killed = start(crew, tmp_path, launcher, victim, None)
    survivor = start(crew, tmp_path, launcher, other, BATCHES)
    seen = Seen(tmp_path / f"seen{victim}")
    killed.wait_until(lambda: seen.frames > 20)
    killed.kill()
    assert killed.wait().status == -signal.SIGKILL
    ended = survivor.wait()
    assert ended.status == 0, ended.output

    # THEN the other's trace is whole
    trace = open_trace(path)
    assert set(rows_of(path, other)) == set(range(BATCHES * FRAMES))
    assert (trace.rank(other).ended, trace.rank(other).lost) == ("closed", ())

    # AND the killed one's has every frame whose hook had returned
    assert set(range(seen.frames)) <= set(rows_of(path, victim))
    assert (trace.rank(victim).ended, trace.rank(victim).lost) == ("killed", ())

    # AND the analyzer knows of both, and that nobody is missing
    assert (trace.world_size, trace.missing_ranks, [one.rank for one in trace.ranks]) == (2, (), [0, 1])
    sentences = [one for one in coverage_of(trace) if "ank" in one]
    assert len(sentences) == 1
    assert sentences[0].startswith(f"Rank {victim}: The run was killed")
    assert find_first_nonfinite(trace) is None


@pytest.mark.parametrize("missing", [0, 1])
def test_a_rank_that_never_started_is_named(missing: int, crew: Crew, tmp_path: Path) -> None:
    ended = start(crew, tmp_path, "torchrun", 1 - missing, 3).wait()
    assert ended.status == 0, ended.output
    trace = open_trace(tmp_path / "run.parquet")
    assert (trace.world_size, trace.missing_ranks) == (2, (missing,))
    assert coverage_of(trace)[-1] == f"Rank {missing} of 2 left nothing readable."


def test_a_smaller_run_takes_the_place_of_a_larger_one_only_once_all_have_ended(crew: Crew, tmp_path: Path) -> None:
    # GIVEN a run of two ranks, the second of which still lives
    path, seen = tmp_path / "run.parquet", Seen(tmp_path / "seen1")
    assert start(crew, tmp_path, "torchrun", 0, 3).wait().status == 0
    living = start(crew, tmp_path, "torchrun", 1, None)
    living.wait_until(lambda: seen.frames > 0)

    # THEN a run of one rank is refused, and nothing is touched
    try:
        with pytest.raises(TraceExistsError, match="a living run is recording there"):
            make_storage(path, overwrite=True)
        assert set(rows_of(path, 0)) == set(range(3 * FRAMES))
    finally:
        living.kill()
        living.wait()

    # AND once nobody lives it has the path for itself
    make_storage(path, overwrite=True).abandon()
    assert [one.name for one in path.iterdir()] == ["rank=0"]
