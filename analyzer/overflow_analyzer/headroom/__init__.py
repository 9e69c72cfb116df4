"""What will go non-finite next? How close each module's figures are to the limits of their formats."""

from __future__ import annotations

from overflow_analyzer.headroom.headroom import Headroom, ModuleHeadroom, headroom_of
from overflow_analyzer.headroom.watching import Snapshot, Watcher

__all__ = ["Headroom", "ModuleHeadroom", "Snapshot", "Watcher", "headroom_of"]
