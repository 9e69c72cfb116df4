"""A trace in another form: one Parquet file, CSV, JSON lines, TensorBoard."""

from __future__ import annotations

from overflow_analyzer.convert.compact import Compacted, compact_trace
from overflow_analyzer.convert.export import csv_pieces, json_lines
from overflow_analyzer.convert.tensorboard import export_tensorboard

__all__ = ["Compacted", "compact_trace", "csv_pieces", "export_tensorboard", "json_lines"]
