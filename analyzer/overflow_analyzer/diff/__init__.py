"""Comparing two traces: ``diff_traces(a, b) -> TraceDiff``.

Blocks of both runs are read in order (``reading``), laid side by side (``plan``, ``regions``) and compared all at once
(``comparing``); the first divergence, the ranked rest and what has no counterpart are collected on the way.
"""

from __future__ import annotations

from overflow_analyzer.diff.align.renames import Rename
from overflow_analyzer.diff.collect.over_batches import DifferenceMap, DifferencesOverBatches
from overflow_analyzer.diff.compare.tolerance import Tolerance
from overflow_analyzer.diff.model import (
    Alignment,
    BatchGrowth,
    Compared,
    Divergence,
    FigureDifference,
    FramePair,
    ModuleDifference,
    ModulePair,
    OnlyIn,
    RunDifference,
    SettingDifference,
    StructureDifference,
    TraceDiff,
)
from overflow_analyzer.diff.traces import diff_traces

__all__ = [
    "Alignment",
    "BatchGrowth",
    "Compared",
    "DifferenceMap",
    "DifferencesOverBatches",
    "Divergence",
    "FigureDifference",
    "FramePair",
    "ModuleDifference",
    "ModulePair",
    "OnlyIn",
    "Rename",
    "RunDifference",
    "SettingDifference",
    "StructureDifference",
    "Tolerance",
    "TraceDiff",
    "diff_traces",
]
