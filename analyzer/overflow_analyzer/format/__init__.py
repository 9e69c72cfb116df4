"""What is a trace? The table of columns, run information, frames, float formats, parts, the ring."""

from __future__ import annotations

from overflow_analyzer.format.columns import FORMAT_VERSION, SCHEMA
from overflow_analyzer.format.float_formats import FLOAT_FORMATS, FloatFormat, float_format
from overflow_analyzer.format.frames import Entry, Frame
from overflow_analyzer.format.run_info import EndInfo, RunInfo

__all__ = [
    "FLOAT_FORMATS",
    "FORMAT_VERSION",
    "SCHEMA",
    "EndInfo",
    "Entry",
    "FloatFormat",
    "Frame",
    "RunInfo",
    "float_format",
]
