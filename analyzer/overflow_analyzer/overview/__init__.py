"""What did every tensor do over the whole run? Its largest figures over batches, drawn together until they fit."""

from __future__ import annotations

from overflow_analyzer.overview.overview import Level, Overview, RankStrip, Tensor, overview_of, recorded_batches

__all__ = ["Level", "Overview", "RankStrip", "Tensor", "overview_of", "recorded_batches"]
