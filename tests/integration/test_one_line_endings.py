"""How a run under ``overflow-record`` ends: by a detection, an end that was asked for, or one rank of several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from overflow_analyzer import find_first_nonfinite, open_trace

SCRIPTS = Path(__file__).parent / "scripts"
SECONDS = 300


def _run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_a_detection_ends_the_script_as_an_exception_of_its_own(tmp_path: Path) -> None:
    # WHEN warnings are errors: none comes from us
    script = str(SCRIPTS / "gradient_accumulation.py")
    done = _run("-W", "error", "-m", "overflow_recorder", script, cwd=tmp_path)

    # THEN the report stands on stdout, behind what the script had printed
    assert done.returncode == 1
    printed, _, report = done.stdout.partition("output has ")
    assert [line.split()[0] for line in printed.splitlines()] == ["0", "1", "2", "3", "4", "5"]
    assert "Detected inf/nan during batch_number=6\n" in report

    # AND the line of the script's source, although overflow-record's own hook watches all modules
    assert "\nMade by\n  torch." in report
    assert "gradient_accumulation.py:" in report

    # AND the traceback is the script's, from its first line to the call of the module
    lines = done.stderr.splitlines()
    files = [line.split('"')[1] for line in lines if line.startswith("  File ")]
    assert files[0] == script
    assert "/torch/" not in files[-1]
    assert not any("overflow_recorder" in file or "runpy" in file for file in files)
    assert lines[-1].startswith("overflow_recorder.errors.NonFiniteError: inf/nan detected in output of embed (Linear)")
    assert open_trace(tmp_path / "run.parquet").ranks[0].ended == "detected"


def test_an_end_that_was_asked_for_by_a_variable(tmp_path: Path) -> None:
    # WHEN
    done = _run(
        "-m", "overflow_recorder", str(SCRIPTS / "gan.py"), cwd=tmp_path,
        OVERFLOW_RECORD_ABORT_AFTER_BATCH_NUM="1", OVERFLOW_RECORD_OUTPUT="two.parquet",
        OVERFLOW_RECORD_TRACE_BATCH_NUMS="0 1", OVERFLOW_RECORD_MODEL="Generator",
    )  # fmt: skip

    # THEN
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "overflow-record: stopped as asked: batch 1 has ended (abort_after_batch_num=1)"
    )
    rank = open_trace(tmp_path / "two.parquet").ranks[0]
    assert rank.ended == "aborted"
    assert {frame.batch_number for frame in rank.frames()} == {0, 1}
    assert rank.run.model_class == "Generator"
    assert rank.run.command == (str(SCRIPTS / "gan.py"),)


INTERRUPTED = """
import os, signal, torch
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.Adam(net.parameters())
unclosed = open("unclosed.txt", "w")
unclosed.write("kept")
net(torch.ones(1, 2)).sum().backward()
optimizer.step()  # torch._dynamo is imported here, and makes Python forget the interrupt at exit
os.kill(os.getpid(), signal.SIGINT)
"""


def test_an_interrupted_script_dies_of_the_interrupt(tmp_path: Path) -> None:
    # GIVEN
    (tmp_path / "train.py").write_text(INTERRUPTED)

    # WHEN
    done = _run("-m", "overflow_recorder", "train.py", cwd=tmp_path)

    # THEN it ends as an interrupted program does, and no end of the interpreter is left out
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert (tmp_path / "unclosed.txt").read_text() == "kept"
    assert open_trace(tmp_path / "run.parquet").ranks[0].ended == "exception"


@pytest.mark.slow
def test_each_rank_that_torchrun_starts_records_itself(tmp_path: Path) -> None:
    # WHEN
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "overflow_recorder")
    done = _run(*launcher, "--every_n_batches", "1", str(SCRIPTS / "distributed.py"), cwd=tmp_path, OMP_NUM_THREADS="1")

    # THEN the rank that had the fault has ended the job, and is the one in the report
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("overflow-record: recording DistributedDataParallel") == 1
    trace = open_trace(tmp_path / "run.parquet")
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert trace.rank(1).ended == "detected"
    found = find_first_nonfinite(trace)
    assert found is not None
    assert (found.rank, found.world_size, found.frame.batch_number, found.frame.module_name) == (1, 2, 2, "module.0")
