"""The analyzer of overflow-trace: opens traces, finds the first inf/nan, says what produced it, compares runs.

It needs no torch. Names are imported when first used, so that the command line starts without loading Arrow.

Imports go one way, those for types included: each of these imports only from those before it.

    errors, text < format < trace < first_nonfinite < headroom < overview < diff, convert < render < cli
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overflow_analyzer.convert import Compacted, compact_trace
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
    from overflow_analyzer.first_nonfinite import Cause, Finding, find_first_nonfinite
    from overflow_analyzer.format import EndInfo, Entry, Frame, RunInfo
    from overflow_analyzer.headroom import Headroom, ModuleHeadroom, headroom_of
    from overflow_analyzer.render.diff import render_diff
    from overflow_analyzer.render.explanation import render_explanation
    from overflow_analyzer.render.report import render_batch, render_report
    from overflow_analyzer.trace import (
        RankSummary,
        RankTrace,
        Summary,
        Trace,
        batch_of,
        coverage_of,
        open_trace,
        summarize,
    )

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
    name: room
    for room, names in {
        "convert": "Compacted compact_trace",
        "diff": "Rename Tolerance TraceDiff diff_traces",
        "errors": "DamagedTraceError EmptyTraceError NotATraceError NotRecordedError TraceError TraceNotFoundError "
        "UnknownVersionError",
        "first_nonfinite": "Cause Finding find_first_nonfinite",
        "format": "EndInfo Entry Frame RunInfo",
        "headroom": "Headroom ModuleHeadroom headroom_of",
        "render.diff": "render_diff",
        "render.explanation": "render_explanation",
        "render.report": "render_batch render_report",
        "trace": "RankSummary RankTrace Summary Trace batch_of coverage_of open_trace summarize",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
