"""What RunInfo says of a run at its start."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
import uuid
from importlib import metadata
from typing import TYPE_CHECKING

import torch

from overflow_analyzer.format.run_info import RunInfo
from overflow_recorder.helpers.distributed import rank_and_world_size
from overflow_recorder.helpers.reproducibility import seeds_in_force

if TYPE_CHECKING:
    from torch import nn

    from overflow_recorder.recorder_arguments import RecorderArguments


def describe_run(model: nn.Module, options: RecorderArguments) -> RunInfo:
    """Return what is known of this run at its start."""
    rank, world_size = rank_and_world_size()
    return RunInfo(
        run_id=_run_id(),
        rank=rank,
        world_size=world_size,
        model_class=type(model).__name__,
        started_ns=time.time_ns(),
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        recorder_version=_version(),
        hostname=socket.gethostname(),
        process_id=os.getpid(),
        command=tuple(sys.argv),
        options=options.as_options(),
        seeds=seeds_in_force() or None,
    )


def _run_id() -> str:
    """Return the launcher's name for the run, the same on every rank, or where there is none a new one."""
    for variables in (("TORCHELASTIC_RUN_ID",), ("SLURM_JOB_ID", "SLURM_STEP_ID")):
        values = [os.environ.get(name, "") for name in variables]
        if all(values) and values != ["none"]:  # what torchrun says where nobody named the run
            return ".".join(values)
    return uuid.uuid4().hex


def _version() -> str:
    try:
        return metadata.version("overflow-trace")
    except metadata.PackageNotFoundError:
        return ""
