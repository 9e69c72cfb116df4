from __future__ import annotations

import logging
import os
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from overflow_recorder.helpers.distributed import local_rank, rank_and_world_size, torch_distributed_zero_first
from tests.recorder.subprocesses import output_of, output_without_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_", "OMPI_")
SRUN_TASK = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "2", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}


@pytest.fixture(autouse=True)
def _no_launcher() -> Iterator[None]:
    with mock.patch.dict(os.environ):
        for name in list(os.environ):
            if name.startswith(LAUNCHER_VARIABLES):
                del os.environ[name]
        yield


# --- who this process is


def test_a_process_that_nobody_launched_is_the_only_one() -> None:
    assert rank_and_world_size() == (0, 1)
    assert local_rank() == 0


@pytest.mark.parametrize(
    ("environment", "expected", "expected_local"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, (3, 4), 1),
        ({"RANK": "3", "WORLD_SIZE": "4"}, (3, 4), 0),
        (SRUN_TASK, (2, 8), 1),
        ({**SRUN_TASK, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, (0, 8), 0),
        (MPIRUN, (5, 6), 3),
        ({"LOCAL_RANK": "2"}, (0, 1), 2),
        ({"LOCAL_RANK": "-1"}, (0, 1), 0),
    ],
    ids=["torchrun", "one process a pod", "srun", "srun's first task", "mpirun", "local rank alone", "not distributed"],
)
def test_launchers(environment: dict[str, str], expected: tuple[int, int], expected_local: int) -> None:
    os.environ.update(environment)

    assert rank_and_world_size() == expected
    assert local_rank() == expected_local


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967290"}, {"SLURM_STEP_ID": "4294967291"}])
def test_a_slurm_shell_is_one_process(step: dict[str, str]) -> None:
    os.environ.update({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0", **step})

    assert rank_and_world_size() == (0, 1)
    assert local_rank() == 0


def test_a_slurm_rank_above_0_is_always_a_task() -> None:
    os.environ.update({"SLURM_PROCID": "1", "SLURM_NTASKS": "8"})

    assert rank_and_world_size() == (1, 8)


def test_torchrun_within_slurm_is_torchrun() -> None:
    os.environ.update({**SRUN_TASK, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})

    assert rank_and_world_size() == (1, 2)
    assert local_rank() == 1


def test_mpirun_within_slurm_is_mpirun() -> None:
    os.environ.update({**SRUN_TASK, **MPIRUN})

    assert rank_and_world_size() == (5, 6)
    assert local_rank() == 3


def test_half_a_pair_is_passed_over() -> None:
    os.environ.update({"RANK": "7", **MPIRUN})

    assert rank_and_world_size() == (5, 6)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK must be an integer, got 'one'"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE must be an integer"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK must be at least 0"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE must be at least 1"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not below WORLD_SIZE=2"),
        ({"SLURM_PROCID": "x", "SLURM_NTASKS": "2"}, "SLURM_PROCID must be an integer"),
    ],
)
def test_what_makes_no_sense_is_an_error_that_names_the_variable(environment: dict[str, str], message: str) -> None:
    os.environ.update(environment)

    with pytest.raises(ValueError, match=message):
        rank_and_world_size()
    with pytest.raises(ValueError, match=message):
        local_rank()


@pytest.mark.parametrize("value", ["gpu0", "-2"])
def test_a_local_rank_that_makes_no_sense(value: str) -> None:
    os.environ["LOCAL_RANK"] = value

    with pytest.raises(ValueError, match="LOCAL_RANK"):
        local_rank()


# --- a process group, stood in for

BACKENDS = ["gloo", "nccl"]


def _group(rank: int, world_size: int, backend: str = "gloo", bound: object = None) -> mock.Mock:
    group = mock.Mock(
        spec=["is_available", "is_initialized", "get_rank", "get_world_size", "get_backend", "barrier", "group"]
    )
    group.get_rank.return_value, group.get_world_size.return_value = rank, world_size
    group.get_backend.return_value = backend
    group.group = SimpleNamespace(WORLD=SimpleNamespace(bound_device_id=bound))
    return group


def _cuda(current: int, count: int) -> SimpleNamespace:
    return SimpleNamespace(cuda=SimpleNamespace(current_device=lambda: current, device_count=lambda: count))


