"""A run, or two runs side by side, as one page that needs nothing else."""

from __future__ import annotations

from overflow_analyzer.render.html.page import render_page

__all__ = ["render_page"]
