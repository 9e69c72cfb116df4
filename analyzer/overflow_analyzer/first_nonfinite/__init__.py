"""What went non-finite first, and why?"""

from __future__ import annotations

from overflow_analyzer.first_nonfinite.causes.case import Cause
from overflow_analyzer.first_nonfinite.finding import Finding, find_first_nonfinite

__all__ = ["Cause", "Finding", "find_first_nonfinite"]
