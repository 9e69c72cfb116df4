"""Where a system lacks what Windows lacks, and keeps open files as Windows does, runs are recorded and read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from overflow_analyzer.format.files import NAMES_FILE, RING_FILE
from overflow_analyzer.trace.opening import open_trace
from overflow_recorder.storage.claiming import RING_TEMPORARY
from tests.integration.windows_training import BATCHES_AGAIN

pytestmark = pytest.mark.slow  # each process imports torch

ROOT = Path(__file__).parents[2]
FRAMES = 4
"""Of a batch: three modules and the root."""
BATCHES = 60


def on_windows(*arguments: object) -> subprocess.Popen[str]:
    """Start a module there."""
    line = [sys.executable, "-W", "error", "-m", "tests.integration.windows", *map(str, arguments)]
    return subprocess.Popen(line, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def train(path: Path, options: dict[str, Any], *ending: str, batches: int = BATCHES) -> tuple[int, str]:
    """Record and return the exit status and the output."""
    with on_windows("tests.integration.windows_training", path, json.dumps(options), batches, *ending) as process:
        output, _ = process.communicate(timeout=120)
    return process.returncode, output


def unfinished(path: Path) -> set[str]:
    """Files that a rank has only while its run goes on, or if it was killed."""
    names = {one.name for one in (path / "rank=0").iterdir()}
    return names & {RING_FILE, NAMES_FILE, RING_TEMPORARY} | {name for name in names if name.endswith(".tmp")}


def frames_of(path: Path) -> list[int]:
    return sorted(
        {number for table in open_trace(path).rank(0).tables() for number in table["frame_number"].to_pylist()}
    )


def test_a_run_is_recorded_whole(tmp_path: Path) -> None:
    # GIVEN a run of which many parts are sealed, and a second block with the same recorder
    path = tmp_path / "run.parquet"

    # WHEN it ends well
    assert train(path, {"every_n_batches": 1}, "again") == (0, "")

    # THEN the parts have every frame, and nothing else is left
    assert not unfinished(path)
    assert len(list((path / "rank=0").glob("part-*"))) > 2
    assert frames_of(path) == list(range(FRAMES * (BATCHES + BATCHES_AGAIN)))
    assert open_trace(path).ranks[0].ended == "closed"


def test_a_killed_run_loses_nothing_and_can_be_replaced(tmp_path: Path) -> None:
    # GIVEN a run that was killed
    path = tmp_path / "run.parquet"
    assert train(path, {"every_n_batches": 1}, "os._exit")[0] == 3

    # THEN every frame is there
    assert unfinished(path) >= {RING_FILE, NAMES_FILE}
    assert frames_of(path) == list(range(FRAMES * BATCHES))

    # WHEN another one is recorded there, THEN only if it may replace the first
    status, output = train(path, {}, batches=5)
    assert status == 1
    assert "overwrite=True" in output
    assert frames_of(path) == list(range(FRAMES * BATCHES))
    assert train(path, {"overwrite": True}, batches=5) == (0, "")
    assert frames_of(path) == list(range(FRAMES * 5))


def test_a_living_run_is_not_replaced(tmp_path: Path) -> None:
    # GIVEN a run that goes on
    path = tmp_path / "run.parquet"
    plan = ("tests.integration.windows_training", path, '{"every_n_batches": 1}', BATCHES, "lives")
    with on_windows(*plan) as living:
        try:
            assert living.stdout is not None
            assert living.stdout.readline() == "ready\n"

            # WHEN another one is to replace it
            status, output = train(path, {"overwrite": True}, batches=5)

            # THEN that one is refused, and all that the first has recorded can be read
            assert status == 1
            assert "a living run is recording there" in output
            assert frames_of(path) == list(range(FRAMES * BATCHES))
        finally:
            living.kill()
    assert frames_of(path) == list(range(FRAMES * BATCHES))


def test_a_detection_is_reported(tmp_path: Path) -> None:
    # GIVEN a run that overflow-record watches, in which the fourth batch is infinite
    script, path = tmp_path / "train.py", tmp_path / "run.parquet"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(2, 2)\n"
        "for batch in range(6):\n    model(torch.full((1, 2), float('inf') if batch == 3 else 1.0))\n"
    )

    # WHEN it goes there
    with on_windows("overflow_recorder", "--output", path, script) as process:
        output, _ = process.communicate(timeout=120)

    # THEN it ends as elsewhere, and commands read what it left
    assert process.returncode == 1, output
    assert "Detected inf/nan during batch_number=3" in output
    assert not unfinished(path)
    for command, code in ((("report",), 1), (("compact", "-o", tmp_path / "one.parquet"), 0)):
        with on_windows("overflow_analyzer", *command, path) as process:
            output, _ = process.communicate(timeout=120)
        assert process.returncode == code, output
    assert frames_of(tmp_path / "one.parquet") == frames_of(path)


def test_parts_make_room(tmp_path: Path) -> None:
    # GIVEN a bound that all parts together would pass
    path = tmp_path / "run.parquet"

    # WHEN a run goes on under it
    assert train(path, {"every_n_batches": 1, "max_bytes": 1 << 17}, batches=200) == (0, "")

    # THEN the oldest are gone
    assert sum(one.stat().st_size for one in (path / "rank=0").iterdir()) <= 1 << 17
    end = open_trace(path).ranks[0].run.end
    assert end is not None
    assert end.parts_removed > 0
    assert frames_of(path)[-1] == FRAMES * 200 - 1
