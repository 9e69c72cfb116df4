"""Who this process is among several, and letting one go first."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


_log = logging.getLogger(__name__)

_FIRST_SPECIAL_SLURM_STEP = 0xFFFFFFF0
"""Step numbers from here on are no tasks of srun: 0xfffffffa is an interactive shell, 0xfffffffb the batch script."""


@contextmanager
def torch_distributed_zero_first(local_rank: int) -> Iterator[None]:
    """Let each node's local leader do the block first; every other process waits until it has left it.

    For what should happen once a node: downloading, preparing a cache, making a directory. All processes of the
    default process group must come through it, once each, and must not nest it. An exception of the leader releases
    the others, who then do the block themselves, and goes on in the leader. The wait lasts as long as the process
    group's timeout (torch: 30 minutes with gloo, 10 with nccl); then torch raises.

    Args:
        local_rank: This process's rank on its node; 0 is the leader. -1 means not distributed: no waiting. Nor is
            there any without an initialised process group, or without torch.

    Example:
        ``with torch_distributed_zero_first(local_rank()): prepare_dataset()``
    """
    distributed = _initialised_group() if local_rank != -1 else None
    if distributed is not None and local_rank != 0:
        _barrier(distributed, local_rank)
    try:
        yield
    except BaseException:
        if distributed is not None and local_rank == 0:
            try:  # a barrier that fails too must not hide why the leader failed
                _barrier(distributed, 0)
            except Exception as error:  # noqa: BLE001 - torch raises RuntimeError, DistBackendError and others
                _log.error("the other processes could not be released: %s", error)
        raise
    if distributed is not None and local_rank == 0:
        _barrier(distributed, local_rank)


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's global rank and the number of processes, without importing torch.

    The first of these that knows: an initialised ``torch.distributed``; ``RANK`` and ``WORLD_SIZE`` (torchrun);
    ``OMPI_COMM_WORLD_RANK`` and ``_SIZE`` (mpirun); ``SLURM_PROCID`` and ``SLURM_NTASKS`` (srun); else ``(0, 1)``.
    A pair that is not complete is passed over. SLURM's count only in a task of srun: a batch script or an
    interactive shell also carries them (rank 0 of the tasks asked for) though it is one process.

    Raises:
        ValueError: A variable is not an integer, or the rank is not in ``0 <= rank < world size``. Guessing here
            would let two processes believe that they are the same one.

    Example:
        ``rank, world_size = rank_and_world_size()``
    """
    distributed = _initialised_group()
    if distributed is not None:
        return distributed.get_rank(), distributed.get_world_size()
    for rank_name, size_name, _ in _launchers():
        place = _place(rank_name, size_name)
        if place is not None:
            return place
    return 0, 1


def local_rank() -> int:
    """Return this process's rank on its node, without importing torch.

    ``LOCAL_RANK`` if set; else ``OMPI_COMM_WORLD_LOCAL_RANK`` or ``SLURM_LOCALID`` if that launcher's rank and world
    size are those of ``rank_and_world_size()``; else 0, the one process of its node. A process group that no launcher
    knows of was spawned by the script itself, on one node: there the local rank is the rank.

    Raises:
        ValueError: A variable is not an integer, or negative; and as ``rank_and_world_size``. (``LOCAL_RANK=-1``,
            which older launchers set, means not distributed and gives 0.)

    Example:
        ``device = f"cuda:{local_rank()}"``
    """
    if "LOCAL_RANK" in os.environ:
        return max(0, _integer("LOCAL_RANK", minimum=-1))
    here = rank_and_world_size()
    for rank_name, size_name, local_name in _launchers():
        if _place(rank_name, size_name) == here:
            return _integer(local_name) if local_name in os.environ else 0
    return here[0]


def _initialised_group() -> Any:
    """``torch.distributed`` if its default process group is initialised, else None; torch is never imported."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _barrier(distributed: Any, local_rank: int) -> None:
    bound = getattr(distributed.group.WORLD, "bound_device_id", None)
    # A group of several backends ("cpu:gloo,cuda:nccl", or none named) waits on the CPU: torch sees to that.
    if distributed.get_backend() in ("nccl", "cuda:nccl") and bound is None:
        # nccl needs this process's device: two ranks on one never finish. A current device other than 0 was chosen by
        # the script. 0 may mean that none was yet; then it is the local rank's, if this process sees that many.
        cuda: Any = sys.modules["torch"].cuda
        current: int = cuda.current_device()
        device = local_rank if current == 0 and local_rank < cuda.device_count() else current
        distributed.barrier(device_ids=[device])
    else:
        distributed.barrier()


def _launchers() -> Iterator[tuple[str, str, str]]:
    """The names of rank, world size and local rank, launcher by launcher, of those that started this process.

    mpirun before SLURM: inside an allocation it starts its own daemons with srun, whose variables it passes on.
    """
    yield "RANK", "WORLD_SIZE", "LOCAL_RANK"
    yield "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"
    if _is_srun_task():
        yield "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"


def _is_srun_task() -> bool:
    """Whether srun started this process, as one of its tasks.

    A batch script's or an interactive shell's SLURM_PROCID is always 0, and its step number is missing or special.
    """
    if os.environ.get("SLURM_PROCID", "0") != "0":
        return True
    step = os.environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _FIRST_SPECIAL_SLURM_STEP


def _place(rank_name: str, size_name: str) -> tuple[int, int] | None:
    if rank_name not in os.environ or size_name not in os.environ:
        return None
    rank, world_size = _integer(rank_name), _integer(size_name, minimum=1)
    if rank >= world_size:
        raise ValueError(f"{rank_name}={rank} is not below {size_name}={world_size}")
    return rank, world_size


def _integer(name: str, minimum: int = 0) -> int:
    text = os.environ[name]
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"the environment variable {name} must be an integer, got {text!r}") from None
    if number < minimum:
        raise ValueError(f"the environment variable {name} must be at least {minimum}, got {number}")
    return number
