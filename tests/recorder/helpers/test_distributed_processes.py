"""Letting one process go first, with two real gloo processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.recorder.subprocesses import finish, start

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

WORKER = """
import sys, time
from datetime import timedelta
from pathlib import Path
import torch.distributed as dist
from overflow_recorder.helpers.distributed import local_rank, rank_and_world_size, torch_distributed_zero_first

rank, folder, scenario = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
store = f"file://{folder}/store"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
cache = folder / "cache"

if scenario == "prepare":
    with torch_distributed_zero_first(local_rank()):
        if rank == 0:
            time.sleep(0.5)  # the other one would be here first
            cache.write_text("prepared by 0")
        else:
            print(cache.read_text())
    with torch_distributed_zero_first(-1):
        if rank == 0:  # waits for rank 1, which must come through without it
            while not (folder / "passed").exists():
                time.sleep(0.01)
        (folder / "passed").touch()
    print(rank_and_world_size(), local_rank())

if scenario == "leader fails":
    with torch_distributed_zero_first(rank):
        if rank == 0:
            raise ConnectionError("the download failed")
        print("released")

dist.barrier()
dist.destroy_process_group()
"""


def _two_processes(folder: Path, scenario: str) -> list[subprocess.CompletedProcess[str]]:
    processes = [start(WORKER, rank, folder, scenario) for rank in range(2)]
    return [finish(process) for process in processes]


def test_the_other_process_waits_until_the_leader_has_left(tmp_path: Path) -> None:
    # WHEN
    leader, other = _two_processes(tmp_path, "prepare")

    # THEN
    assert leader.returncode == 0, leader.stderr
    assert other.returncode == 0, other.stderr
    assert leader.stdout == "(0, 2) 0\n"
    assert other.stdout == "prepared by 0\n(1, 2) 1\n"


def test_a_leader_that_fails_releases_the_other_and_shows_why(tmp_path: Path) -> None:
    # WHEN
    leader, other = _two_processes(tmp_path, "leader fails")

    # THEN
    assert leader.returncode == 1
    assert "ConnectionError: the download failed" in leader.stderr
    assert other.stdout == "released\n"
