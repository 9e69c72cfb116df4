"""Measuring each tensor once: the same object, unchanged within a batch, is not read again."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from torch._subclasses.fake_tensor import FakeTensor

from overflow_recorder.faults import raised_by_signal_handler
from overflow_recorder.statistics import DeviceBuffer, Statistics, describe, masked_rows, measure
from overflow_recorder.statistics.figures import UNKNOWN
from overflow_recorder.statistics.quiet import PLAIN, function_mode_enabled, quiet
from overflow_recorder.storage.packed_tensor import PackedTensor, TensorPacker

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from overflow_recorder.statistics import Description


_MAX_REMEMBERED: Final = 65_536
MOST_FORWARDS: Final = 64
"""Outermost forwards for which a tensor's figures stand at most, where nothing else says that it may have changed."""


class Deferred:
    """A tensor on a device: its figures lie in a device buffer until the batch's one copy to the host."""

    __slots__ = ("description", "device", "measured", "note", "slot")
    nonfinite = False  # not known yet

    def __init__(self, description: Description, device: torch.device, slot: int, note: str | None) -> None:
        self.description, self.device, self.slot, self.note = description, device, slot, note
        self.measured: PackedTensor | None = None


class Measuring:
    """Measures tensors for one recorder.

    Args:
        statistics: "extrema" or "full".
        position: The window's dictionary of names.
    """

    def __init__(self, statistics: Statistics, position: Callable[[str], int]) -> None:
        self._statistics = statistics
        self._pack = TensorPacker(position)
        self._remembered: dict[int, tuple[Any, int, PackedTensor | Deferred]] = {}
        self._buffers: dict[torch.device, DeviceBuffer] = {}
        self._deferred: list[Deferred] = []
        self._forwards = 0

    def forget(self) -> None:
        """Measure everything anew: a batch begins, or weights may have changed."""
        self._remembered.clear()
        self._forwards = 0

    def count_forward(self) -> None:
        """Count a forward that no other one has called; what has stood for 64 of them is forgotten."""
        if self._forwards >= MOST_FORWARDS:
            self.forget()
        self._forwards += 1

    def __call__(self, tensor: torch.Tensor, note: str | None = None) -> PackedTensor | Deferred:
        """Return what is known of a tensor; it is read unless this very object was, unchanged, since ``forget``.

        Assumes that a change in place raises ``_version``. One through ``.data`` does not: then the earlier figures
        stand until the next root forward, backward, optimizer step or change between training and evaluation, and for
        64 outermost forwards at most. With a note, it is read in any case.
        """
        if note is None and type(tensor) in PLAIN and not function_mode_enabled():
            return self._once(tensor)
        with quiet():  # reading an attribute of a subclass may run anybody's code
            try:
                return self._once(tensor) if note is None else self._measure(tensor, note)
            except Exception as error:  # a tensor that refuses to be looked at is a row all the same
                if raised_by_signal_handler(error):
                    raise
                return self._pack(describe(tensor), UNKNOWN, note)

    def _once(self, tensor: torch.Tensor) -> PackedTensor | Deferred:
        found = self._remembered.get(id(tensor))
        # The weak reference guards against an id that was used again after its tensor died.
        if found is not None and found[0]() is tensor and found[1] == tensor._version:
            return found[2]
        measured = self._measure(tensor)
        if not tensor.is_inference():  # an inference tensor has no version, so a change would not be seen
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[id(tensor)] = (weakref.ref(tensor), tensor._version, measured)
        return measured

    def _measure(self, tensor: torch.Tensor, note: str | None = None) -> PackedTensor | Deferred:
        # Now, or on a device later: there its reading is enqueued.
        if tensor.is_cpu or tensor.is_meta or isinstance(tensor, FakeTensor):
            figures = measure(tensor, self._statistics)
            if figures.neginf_count:
                figures = figures._replace(neginf_row_count=masked_rows(tensor))
            return self._pack(describe(tensor), figures, note)
        device = tensor.device
        buffer = self._buffers.get(device)
        if buffer is None:
            buffer = self._buffers[device] = DeviceBuffer(device, self._statistics)
        deferred = Deferred(describe(tensor), device, buffer.measure(tensor), note)
        self._deferred.append(deferred)
        return deferred

    @property
    def waits(self) -> bool:
        """Whether figures are still on a device."""
        return bool(self._deferred)

    def collect(self) -> None:
        """Fetch the figures of all deferred tensors: one copy, and one wait, a device."""
        deferred, self._deferred = self._deferred, []
        if not deferred:
            return
        self.forget()
        figures = {device: buffer.collect() for device, buffer in self._buffers.items()}
        for one in deferred:
            one.measured = self._pack(one.description, figures[one.device][one.slot], one.note)
