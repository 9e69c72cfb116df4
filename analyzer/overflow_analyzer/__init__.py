"""The analyzer of overflow-trace: opens traces, finds the first inf/nan, says what produced it, compares runs.

It needs no torch. Names are imported when first used, so that the command line starts without loading Arrow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overflow_analyzer.batches import batch_of
    from overflow_analyzer.causes.case import Cause
    from overflow_analyzer.compact import Compacted, compact_trace
    from overflow_analyzer.coverage import coverage_of
    from overflow_analyzer.diff import Rename, Tolerance, TraceDiff, diff_traces
    from overflow_analyzer.diff_report import render_diff
    from overflow_analyzer.errors import (
        DamagedTraceError,
        EmptyTraceError,
        NotATraceError,
        NotRecordedError,
        TraceError,
        TraceNotFoundError,
        UnknownVersionError,
    )
    from overflow_analyzer.explanation import render_explanation
    from overflow_analyzer.finding import Finding, find_first_nonfinite
    from overflow_analyzer.frames import Entry, Frame
    from overflow_analyzer.headroom import Headroom, ModuleHeadroom, headroom_of
    from overflow_analyzer.report import render_batch, render_report
    from overflow_analyzer.run_info import EndInfo, RunInfo
    from overflow_analyzer.summary import RankSummary, Summary, summarize
    from overflow_analyzer.trace import RankTrace, Trace, open_trace

__all__ = [
    "Cause",
    "Compacted",
    "DamagedTraceError",
    "EmptyTraceError",
    "EndInfo",
    "Entry",
    "Finding",
    "Frame",
    "Headroom",
    "ModuleHeadroom",
    "NotATraceError",
    "NotRecordedError",
    "RankSummary",
    "RankTrace",
    "Rename",
    "RunInfo",
    "Summary",
    "Tolerance",
    "Trace",
    "TraceDiff",
    "TraceError",
    "TraceNotFoundError",
    "UnknownVersionError",
    "batch_of",
    "compact_trace",
    "coverage_of",
    "diff_traces",
    "find_first_nonfinite",
    "headroom_of",
    "open_trace",
    "render_batch",
    "render_diff",
    "render_explanation",
    "render_report",
    "summarize",
]

_ROOM_OF = {
    "Cause": "causes.case",
    "Compacted": "compact",
    "DamagedTraceError": "errors",
    "EmptyTraceError": "errors",
    "EndInfo": "run_info",
    "Entry": "frames",
    "Finding": "finding",
    "Frame": "frames",
    "Headroom": "headroom",
    "ModuleHeadroom": "headroom",
    "NotATraceError": "errors",
    "NotRecordedError": "errors",
    "RankSummary": "summary",
    "RankTrace": "trace",
    "Rename": "diff",
    "RunInfo": "run_info",
    "Summary": "summary",
    "Tolerance": "diff",
    "Trace": "trace",
    "TraceDiff": "diff",
    "TraceError": "errors",
    "TraceNotFoundError": "errors",
    "UnknownVersionError": "errors",
    "batch_of": "batches",
    "compact_trace": "compact",
    "coverage_of": "coverage",
    "diff_traces": "diff",
    "find_first_nonfinite": "finding",
    "headroom_of": "headroom",
    "open_trace": "trace",
    "render_batch": "report",
    "render_diff": "diff_report",
    "render_explanation": "explanation",
    "render_report": "report",
    "summarize": "summary",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
