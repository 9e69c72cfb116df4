"""A run, or two runs side by side, as one page that needs nothing else."""

from __future__ import annotations

from overflow_analyzer.render.html.comparison import render_comparison
from overflow_analyzer.render.html.run import render_page

__all__ = ["render_comparison", "render_page"]