def test_an_initialised_group_comes_before_the_launchers() -> None:
    os.environ.update({"RANK": "0", "WORLD_SIZE": "1"})

    with mock.patch.dict(sys.modules, {"torch.distributed": _group(3, 4)}):
        assert rank_and_world_size() == (3, 4)


def test_the_local_rank_of_a_group_that_the_script_spawned_is_its_rank() -> None:
    # GIVEN one task of srun that spawned four processes itself: SLURM knows of one
    os.environ.update({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"})

    with mock.patch.dict(sys.modules, {"torch.distributed": _group(3, 4)}):
        assert local_rank() == 3


def test_the_local_rank_of_a_group_that_srun_launched_is_sruns() -> None:
    os.environ.update(SRUN_TASK)

    with mock.patch.dict(sys.modules, {"torch.distributed": _group(2, 8)}):
        assert local_rank() == 1


@pytest.mark.parametrize(
    ("current", "count", "expected"),
    [(0, 8, 3), (5, 8, 5), (0, 1, 0)],
    ids=["none chosen yet: the local rank", "the one chosen", "each process sees its own alone"],
)
def test_nccl_gets_the_processs_own_device(current: int, count: int, expected: int) -> None:
    group = _group(3, 8, "nccl")

    modules = {"torch.distributed": group, "torch": _cuda(current, count)}
    with mock.patch.dict(sys.modules, modules), torch_distributed_zero_first(3):
        pass

    group.barrier.assert_called_once_with(device_ids=[expected])


@pytest.mark.parametrize(
    ("backend", "bound"), [("gloo", None), ("nccl", "cuda:3"), ("cpu:gloo,cuda:nccl", None), ("undefined", None)]
)
def test_other_groups_know_their_device_themselves(backend: str, bound: object) -> None:
    group = _group(3, 8, backend, bound)

    with mock.patch.dict(sys.modules, {"torch.distributed": group}), torch_distributed_zero_first(3):
        pass

    group.barrier.assert_called_once_with()


def test_a_barrier_that_fails_does_not_hide_the_leaders_exception(caplog: pytest.LogCaptureFixture) -> None:
    # GIVEN a leader whose connection is gone
    group = _group(0, 2)
    group.barrier.side_effect = RuntimeError("connection closed")

    # WHEN
    with (
        caplog.at_level(logging.ERROR),
        mock.patch.dict(sys.modules, {"torch.distributed": group}),
        pytest.raises(ZeroDivisionError),
        torch_distributed_zero_first(0),
    ):
        _ = 1 // 0

    # THEN
    assert "connection closed" in caplog.text


def test_an_exception_of_another_process_is_its_own() -> None:
    group = _group(1, 2)

    with (
        mock.patch.dict(sys.modules, {"torch.distributed": group}),
        pytest.raises(ZeroDivisionError),
        torch_distributed_zero_first(1),
    ):
        _ = 1 // 0

    group.barrier.assert_called_once_with()  # before its block; none after it


@pytest.mark.parametrize("rank", [-1, 0, 1])
def test_without_a_process_group_nobody_waits(rank: int) -> None:
    with torch_distributed_zero_first(rank):
        passed = True

    assert passed


def test_with_local_rank_minus_1_nobody_waits() -> None:
    group = _group(1, 2)

    with mock.patch.dict(sys.modules, {"torch.distributed": group}), torch_distributed_zero_first(-1):
        pass

    group.barrier.assert_not_called()


def test_works_without_torch() -> None:
    code = """
        import sys
        from overflow_recorder.helpers.distributed import local_rank, rank_and_world_size, torch_distributed_zero_first
        with torch_distributed_zero_first(1):
            print(rank_and_world_size(), local_rank(), "torch" in sys.modules)
    """

    assert output_without_torch(code) == "(0, 1) 0 False\n"


def test_torch_is_never_imported_for_it() -> None:
    code = """
        import sys
        from overflow_recorder.helpers.distributed import rank_and_world_size, torch_distributed_zero_first
        rank_and_world_size()
        with torch_distributed_zero_first(0):
            print("torch" in sys.modules)
    """

    assert output_of(code) == "False\n"
