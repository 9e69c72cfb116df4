"""The analyzer of overflow-trace: opens traces, finds the first inf/nan, says what produced it, compares runs.

It needs no torch. Names are imported when first used, so that the command line starts without loading Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overflow_analyzer.errors import (
        DamagedTraceError,
        EmptyTraceError,
        NotATraceError,
        NotRecordedError,
        TraceError,
        TraceNotFoundError,
        UnknownVersionError,
    )
    from overflow_analyzer.frames import Entry, Frame
    from overflow_analyzer.report import render_batch, render_report
    from overflow_analyzer.run_info import EndInfo, RunInfo
    from overflow_analyzer.trace import RankTrace, Trace, open_trace

__all__ = [
    "DamagedTraceError",
    "EmptyTraceError",
    "EndInfo",
    "Entry",
    "Frame",
    "NotATraceError",
    "NotRecordedError",
    "RankTrace",
    "RunInfo",
    "Trace",
    "TraceError",
    "TraceNotFoundError",
    "UnknownVersionError",
    "open_trace",
    "render_batch",
    "render_report",
]

_MODULES = ("errors", "frames", "report", "run_info", "trace")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(importlib.import_module, (f"{__name__}.{room}" for room in _MODULES)):
            if name in getattr(module, "__all__", ()):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
