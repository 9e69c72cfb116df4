"""``-o`` means the same in every command, and no place that it names is ever damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.analyzer.commands import Ran, analyze
from tests.analyzer.samples import write_well_known

TO_A_FILE = {
    "compact": ["compact"],
    "html": ["html"],
    "csv": ["export", "--to", "csv"],
    "jsonl": ["export", "--to", "jsonl"],
}
EVERY = {**TO_A_FILE, "tensorboard": ["export", "--to", "tensorboard"]}


def write_to(kind: str, trace: Path, output: object, *more: object) -> Ran:
    command, *options = EVERY[kind]
    return analyze(command, trace, *options, "-o", output, *more)


def expected(kind: str, trace: Path) -> bytes:
    target = trace.with_name(f"expected-{kind}")
    assert write_to(kind, trace, target).code == 0
    return target.read_bytes()


def contents(directory: Path) -> dict[str, bytes]:
    return {str(one.relative_to(directory)): one.read_bytes() for one in directory.rglob("*") if one.is_file()}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_well_known(tmp_path / "run.parquet")


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("place", ["new", "_run.json", "rank=0/new", "rank=0/part-00000000.parquet", "rank=1/new"])
def test_nothing_is_written_into_a_trace(kind: str, place: str, trace: Path, tmp_path: Path) -> None:
    # GIVEN the trace that is read, and another one
    other = write_well_known(tmp_path / "other.parquet")
    (other / "rank=1").mkdir()
    before = contents(tmp_path)

    # WHEN the output is to lie in one of them
    for inside in (trace, other):
        overwrite = ["--overwrite"] if kind in TO_A_FILE else []
        ran = write_to(kind, trace, inside / place, *overwrite)

        # THEN it is refused in one line, and nothing is touched
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert "trace" in ran.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", TO_A_FILE)
def test_a_single_file_is_not_written_over_while_it_is_read(kind: str, trace: Path, tmp_path: Path) -> None:
    one, link = tmp_path / "one.parquet", tmp_path / "link.parquet"
    assert write_to("compact", trace, one).code == 0
    link.symlink_to(one)
    before = one.read_bytes()
    for output in (one, link):
        assert write_to(kind, one, output, "--overwrite").code == 2
    assert one.read_bytes() == before


@pytest.mark.parametrize("kind", TO_A_FILE)
def test_a_symbolic_link_stays_and_what_it_points_to_is_written(kind: str, trace: Path, tmp_path: Path) -> None:
    # GIVEN a link to a file that is there, and one to a file that is not
    whole = expected(kind, trace)
    (tmp_path / "old").write_text("old")
    for name in ("old", "new"):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)

    # THEN what is there is replaced only where that is asked for, the links stay links
    assert write_to(kind, trace, tmp_path / "to-old").code == 2
    assert (tmp_path / "old").read_text() == "old"
    assert write_to(kind, trace, tmp_path / "to-old", "--overwrite").code == 0
    assert write_to(kind, trace, tmp_path / "to-new").code == 0
    for name in ("old", "new"):
        assert (tmp_path / f"to-{name}").is_symlink()
        assert (tmp_path / name).read_bytes() == whole


@pytest.mark.skipif(os.name != "posix", reason="named pipes are POSIX")
@pytest.mark.parametrize("kind", TO_A_FILE)
def test_a_pipe_is_written_through(kind: str, trace: Path, tmp_path: Path) -> None:
    # GIVEN a named pipe with a reader
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()

    # WHEN it is the output
    ran = write_to(kind, trace, pipe)
    reader.join(60)

    # THEN the reader has all of it, and the pipe is still one
    assert (ran.code, read) == (0, [expected(kind, trace)])
    assert pipe.is_fifo()


@pytest.mark.skipif(os.name != "posix", reason="devices are files on POSIX")
@pytest.mark.parametrize("kind", TO_A_FILE)
@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_a_device_is_written_to_and_never_replaced(kind: str, overwrite: tuple[str, ...], trace: Path) -> None:
    device = Path(os.devnull)
    before = device.stat().st_rdev
    assert write_to(kind, trace, device, *overwrite).code == 0
    assert device.stat().st_rdev == before


@pytest.mark.parametrize("kind", TO_A_FILE)
def test_a_dash_is_stdout_which_gets_the_result_alone(kind: str, trace: Path) -> None:
    command, *options = EVERY[kind]
    line = [sys.executable, "-m", "overflow_analyzer", command, str(trace), *options, "-o", "-"]
    done = subprocess.run(line, capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, expected(kind, trace), b"")


@pytest.mark.skipif(os.name != "posix", reason="head is a POSIX tool")
@pytest.mark.parametrize("kind", TO_A_FILE)
def test_a_reader_that_goes_away_is_no_error(kind: str, trace: Path) -> None:
    command, *options = EVERY[kind]
    line = [sys.executable, "-m", "overflow_analyzer", command, str(trace), *options, "-o", "-"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert b"Traceback" not in err
