"""The analyzer of overflow-trace: opens traces, finds the first inf/nan, says what produced it, compares runs.

It needs no torch. Names are imported when first used, so that the command line starts without loading Arrow.

Imports go one way, those for types included: each of these imports only from those before it.

    errors, text < format < trace < first_nonfinite < headroom < diff, convert < render < cli
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overflow_analyzer.convert.compact import Compacted, compact_trace
    from overflow_analyzer.diff import Rename, Tolerance, TraceDiff, diff_traces
    from overflow_analyzer.errors import (
        DamagedTraceError,
        EmptyTraceError,
        NotATraceError,
        NotRecordedError,
        TraceError,
        TraceNotFoundError,
        UnknownVersionError,
    )
    from overflow_analyzer.first_nonfinite.causes.case import Cause
    from overflow_analyzer.first_nonfinite.finding import Finding, find_first_nonfinite
    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.run_info import EndInfo, RunInfo
    from overflow_analyzer.headroom.headroom import Headroom, ModuleHeadroom, headroom_of
    from overflow_analyzer.render.diff import render_diff
    from overflow_analyzer.render.explanation import render_explanation
    from overflow_analyzer.render.report import render_batch, render_report
    from overflow_analyzer.trace.batches import batch_of
    from overflow_analyzer.trace.coverage import coverage_of
    from overflow_analyzer.trace.opening import Trace, open_trace
    from overflow_analyzer.trace.rank_trace import RankTrace
    from overflow_analyzer.trace.summary import RankSummary, Summary, summarize

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
    "Cause": "first_nonfinite.causes.case",
    "Compacted": "convert.compact",
    "DamagedTraceError": "errors",
    "EmptyTraceError": "errors",
    "EndInfo": "format.run_info",
    "Entry": "format.frames",
    "Finding": "first_nonfinite.finding",
    "Frame": "format.frames",
    "Headroom": "headroom.headroom",
    "ModuleHeadroom": "headroom.headroom",
    "NotATraceError": "errors",
    "NotRecordedError": "errors",
    "RankSummary": "trace.summary",
    "RankTrace": "trace.rank_trace",
    "Rename": "diff",
    "RunInfo": "format.run_info",
    "Summary": "trace.summary",
    "Tolerance": "diff",
    "Trace": "trace.opening",
    "TraceDiff": "diff",
    "TraceError": "errors",
    "TraceNotFoundError": "errors",
    "UnknownVersionError": "errors",
    "batch_of": "trace.batches",
    "compact_trace": "convert.compact",
    "coverage_of": "trace.coverage",
    "diff_traces": "diff",
    "find_first_nonfinite": "first_nonfinite.finding",
    "headroom_of": "headroom.headroom",
    "open_trace": "trace.opening",
    "render_batch": "render.report",
    "render_diff": "render.diff",
    "render_explanation": "render.explanation",
    "render_report": "render.report",
    "summarize": "trace.summary",
}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
