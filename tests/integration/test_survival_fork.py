"""Forked children, data loaders' workers above all: the trace is the parent's, and stays as the parent leaves it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from overflow_analyzer.trace.opening import open_trace
from overflow_recorder import TraceRecorder
from tests.integration.runs import FRAMES, Seen, count_frames, input_of, make_model, rows_of
from tests.windows import make_storage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.crew import Crew

CHILDREN = ("sys.exit", "os._exit", "an exception", "training on", "recording", "closing", "killed")


def child(kind: str, model: torch.nn.Module, recorder: TraceRecorder, path: str) -> None:
    """What a forked child does with what it has from its parent."""
    if kind == "training on":
        for batch in range(100, 105):
            model(input_of(batch))
    elif kind == "recording":
        recorder.record("of the child", value=1.0)
        recorder.step()
        with TraceRecorder(model, f"{path}.child", every_n_batches=1):
            model(input_of(7))
    elif kind == "closing":
        recorder.close()
    elif kind == "an exception":
        raise RuntimeError("of the child")
    elif kind == "os._exit":
        os._exit(0)
    elif kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(0)


def fork_in_the_middle(path: str, seen: str, kind: str) -> None:
    """Record two batches, fork inside the with block, wait for the child, record two more."""
    model = make_model()
    with TraceRecorder(model, path, every_n_batches=1) as recorder:
        for batch in range(2):
            model(input_of(batch))
        pid = os.fork()
        if not pid:
            child(kind, model, recorder, path)
        os.waitpid(pid, 0)
        for batch in range(2, 4):
            model(input_of(batch))


@pytest.mark.parametrize("kind", CHILDREN)
def test_a_forked_child_never_touches_the_trace(kind: str, crew: Crew, tmp_path: Path) -> None:
    # GIVEN a child that ends or goes on in some way
    path = tmp_path / "run.parquet"
    ended = crew.run(fork_in_the_middle, path, "", kind)
    assert ended.status == 0, ended.output
    assert "RecorderWarning" not in ended.output

    # THEN the trace has the parent's frames, all and no others, in one part, and says that the run was closed
    rows = rows_of(path)
    assert set(rows) == set(range(4 * FRAMES))
    (rank,) = open_trace(path).ranks
    assert (rank.ended, rank.lost, len(rank.footers)) == ("closed", (), 1)

    # AND a child that records for itself has a trace of its own
    if kind == "recording":
        assert set(rows_of(f"{path}.child")) == set(range(FRAMES))


def load_data(path: str, seen: str) -> None:
    """Record a run whose data loader forks two workers an epoch."""
    model = make_model()
    data = TensorDataset(torch.arange(48.0).reshape(6, 8))
    with TraceRecorder(model, path, every_n_batches=1):
        for _ in range(2):
            for (batch,) in DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork"):
                model(batch)


def use_processes(path: str, seen: str) -> None:
    """Record a run that uses processes of every kind."""
    model = make_model()
    with TraceRecorder(model, path, every_n_batches=1):
        model(input_of(0))
        for _ in range(2):
            process = multiprocessing.get_context("fork").Process(target=model, args=(input_of(1),))
            process.start()
            process.join()
            assert process.exitcode == 0
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        subprocess.run([sys.executable, "-c", "pass"], check=True, preexec_fn=lambda: None)
        os.system("true")
        model(input_of(2))


@pytest.mark.parametrize(("run", "batches"), [(load_data, 6), (use_processes, 2)])
def test_workers_of_every_kind(run: Callable[..., None], batches: int, crew: Crew, tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    ended = crew.run(run, path, "")
    assert ended.status == 0, ended.output
    assert set(rows_of(path)) == set(range(batches * FRAMES))
    assert open_trace(path).ranks[0].ended == "closed"


def leave_a_child(path: str, seen: str, how: str) -> None:
    """Record, and leave a child behind that lives on for long."""
    model, counter = make_model(), Seen(seen)
    with TraceRecorder(model, path, every_n_batches=1):
        model(input_of(0))
        if how == "fork":
            if not os.fork():
                time.sleep(20)
                os._exit(0)
        else:
            subprocess.Popen(["sleep", "20"], close_fds=False)
        count_frames(model, counter)
        while True:
            model(input_of(1))


@pytest.mark.parametrize("how", ["fork", "subprocess"])
def test_a_child_that_lives_longer_holds_nothing(how: str, crew: Crew, tmp_path: Path) -> None:
    # GIVEN a run that was killed, whose child still lives
    path = tmp_path / "run.parquet"
    seen = Seen(tmp_path / "seen")
    member = crew.start(leave_a_child, path, tmp_path / "seen", how)
    member.wait_until(lambda: seen.frames > 10)
    assert open_trace(path).ranks[0].ended == "still running"
    member.kill()
    member.wait()

    # THEN the run is over, and another may take its place
    assert open_trace(path).ranks[0].ended == "killed"
    assert set(range(seen.frames)) <= set(rows_of(path))
    make_storage(path, overwrite=True).abandon()


def fork_while_sealing(path: str, seen: str) -> None:
    """Fork again and again while the writer is at work, so that children have its locks in any state."""
    options: dict[str, Any] = {"every_n_batches": 1, "max_bytes": 1 << 18}
    model = make_model()
    with TraceRecorder(model, path, **options):
        for batch in range(200):
            model(input_of(batch))
            if batch % 10 == 0:
                pid = os.fork()
                if not pid:
                    sys.exit(0)
                assert os.waitpid(pid, 0)[1] == 0


def test_forking_while_a_part_is_being_sealed(crew: Crew, tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    ended = crew.run(fork_while_sealing, path, "")
    assert ended.status == 0, ended.output
    rows = rows_of(path)
    assert max(rows) == 200 * FRAMES - 1
    assert open_trace(path).ranks[0].ended == "closed"
