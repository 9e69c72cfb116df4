"""What a trace says of its run from the start."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from overflow_recorder.recorder_arguments import RecorderArguments
from overflow_recorder.recording.run_description import describe_run

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


def test_what_changes_numbers_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN variables of which one changes numbers, and a switch of torch's
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8" + "x" * 500)
    monkeypatch.setenv("SECRET_TOKEN", "nobody's business")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    # WHEN a run is described
    found = describe_run(torch.nn.Linear(1, 1), RecorderArguments()).environment

    # THEN they are there, and nothing that is not asked for
    assert (found["device"], found["CUBLAS_WORKSPACE_CONFIG"]) == ("cpu", ":16:8" + "x" * 195)
    assert found["torch.backends.cudnn.benchmark"] == "True"
    assert found["torch.get_num_threads"] == str(torch.get_num_threads())
    assert found["torch.get_default_dtype"] == "torch.float32"
    assert "SECRET_TOKEN" not in found


def test_a_switch_that_torch_refuses_to_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise RuntimeError("you have used a mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    found = describe_run(torch.nn.Linear(1, 1), RecorderArguments()).environment
    assert "torch.get_float32_matmul_precision" not in found
    assert "torch.get_num_threads" in found


def test_a_model_without_weights_has_no_device() -> None:
    assert "device" not in describe_run(torch.nn.ReLU(), RecorderArguments()).environment
