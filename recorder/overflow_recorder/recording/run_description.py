"""What RunInfo says of a run at its start."""

from __future__ import annotations

import contextlib
import operator
import os
import platform
import socket
import sys
import time
import uuid
import warnings
from importlib import metadata
from typing import TYPE_CHECKING, Final

import torch

from overflow_analyzer.format.run_info import RunInfo
from overflow_recorder.helpers.distributed import rank_and_world_size
from overflow_recorder.helpers.reproducibility import seeds_in_force

if TYPE_CHECKING:
    from torch import nn

    from overflow_recorder.recorder_arguments import RecorderArguments

_VARIABLES: Final = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "FLASH_ATTENTION_DETERMINISTIC",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCHDYNAMO_DISABLE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Environment variables by which two runs of one program may compute other numbers."""
_SWITCHES: Final = (
    "are_deterministic_algorithms_enabled",
    "backends.cpu.get_cpu_capability",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_tf32",
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "get_default_dtype",
    "get_float32_matmul_precision",
    "get_num_threads",
)
"""Attributes and functions of torch that say the same of torch itself."""
_LONGEST_VALUE: Final = 200


def describe_run(model: nn.Module, options: RecorderArguments) -> RunInfo:
    """Return what is known of this run at its start."""
    rank, world_size = rank_and_world_size()
    try:
        version = metadata.version("overflow-trace")
    except metadata.PackageNotFoundError:  # run from a source tree
        version = ""
    return RunInfo(
        run_id=_run_id(),
        rank=rank,
        world_size=world_size,
        model_class=type(model).__name__,
        started_ns=time.time_ns(),
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        recorder_version=version,
        hostname=socket.gethostname(),
        process_id=os.getpid(),
        command=tuple(sys.argv),
        options=options.as_options(),
        seeds=seeds_in_force() or None,
        environment=_environment(model),
    )


def _environment(model: nn.Module) -> dict[str, str]:
    found = {"device": ", ".join(sorted({_device_name(one.device) for one in model.parameters()}))}
    found |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _SWITCHES:
            # A version may not have it, and refuses it where others have been set in its place.
            with contextlib.suppress(Exception):
                switch = operator.attrgetter(name)(torch)
                found[f"torch.{name}"] = str(switch() if callable(switch) else switch)
    return {name: value[:_LONGEST_VALUE] for name, value in found.items() if value}


def _device_name(device: torch.device) -> str:
    with contextlib.suppress(Exception):
        if device.type == "cuda":
            return torch.cuda.get_device_name(device)
    return device.type


def _run_id() -> str:
    """Return the launcher's name for the run, the same on every rank, or where there is none a new one."""
    for variables in (("TORCHELASTIC_RUN_ID",), ("SLURM_JOB_ID", "SLURM_STEP_ID")):
        values = [os.environ.get(name, "") for name in variables]
        if all(values) and values != ["none"]:  # what torchrun says where nobody named the run
            return ".".join(values)
    return uuid.uuid4().hex
