"""What the tensors of the last batches were: kept so that an alarm can say what has changed since the last good one."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, NamedTuple

from overflow_analyzer.format.columns import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_recorder.storage.packed_tensor import PackedTensor
    from overflow_recorder.storage.window import FrameHead

    _Entries = list[tuple[int, int, int, PackedTensor]]


_BATCHES: Final = 9
_MOST_CALLS: Final = 16_384
_TENSOR: Final = KINDS.index("tensor")
_JUMP: Final = 4.0
"""Times what it was a batch ago: from there on a tensor has jumped."""
_GROWTH: Final = 8.0
"""Times what it was as far back as is known: from there on a tensor has grown."""


class Changed(NamedTuple):
    """A tensor that has grown, or that is 0 where it was not; names are positions in the window's dictionary."""

    head: FrameHead
    role: int
    context: int
    dtype: int
    batch_before: int
    before: float
    """Largest finite magnitude then."""
    now: float

    @property
    def factor(self) -> float:
        """How many times as large it is; infinite where it is 0, which is as far as a figure can go."""
        return self.now / self.before if self.now else float("inf")


class RecentBatches:
    """The figures of each call of the last batches.

    They are the very objects that went into the window, so that keeping them costs a step nothing but memory: about
    1 KiB a call and batch, for nine batches and 16,384 calls at most.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[int, int, int], collections.deque[tuple[FrameHead, _Entries]]] = {}

    def note(self, head: FrameHead, entries: _Entries) -> None:
        """Keep a frame's figures; none of its tensors is on a device any more."""
        key = head.module_name, head.call_index, head.phase
        seen = self._calls.get(key)
        if seen is None:
            if len(self._calls) >= _MOST_CALLS:
                return
            seen = self._calls[key] = collections.deque(maxlen=_BATCHES)
        seen.append((head, entries))

    def changed(self, batch_number: int) -> list[Changed]:
        """Return the tensors of a batch that have changed most against those before it, in order of execution."""
        frames = [list(seen) for seen in self._calls.values() if seen[-1][0].batch_number == batch_number]
        frames.sort(key=lambda seen: seen[-1][0].frame_in_batch)
        first: dict[tuple[float, float], Changed] = {}
        for one in (changed for seen in frames for changed in _changed(seen)):
            first.setdefault((one.before, one.now), one)  # what one module passes on to the next is named once
        return list(first.values())


def _changed(seen: list[tuple[FrameHead, _Entries]]) -> Iterator[Changed]:
    (head, entries), earlier = seen[-1], [one for one in seen[:-1] if one[0].batch_number < seen[-1][0].batch_number]
    for kind, role, context, measured in entries:
        now = measured.finite_abs_max
        if kind != _TENSOR or now is None or measured.nonfinite:
            continue
        before = [(then.batch_number, _figure(figures, role, context)) for then, figures in earlier]
        known = [(batch, figure) for batch, figure in before if figure is not None]
        for (batch, figure), least in ((known[-1], _JUMP), (known[0], _GROWTH)) if known else ():
            if figure and (now > least * figure or not now):
                yield Changed(head, role, context, measured.dtype, batch, figure, now)
                break


def _figure(entries: _Entries, role: int, context: int) -> float | None:
    return next((one.finite_abs_max for _, r, c, one in entries if (r, c) == (role, context)), None)
