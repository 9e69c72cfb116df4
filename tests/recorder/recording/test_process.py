"""What a process knows of itself, and what becomes of its recorders at its end and in its children."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch

from overflow_recorder.recorder_arguments import RecorderArguments
from overflow_recorder.recording.process import _Recorders, describe_run

if TYPE_CHECKING:
    from collections.abc import Iterator

LAUNCHERS = (
    "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS",
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


def run_id() -> str:
    return describe_run(torch.nn.Linear(1, 1), RecorderArguments()).run_id


def test_a_run_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast"])
    run = describe_run(torch.nn.Linear(1, 1), RecorderArguments(every_n_batches=5))
    assert (run.rank, run.world_size, run.model_class, run.process_id) == (3, 8, "Linear", os.getpid())
    assert run.command == ("train.py", "--fast")
    assert run.options["every_n_batches"] == 5
    assert run.torch_version == torch.__version__
    assert run.end is None


def test_a_launchers_run_has_one_name_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no launcher, THEN each process makes a name of its own
    assert run_id() != run_id()

    # GIVEN torchrun without a name for the run, THEN too: its "none" is every such run's
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert run_id() != "none"

    # GIVEN a job step of SLURM, or torchrun with a name, THEN it is theirs
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert run_id() == "42.0"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "my-run")
    assert run_id() == "my-run"


class FakeRecorder:
    """Stands for a recorder on a model."""

    def __init__(self, model: object = None, error: Exception | None = None) -> None:
        self.model = model
        self.is_attached = True
        self.closed: list[dict[str, Any]] = []
        self.abandoned = 0
        self._error = error

    def close(self, **how: Any) -> None:
        self.closed.append(how)
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        self.abandoned += 1
        if self._error is not None:
            raise self._error


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A list of recorders that the interpreter's own end leaves alone."""
    monkeypatch.setattr("atexit.register", lambda _: None)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    return _Recorders()  # type: ignore[return-value]


def test_at_the_end_every_recorder_is_closed_whatever_one_says(recorders: Any) -> None:
    # GIVEN three recorders, one whose callbacks raise
    all_of_them = [FakeRecorder(object()), FakeRecorder(object(), ValueError("a callback's")), FakeRecorder(object())]
    for one in all_of_them:
        recorders.replace(one)

    # WHEN the interpreter ends, THEN all are closed, and the error is shown as any at exit
    with pytest.raises(ValueError, match="a callback's"):
        recorders._close_all()
    assert [one.closed for one in all_of_them] == [[{}], [{}], [{}]]


def test_after_an_unhandled_exception_the_trace_says_so(recorders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", RuntimeError("CUDA out of memory"), raising=False)
    one = FakeRecorder()
    recorders.replace(one)
    recorders._close_all()
    assert one.closed == [{"how": "exception", "reason": "RuntimeError: CUDA out of memory"}]


def test_a_forked_child_abandons_every_recorder(recorders: Any) -> None:
    all_of_them = [FakeRecorder(object(), ValueError("no")), FakeRecorder(object())]
    for one in all_of_them:
        recorders.replace(one)
    recorders._abandon_all()
    recorders._close_all()
    assert [(one.abandoned, one.closed) for one in all_of_them] == [(1, []), (1, [])]


def test_a_recorder_that_was_thrown_away_is_not_kept(recorders: Any) -> None:
    one = FakeRecorder()
    recorders.replace(one)
    del one
    recorders._close_all()
    assert len(recorders._attached) == 0
