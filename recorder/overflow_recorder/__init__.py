"""The recorder of overflow-trace: runs inside PyTorch training and is forgotten there.

Names are imported when first used, so that the training helpers work where torch is not installed.

Imports go one way, those for types included: each of these imports only from those before it.

    errors, events, helpers, recorder_arguments < faults, callbacks < statistics, hooks < storage < recording < replay
    < builtin_callbacks < trace_recorder < debug, integrations, launch
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overflow_recorder.callbacks import CallbackHandler, RecorderCallback
    from overflow_recorder.debug import DebugUnderflowOverflow
    from overflow_recorder.errors import (
        BatchLimitReached,
        NonFiniteError,
        NonFiniteWarning,
        RecorderWarning,
        TraceExistsError,
    )
    from overflow_recorder.events import BatchEvent, CloseEvent, FrameEvent, NonFiniteEvent, Stop
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
    "Stop",
    "TraceExistsError",
    "TraceRecorder",
    "enable_full_determinism",
    "set_seed",
    "torch_distributed_zero_first",
]

_MODULE_OF = {
    "BatchEvent": "events",
    "BatchLimitReached": "errors",
    "CallbackHandler": "callbacks",
    "CloseEvent": "events",
    "DataclassArgumentParser": "helpers.arguments",
    "DebugUnderflowOverflow": "debug",
    "EvalPrediction": "helpers.evaluation",
    "FrameEvent": "events",
    "NonFiniteError": "errors",
    "NonFiniteEvent": "events",
    "NonFiniteWarning": "errors",
    "RecorderArguments": "recorder_arguments",
    "RecorderCallback": "callbacks",
    "RecorderWarning": "errors",
    "Stop": "events",
    "TraceExistsError": "errors",
    "TraceRecorder": "trace_recorder",
    "enable_full_determinism": "helpers.reproducibility",
    "set_seed": "helpers.reproducibility",
    "torch_distributed_zero_first": "helpers.distributed",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        message = f"{name} needs torch, which is not installed here: pip install 'overflow-trace[recorder]'"
        raise ModuleNotFoundError(message, name="torch") from error
