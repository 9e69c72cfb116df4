"""What the recorder tells its callbacks, and what one of them may answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.origin import Change
    from overflow_analyzer.format.run_info import HowEnded


@dataclass(frozen=True)
class BatchEvent:
    """A batch begins or has ended."""

    batch_number: int
    """0-based."""
    selected: bool
    """Whether the batch is written whole."""


@dataclass(frozen=True)
class FrameEvent:
    """A frame was measured."""

    frame: Frame


@dataclass(frozen=True)
class NonFiniteEvent:
    """An inf or nan was found."""

    frame: Frame
    """The frame it was found in."""
    window: tuple[Frame, ...]
    """The last measured frames, oldest first, that one included."""
    batch_number: int
    """0-based."""
    entries: tuple[Entry, ...]
    """The frame's entries with an inf or nan."""
    changes: tuple[Change, ...]
    """What has changed most in this batch against those before it, in order of execution."""


@dataclass(frozen=True)
class CloseEvent:
    """The recorder was closed."""

    how: str
    """As in ``overflow_analyzer.EndInfo``: "closed", "detected", "aborted", "exception" or "switched off"."""
    reason: str | None
    """The exception that ended the run, or why the recorder switched itself off."""


@dataclass(frozen=True)
class Stop:
    """What a callback returns to end the run: the recorder completes the trace, lets go of the model and raises."""

    error: Exception
    """What the recorder raises."""
    reason: str
    """Why, in a sentence, for ``overflow-analyze info``."""
    how: HowEnded = "aborted"
    """How the run ended."""
