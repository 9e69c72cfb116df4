"""A disk that fails in any way: one warning, the recorder is off, training is what it would be, what is there opens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer.errors import TraceError
from overflow_analyzer.trace.opening import open_trace
from tests.integration.failing_disks import BATCHES, FAULT_AT, FAULTS, train
from tests.integration.runs import FRAMES, rows_of, warnings_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crew import Crew

Rows = dict[int, list[dict[str, Any]]]
MODES: dict[str, dict[str, Any]] = {
    "detection": {},
    "every batch": {"every_n_batches": 1},
    "batches by number": {"trace_batch_nums": [2, 3, 4, 20, 21]},
}
PER_BATCH = FRAMES + 3
"""The model's frames, those of the dropout and of the whole around it, and the loss."""
KINDS = {
    "fsync fails": ("EIO", "ENOSPC", "EDQUOT"),
    "writing fails": ("EIO", "ENOSPC", "EROFS"),
    "at the start no directory can be made": ("EROFS", "EACCES"),
}
CASES = [
    (mode, fault, kind)
    for mode in MODES
    for fault in FAULTS
    if fault not in {"none", "slow"}
    for kind in KINDS.get(fault, ("ENOSPC",))[: None if mode == "every batch" else 1]
]


@pytest.fixture(scope="module")
def recorded(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Rows]:
    """Every frame of runs without a fault."""
    found = {}
    for mode in ("every batch", "batches by number"):
        path = tmp_path_factory.mktemp("recorded") / "run.parquet"
        ended = crew.run(train, path, MODES[mode], "none", "", "error")
        assert ended.status == 0, ended.output
        found[mode] = rows_of(path)
    assert len(found["every batch"]) == BATCHES * PER_BATCH
    # What it detects with is measured in every batch, and most of it has left the window at the end.
    return {**found, "detection": found["every batch"]}


def check_trace(path: Path, recorded: Rows, mode: str) -> None:
    """What was recorded before the fault is there and true, and nothing else is said to be lost."""
    rows = rows_of(path)
    assert rows
    assert rows == {number: recorded[number] for number in rows}
    if mode != "detection":
        assert {number for number, group in recorded.items() if group[0]["batch_number"] < FAULT_AT} <= set(rows)
    (rank,) = open_trace(path).ranks
    assert rank.lost == ()
    assert rank.run.end is not None
    assert rank.ended == "closed" or rank.run.end.reason


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_fault(
    case: tuple[str, str, str], crew: Crew, tmp_path: Path, bits_without_a_recorder: str, recorded: dict[str, Rows]
) -> None:
    # GIVEN a training that records, and a disk that fails at its start or in its middle
    path, (mode, fault, kind) = tmp_path / "run.parquet", case
    action = "error" if mode == "every batch" else "always"
    ended = crew.run(train, path, MODES[mode], fault, kind, action)

    # THEN it comes to its end, and its losses, weights and random numbers are bit for bit those without a recorder
    assert ended.status == 0, ended.output
    assert bits_without_a_recorder in ended.output.splitlines()

    # AND there is one warning
    assert len(warnings_in(ended.output)) == 1, ended.output

    # AND what was recorded opens
    if fault == "the directory is removed":
        assert not path.exists()
    elif fault.startswith("at the start"):
        with pytest.raises(TraceError):
            open_trace(path)
    else:
        check_trace(path, recorded[mode], mode)


def test_a_slow_disk_costs_frames_that_are_counted(
    crew: Crew, tmp_path: Path, bits_without_a_recorder: str, recorded: dict[str, Rows]
) -> None:
    # GIVEN a disk that is slower than training, which waits for it a bounded time
    path = tmp_path / "run.parquet"
    ended = crew.run(train, path, MODES["every batch"], "slow", "", "error")

    # THEN training is what it would be, and nobody is warned
    assert ended.status == 0, ended.output
    assert ended.output.strip() == bits_without_a_recorder

    # AND each frame is in the trace or counted
    rows = rows_of(path)
    assert rows == {number: recorded["every batch"][number] for number in rows}
    (rank,) = open_trace(path).ranks
    assert (rank.ended, rank.lost) == ("closed", ())
    assert len(rows) + rank.dropped_frames == BATCHES * PER_BATCH
