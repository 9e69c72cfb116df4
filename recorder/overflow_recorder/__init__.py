"""The recorder of overflow-trace: runs inside PyTorch training and is forgotten there.

Names are imported when first used, so that the training helpers work where torch is not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overflow_recorder.callbacks import (
        BatchEvent,
        CallbackHandler,
        CloseEvent,
        FrameEvent,
        NonFiniteEvent,
        RecorderCallback,
    )
    from overflow_recorder.debug import DebugUnderflowOverflow
    from overflow_recorder.errors import (
        BatchLimitReached,
        NonFiniteError,
        NonFiniteWarning,
        RecorderWarning,
        TraceExistsError,
    )
    from overflow_recorder.helpers.arguments import DataclassArgumentParser
    from overflow_recorder.helpers.distributed import torch_distributed_zero_first
    from overflow_recorder.helpers.evaluation import EvalPrediction
    from overflow_recorder.helpers.reproducibility import enable_full_determinism, set_seed
    from overflow_recorder.recorder_arguments import RecorderArguments
    from overflow_recorder.trace_recorder import TraceRecorder

__all__ = [
    "BatchEvent",
    "BatchLimitReached",
    "CallbackHandler",
    "CloseEvent",
    "DataclassArgumentParser",
    "DebugUnderflowOverflow",
    "EvalPrediction",
    "FrameEvent",
    "NonFiniteError",
    "NonFiniteEvent",
    "NonFiniteWarning",
    "RecorderArguments",
    "RecorderCallback",
    "RecorderWarning",
    "TraceExistsError",
    "TraceRecorder",
    "enable_full_determinism",
    "set_seed",
    "torch_distributed_zero_first",
]

_ROOM_OF = {
    "BatchEvent": "callbacks",
    "BatchLimitReached": "errors",
    "CallbackHandler": "callbacks",
    "CloseEvent": "callbacks",
    "DataclassArgumentParser": "helpers.arguments",
    "DebugUnderflowOverflow": "debug",
    "EvalPrediction": "helpers.evaluation",
    "FrameEvent": "callbacks",
    "NonFiniteError": "errors",
    "NonFiniteEvent": "callbacks",
    "NonFiniteWarning": "errors",
    "RecorderArguments": "recorder_arguments",
    "RecorderCallback": "callbacks",
    "RecorderWarning": "errors",
    "TraceExistsError": "errors",
    "TraceRecorder": "trace_recorder",
    "enable_full_determinism": "helpers.reproducibility",
    "set_seed": "helpers.reproducibility",
    "torch_distributed_zero_first": "helpers.distributed",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"{name} needs torch, which is not installed here: pip install 'overflow-trace[recorder]'"
        raise ModuleNotFoundError(message, name="torch") from error
