"""A statistic added to a copy of both packages: old and new read each other's traces, parts and ring alike."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COLUMN = """    Column(
        "one_count", _COUNT, "figure", "elements that are 1",
        nullable=True, repeated=True, compared=10, plotted=True,
    ),
"""
EDITS = {
    "analyzer/overflow_analyzer/format/columns.py": (")  # fmt: skip\nBY_NAME", COLUMN),
    "analyzer/overflow_analyzer/format/frames.py": (
        "\n    @property\n    def nonfinite_count",
        "    one_count: int | None = None\n",
    ),
    "recorder/overflow_recorder/statistics/figures.py": (
        "\n\nDecoder = ",
        "    one_count: int | None = None\n",
    ),
    "recorder/overflow_recorder/statistics/host/measure.py": (
        "    return repeated(figures, repeats)",
        "        figures = figures._replace(one_count=int((tensor == 1).sum()))\n",
    ),
}
"""File -> where the statistic's line goes, and the line."""

RECORD = """
import os, sys, torch
from overflow_recorder import TraceRecorder
model = torch.nn.Linear(4, 4)
torch.nn.init.ones_(model.weight)
torch.nn.init.zeros_(model.bias)
with TraceRecorder(model, sys.argv[1], every_n_batches=1, statistics="full"):
    for batch in range(3):
        model(torch.full((2, 4), float(batch)))
    if sys.argv[2] == "killed":
        os._exit(0)
"""
READ = """
import dataclasses, json, sys
from overflow_analyzer import open_trace
frames = [dataclasses.asdict(one) | {"time_ns": 0} for one in open_trace(sys.argv[1]).ranks[0].frames()]
print(json.dumps(frames))
"""
PACKAGES = ("plain", "grown")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The packages as they are, and a copy with a statistic more."""
    grown = tmp_path_factory.mktemp("grown")
    for name in ("analyzer", "recorder"):
        shutil.copytree(ROOT / name, grown / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, (place, line) in EDITS.items():
        text = (grown / name).read_text()
        assert text.count(place) == 1, name
        (grown / name).write_text(text.replace(place, line + place))
    return {"plain": ROOT, "grown": grown}


def run(tree: Path, *arguments: object) -> str:
    """What Python prints with the packages of a tree."""
    path = os.pathsep.join(str(tree / name) for name in ("recorder", "analyzer"))
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["closed", "killed"])
def traces(request: pytest.FixtureRequest, trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace by each of the two: parts of one that closed, the ring of one that was killed."""
    directory = tmp_path_factory.mktemp(request.param)
    for name in PACKAGES:
        run(trees[name], "-c", RECORD, directory / name, request.param)
        assert (directory / name / "rank=0" / "_window.ring").exists() == (request.param == "killed")
    return directory


def frames(trees: dict[str, Path], reader: str, trace: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(run(trees[reader], "-c", READ, trace))
    return found


def with_ones(read: list[dict[str, object]], *, counted: bool) -> list[dict[str, object]]:
    """The same frames as the grown packages tell them: 16 ones in the weight, 8 in the second batch's input."""
    for number, one in enumerate(read):
        for entry in one["entries"]:  # type: ignore[attr-defined]
            ones = {"weight": 16, "input[0]": 8 * (number == 1)}.get(entry["context"], 0)
            entry["one_count"] = ones if counted else None
    return read


def test_both_read_what_they_know_of_each_others_traces(trees: dict[str, Path], traces: Path) -> None:
    # GIVEN what the plain packages recorded and read
    plain = frames(trees, "plain", traces / "plain")
    assert len(plain) == 3

    # THEN without the statistic its trace is read as one that never had it, and with it one without has nulls
    assert frames(trees, "plain", traces / "grown") == plain
    assert frames(trees, "grown", traces / "plain") == with_ones(plain, counted=False)
    assert frames(trees, "grown", traces / "grown") == with_ones(plain, counted=True)


def test_info_says_what_is_not_known(trees: dict[str, Path], traces: Path) -> None:
    said = {name: run(trees["plain"], "-m", "overflow_analyzer", "info", traces / name) for name in PACKAGES}
    what = "one_count" if traces.name.startswith("closed") else "(8 bytes of each row of the window)"
    assert said["grown"].count(f"{what}: this version does not know it\n") == 1
    assert "does not know" not in said["plain"]


def test_commands_take_the_statistic_from_the_table(trees: dict[str, Path], traces: Path, tmp_path: Path) -> None:
    # THEN diff of a trace with it and one without finds no difference, as null agrees with everything
    run(trees["grown"], "-m", "overflow_analyzer", "diff", traces / "plain", traces / "grown")

    # AND export and compact have it
    run(trees["grown"], "-m", "overflow_analyzer", "compact", traces / "grown", "-o", tmp_path / "one.parquet")
    lines = run(
        trees["grown"], "-m", "overflow_analyzer", "export", tmp_path / "one.parquet", "--to", "jsonl", "-o", "-"
    )
    counts = [json.loads(line)["one_count"] for line in lines.splitlines()]
    assert [count for count in counts if count] == [16, 16, 8, 16]
