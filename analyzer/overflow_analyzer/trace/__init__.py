"""What is in this trace? Opening it, its ranks, batches, gaps and non-finite rows, and what it does not cover."""

from __future__ import annotations

from overflow_analyzer.trace.batches import batch_of
from overflow_analyzer.trace.coverage import coverage_of
from overflow_analyzer.trace.history import History, TensorHistory, history_of
from overflow_analyzer.trace.opening import Trace, open_trace
from overflow_analyzer.trace.rank_trace import RankTrace
from overflow_analyzer.trace.summary import RankSummary, Summary, summarize

__all__ = [
    "History",
    "RankSummary",
    "RankTrace",
    "Summary",
    "TensorHistory",
    "Trace",
    "batch_of",
    "coverage_of",
    "history_of",
    "open_trace",
    "summarize",
]
