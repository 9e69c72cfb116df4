"""Running the origin module again, to see which operation made the first inf/nan."""

from __future__ import annotations

from overflow_recorder.replay.origin import find_operation

__all__ = ["find_operation"]
