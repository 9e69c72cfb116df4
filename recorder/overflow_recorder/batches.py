"""Which batch a frame belongs to: one root forward each, or as the loop says with ``step()`` and ``batch_number``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overflow_recorder.recorder_arguments import RecorderArguments

__all__ = ["Batch", "BatchCounter"]


class Batch:
    """One batch's counts."""

    __slots__ = ("calls", "ended", "frames", "number", "selected")

    def __init__(self, number: int, *, selected: bool) -> None:
        self.number = number
        self.selected = selected
        """Whether it is written whole."""
        self.frames = 0
        self.calls: dict[str, int] = {}
        self.ended = False
        """Whether its root forward has returned; its backward and what follows still belong to it."""

    def next_call(self, module_name: str) -> int:
        """Count a call of a module and return its 0-based index."""
        index = self.calls.get(module_name, 0)
        self.calls[module_name] = index + 1
        return index


class BatchCounter:
    """Numbers batches.

    A batch ends when the root's forward returns, but the next one starts only at the next root call: the backward in
    between, with its recomputed frames and gradients, belongs to the batch that it is of. Once a loop has said where
    its batches end (``step`` or ``set_number``), root calls no longer count.
    """

    def __init__(self, options: RecorderArguments) -> None:
        self._numbers = frozenset(options.trace_batch_nums or ())
        self._every = options.every_n_batches
        self._manual = False
        self.current = self._make(0)

    def _make(self, number: int) -> Batch:
        sampled = self._every is not None and number % self._every == 0
        return Batch(number, selected=sampled or number in self._numbers)

    def root_starts(self) -> bool:
        """Say that an outermost root forward starts; returns whether that starts a new batch."""
        if self._manual or not self.current.ended:
            return False
        self.current = self._make(self.current.number + 1)
        return True

    def root_ends(self) -> None:
        """Say that an outermost root forward has returned."""
        self.current.ended = True

    def set_number(self, number: int) -> None:
        """Start batch ``number``; from now on only the loop counts."""
        self._manual = True
        self.current = self._make(number)
