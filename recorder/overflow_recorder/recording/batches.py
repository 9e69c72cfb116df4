"""Which batch a frame belongs to: one root forward each, or as the loop says with ``step()`` and ``batch_number``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from overflow_recorder.recorder_arguments import RecorderArguments


class Batch:
    """One batch's counts."""

    __slots__ = ("called", "calls", "depth", "ended", "frames", "number", "selected")

    def __init__(self, number: int, *, selected: bool) -> None:
        self.number = number
        self.selected = selected
        """Whether it is written whole."""
        self.frames = 0
        self.calls: dict[Hashable, int] = {}
        self.called = False
        """Whether a root forward of it has started."""
        self.depth = 0
        """Root forwards under way: more than one where the root calls itself."""
        self.ended = False
        """Whether a root forward has returned, or the loop said so; what follows until the next still belongs to it."""

    def next_call(self, what: Hashable) -> int:
        """Count a call of a module, or a frame of another kind, and return its 0-based index."""
        index = self.calls.get(what, 0)
        self.calls[what] = index + 1
        return index


class BatchCounter:
    """Numbers batches.

    A batch ends when the root's forward returns, but the next one starts only at the next root call: the backward in
    between, with its recomputed frames and gradients, belongs to the batch that it is of. Once a loop has said where
    its batches begin (``begin``, or ``set_number`` for the second time), root calls no longer count.
    """

    def __init__(self, options: RecorderArguments) -> None:
        self._numbers = frozenset(options.trace_batch_nums or ())
        self._every = options.every_n_batches
        self.manual = False
        """Whether the loop counts."""
        self._was_set = False
        self.current = self._make(0)

    def _make(self, number: int) -> Batch:
        sampled = self._every is not None and number % self._every == 0
        return Batch(number, selected=sampled or number in self._numbers)

    def root_starts(self, *, nested: bool = False) -> bool:
        """Say that a root forward starts.

        Args:
            nested: Whether it was called by the root itself. Otherwise a root forward that has started and not returned
                was interrupted.

        Returns:
            Whether that starts a new batch.
        """
        if nested:
            self.current.depth += 1
            return False
        is_new = self.current.called and not self.manual
        if is_new:
            self.current = self._make(self.current.number + 1)
        self.current.called = True
        self.current.depth = 1
        return is_new

    def root_ends(self) -> bool:
        """Say that a root forward has returned or raised; returns whether it was the outermost."""
        self.current.depth -= 1
        return self.current.depth <= 0

    def begin(self, number: int) -> None:
        """Start batch ``number``; from now on only the loop counts."""
        self.manual = True
        self.current = self._make(number)

    def set_number(self, number: int) -> None:
        """Start batch ``number``. Root calls count on from there, unless the loop says a number for the second time."""
        self.manual, self._was_set = self.manual or self._was_set, True
        self.current = self._make(number)

    def resume(self) -> None:
        """Go on after a pause: a batch that was in use has ended."""
        if self.current.called or self.current.frames:
            self.current = self._make(self.current.number + 1)
