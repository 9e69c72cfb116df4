"""A comparison of two traces for reading: the answer in words, frames side by side, tables; and for JSON."""

from __future__ import annotations

from overflow_analyzer.render.diff.rendering import diff_as_json, render_diff

__all__ = ["diff_as_json", "render_diff"]
