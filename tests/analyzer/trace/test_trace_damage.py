"""What is damaged, missing or something else: the rest is read and the loss is said, or the path is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overflow_analyzer.convert.compact import compact_trace
from overflow_analyzer.errors import (
    DamagedTraceError,
    EmptyTraceError,
    NotATraceError,
    TraceError,
    TraceNotFoundError,
    UnknownVersionError,
)
from overflow_analyzer.format.files import RING_FILE, RUN_FILE
from overflow_analyzer.format.run_info import EndInfo
from overflow_analyzer.trace.opening import open_trace
from tests.analyzer.samples import two_batches, write_ranks
from tests.traces import RUN, frame, tensor, write_trace
from tests.verification.fuzzing import COMMANDS

ROOT = Path(__file__).parents[3]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "run.parquet", two_batches(), frames_per_part=2)


def test_without_run_info_a_part_describes_the_run(trace: Path) -> None:
    (trace / "rank=0" / RUN_FILE).unlink()
    assert open_trace(trace).ranks[0].run == RUN


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format_version": 1}', "null"])
def test_a_damaged_run_info_costs_nothing_where_a_part_is_left(text: str, trace: Path) -> None:
    (trace / "rank=0" / RUN_FILE).write_text(text)
    assert open_trace(trace).ranks[0].run == RUN


def test_a_damaged_part_costs_its_frames_and_is_said(trace: Path) -> None:
    # GIVEN three parts, the middle one cut short
    middle = trace / "rank=0" / "part-00000001.parquet"
    middle.write_bytes(middle.read_bytes()[:500])

    # THEN the others are read, and the loss is said by name
    (rank,) = open_trace(trace).ranks
    assert [one.frame_number for one in rank.frames()] == [0, 1, 4, 5]
    assert len(rank.lost) == 1
    assert str(middle) in rank.lost[0]


def test_a_damaged_rank_costs_that_rank(tmp_path: Path) -> None:
    # GIVEN three ranks, one of which left nothing that can be read
    path = write_ranks(tmp_path / "run.parquet")
    shutil.rmtree(path / "rank=1")
    (path / "rank=1").mkdir()

    # THEN the others are there
    found = open_trace(path)
    assert [one.rank for one in found.ranks] == [0, 3]
    assert "rank=1" in found.lost[0]


def odd_part(path: Path, kind: str) -> None:
    """Put something that is no part where a part is looked for."""
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "nothing":
        path.symlink_to("nowhere")
    elif kind == "foreign":
        pq.write_table(pa.table({"x": [1]}), path)
    else:
        path.write_bytes({"empty": b"", "csv": b"batch_number,frame_number\n0,0\n"}[kind])


@pytest.mark.parametrize("kind", ["directory", "pipe", "loop", "device", "foreign", "empty", "csv"])
def test_what_is_no_part_costs_nothing_else(kind: str, trace: Path) -> None:
    odd_part(trace / "rank=0" / "part-00000007.parquet", kind)
    (rank,) = open_trace(trace).ranks
    assert rank.frame_count == 6
    assert "part-00000007.parquet" in rank.lost[0]


def test_a_part_that_goes_while_it_is_listed_is_no_loss(trace: Path) -> None:
    odd_part(trace / "rank=0" / "part-00000007.parquet", "nothing")
    assert open_trace(trace).ranks[0].lost == ()


@pytest.mark.parametrize("name", [RING_FILE, RUN_FILE])
@pytest.mark.parametrize("kind", ["directory", "pipe", "loop", "device"])
def test_what_is_no_ring_and_no_run_info_costs_nothing_else(name: str, kind: str, trace: Path) -> None:
    (trace / "rank=0" / name).unlink(missing_ok=True)
    odd_part(trace / "rank=0" / name, kind)
    assert open_trace(trace).ranks[0].frame_count == 6


@pytest.mark.parametrize("kind", ["pipe", "loop", "device", "empty", "csv", "foreign", "nothing"])
def test_what_is_no_file_of_ours_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    odd_part(tmp_path / "run.parquet", kind)
    with pytest.raises(TraceError, match=r"run\.parquet") as caught:
        open_trace(tmp_path / "run.parquet")
    assert caught.value.exit_code == 3
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("inside", [(), ("a.txt",), ("rank=x/",), ("rank=0",), ("rank=999999999999999999999/",)])
def test_a_directory_of_another_kind(inside: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    path.mkdir()
    for name in inside:
        (path / name).mkdir() if name.endswith("/") else (path / name).write_text("")
    with pytest.raises(NotATraceError, match="not a trace"):
        open_trace(path)


def test_an_absurd_rank_beside_a_real_one_is_passed_over(trace: Path) -> None:
    (trace / "rank=999999999999999999999").mkdir()
    assert [one.rank for one in open_trace(trace).ranks] == [0]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFoundError, match="no such file or directory"):
        open_trace(tmp_path / "absent")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read(trace: Path) -> None:
    trace.chmod(0)
    try:
        with pytest.raises(TraceNotFoundError, match="permission denied"):
            open_trace(trace)
    finally:
        trace.chmod(0o700)


def test_a_file_system_that_refuses(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a part that the operating system will not open
    real = os.open

    def refuse(path: object, *arguments: int) -> int:
        if str(path).endswith("part-00000001.parquet"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments)  # type: ignore[arg-type]  # whatever it is given

    monkeypatch.setattr(os, "open", refuse)

    # THEN it is said, and the rest is read
    (rank,) = open_trace(trace).ranks
    assert [one.frame_number for one in rank.frames()] == [0, 1, 4, 5]
    assert "Permission denied" in rank.lost[0]


def test_a_future_version_is_refused_by_name(trace: Path) -> None:
    text = (trace / "rank=0" / RUN_FILE).read_text().replace('"format_version": 1', '"format_version": 2')
    (trace / "rank=0" / RUN_FILE).write_text(text)
    with pytest.raises(UnknownVersionError, match=r"format version 2 is not known here"):
        open_trace(trace)


def test_nothing_recorded_is_never_clean(tmp_path: Path) -> None:
    end = EndInfo("switched off", 1, reason="the disk is full")
    path = write_trace(tmp_path / "run.parquet", [], replace(RUN, end=end))
    with pytest.raises(EmptyTraceError, match=r"nothing was recorded \(run switched off: the disk is full\)"):
        open_trace(path)


def test_where_all_was_lost_that_is_said_and_not_that_nothing_was_recorded(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.parquet", two_batches())
    (path / "rank=0" / "part-00000000.parquet").write_bytes(b"")
    with pytest.raises(DamagedTraceError, match="nothing of it can be read"):
        open_trace(path)


def test_an_unreadable_row_group_is_an_error_of_ours(tmp_path: Path) -> None:
    # GIVEN a part whose pages are noise under a footer that is whole
    frames = [frame(at, 0, f"layer.{at}", tensor("output", "output", at, at), in_batch=at) for at in range(400)]
    path = write_trace(tmp_path / "run.parquet", frames)
    part = path / "rank=0" / "part-00000000.parquet"
    data = bytearray(part.read_bytes())
    data[4:3000] = os.urandom(2996)
    part.write_bytes(data)

    # THEN reading it names the file
    with pytest.raises(DamagedTraceError, match=r"part-00000000\.parquet: row group 0 cannot be read"):
        list(open_trace(path).ranks[0].frames())


LEVEL_HISTOGRAM = Path(__file__).parents[1] / "damaged" / "level-histogram.parquet"
"""One damaged length in the footer's size statistics: Arrow's accessors end the process over it."""


def test_no_footer_ends_the_process() -> None:
    # GIVEN that file WHEN every command is asked about it, in a process that may die
    script = f"""if True:
        from tests.verification.fuzzing import COMMANDS
        from overflow_analyzer.cli import main
        trace = {str(LEVEL_HISTOGRAM)!r}
        print([main([part.format(trace=trace, out="/nonexistent") for part in command]) for command in COMMANDS])
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)

    # THEN each refuses it in one line
    assert (done.returncode, done.stdout) == (0, f"{[3] * len(COMMANDS)}\n"), done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(COMMANDS)
    assert all(line.startswith(f"overflow-analyze: {LEVEL_HISTOGRAM}: ") for line in lines)


def test_a_file_of_several_ranks_without_statistics_keeps_them_apart(tmp_path: Path) -> None:
    # GIVEN a compacted file of two ranks that another tool wrote again, without statistics
    compact_trace(open_trace(write_ranks(tmp_path / "ranks.parquet")), tmp_path / "one.parquet")
    expected = [[one.frame_number for one in rank.frames()] for rank in open_trace(tmp_path / "one.parquet").ranks]
    table = pq.read_table(tmp_path / "one.parquet")
    pq.write_table(table, tmp_path / "again.parquet", write_statistics=False)

    # THEN each rank has its own frames and no others
    ranks = open_trace(tmp_path / "again.parquet").ranks
    assert len(ranks) > 1
    assert [[one.frame_number for one in rank.frames()] for rank in ranks] == expected
