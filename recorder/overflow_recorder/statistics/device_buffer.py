"""Figures of tensors on a device, without ever waiting for it."""

from __future__ import annotations

import importlib.util
import logging
import threading
from typing import Literal, Protocol

import numpy as np
import torch

from overflow_recorder.faults import raised_by_signal_handler
from overflow_recorder.statistics.figures import EMPTY, UNKNOWN, Decoder, Figures, Statistics, with_zeros
from overflow_recorder.statistics.formats import FORMATS, Array
from overflow_recorder.statistics.host.measure import measure as measure_on_host
from overflow_recorder.statistics.memory import storage_address
from overflow_recorder.statistics.quiet import PLAIN, function_mode_enabled, quiet
from overflow_recorder.statistics.streams import Streams
from overflow_recorder.statistics.torch_operations import TorchOperations
from overflow_recorder.statistics.values import Values, is_functorch_wrapped, values_of

_log = logging.getLogger(__name__)

_ROWS = 512  # of the first chunk

BackendName = Literal["auto", "torch", "triton"]
"""`auto`: Triton on a CUDA or ROCm device where it is installed, torch operations for all it cannot read."""


class Backend(Protocol):
    """Writes the figures of tensors into rows of a buffer on their device, and never waits for it."""

    columns: int
    """float64 numbers a row."""

    def reset(self, rows: torch.Tensor) -> None:
        """Prepare rows before they are written (again)."""

    def enqueue(self, values: Values, rows: torch.Tensor, index: int) -> Decoder | None:
        """Have the figures of a tensor with at least one element written into `rows[index]`; under `quiet`.

        Returns:
            What reads that row; None where this backend cannot read such a tensor.
        """


class DeviceBuffer:
    """Collects the figures of one device's tensors: many `measure`, then one `collect`.

    `measure` only enqueues work on the device's current stream and keeps no tensor; the figures wait in rows on the
    device (56 bytes a tensor; 4 KiB with full statistics) until `collect` copies them all.

    Args:
        device: Where the tensors are.
        statistics: `extrema` or `full`, for all of them.
        backend: Which kernels; see `BackendName`.

    Raises:
        ImportError: `backend` is `triton`, and it is not installed.
    """

    def __init__(self, device: torch.device, statistics: Statistics, backend: BackendName = "auto") -> None:
        self._device = device
        self._statistics: Statistics = statistics
        self._quick = quick_backend(backend, device, statistics)
        self._general: Backend = TorchOperations(statistics)
        self._columns = max(self._general.columns, self._quick.columns if self._quick else 0)
        self._chunks: list[torch.Tensor] = []
        self._room = 0  # rows in all chunks
        self._slots: list[Decoder | Figures] = []
        self._streams = Streams(device)
        self._lock = threading.Lock()  # DataParallel's hooks run in several threads

    def measure(self, tensor: torch.Tensor) -> int:
        """Enqueue the reading of `tensor`, any tensor; never synchronizes, never raises.

        Where only a wait could tell the values (a sparse tensor that is not coalesced, a nested one with holes), and
        while a CUDA graph is captured, its figures will be None.

        Returns:
            The slot: the place of its figures in what `collect` returns.
        """
        with self._lock:
            try:
                slot = self._measure(tensor)
            except Exception as error:  # a tensor that cannot be read has no figures, and training goes on
                if raised_by_signal_handler(error):
                    raise
                slot = UNKNOWN
            self._slots.append(slot)
            return len(self._slots) - 1

    def collect(self) -> list[Figures]:
        """Wait for the device once, and return the figures by slot; the next `measure` begins at slot 0 again."""
        with self._lock:
            slots, self._slots = self._slots, []
            if not self._chunks:
                return [slot for slot in slots if isinstance(slot, Figures)]
            with quiet():
                rows = self._fetch(len(slots))
            return [slot if isinstance(slot, Figures) else slot(row) for slot, row in zip(slots, rows, strict=False)]

    def _measure(self, tensor: torch.Tensor) -> Decoder | Figures:
        if self._streams.are_capturing():
            return UNKNOWN
        if self._quick is not None and _is_plain(tensor) and tensor.device == self._device:
            decoder = self._enqueue_quickly(Values(tensor))
            if decoder is not None:
                return decoder
        with quiet():
            values = values_of(tensor, may_wait=False)
            return UNKNOWN if values is None else self._measure_values(values)

    def _measure_values(self, values: Values) -> Decoder | Figures:
        size = values.tensor.numel()
        if not size:
            return with_zeros(EMPTY[self._statistics], values.zeros, 0) if values.zeros else EMPTY[self._statistics]
        if values.tensor.device.type == "cpu" != self._device.type:
            return measure_on_host(values.tensor, self._statistics)
        return self._enqueue_quickly(values) or self._general.enqueue(values, *self._row()) or UNKNOWN

    def _enqueue_quickly(self, values: Values) -> Decoder | None:
        if self._quick is None:
            return None
        try:
            return self._quick.enqueue(values, *self._row())
        except Exception as error:  # a compiler that fails once fails always: torch operations go on
            if raised_by_signal_handler(error):
                raise
            _log.warning("Triton kernels are switched off, torch operations measure instead: %s", error)
            self._quick = None
            return None

    def _row(self) -> tuple[torch.Tensor, int]:
        """The rows that hold the next slot's, and its index among them."""
        slot = len(self._slots)
        if slot >= self._room:
            self._grow()
        self._streams.enter()
        rows = self._chunks[-1]
        return rows, slot - (self._room - len(rows))

    def _grow(self) -> None:
        # An inference tensor could not be written to outside inference mode.
        with quiet(), torch.inference_mode(mode=False):
            dtype = torch.float32 if self._device.type == "mps" else torch.float64
            rows = torch.empty(max(_ROWS, self._room), self._columns, dtype=dtype, device=self._device)
            self._reset(rows)
        self._device = rows.device  # "cuda" becomes "cuda:0"
        self._chunks.append(rows)
        self._room += len(rows)
        self._streams.begin()

    def _reset(self, rows: torch.Tensor) -> None:
        if self._quick is not None:
            self._quick.reset(rows)

    def _fetch(self, count: int) -> Array:
        """Copy the rows to the host, wait for them, and leave them ready to be written again."""
        pinned = self._device.type == "cuda"
        copies = []
        self._streams.join()
        for rows in self._chunks:
            used = rows[: max(count, 0)]
            copy = torch.empty(used.shape, dtype=rows.dtype, device="cpu", pin_memory=pinned)
            copies.append(copy.copy_(used, non_blocking=pinned))  # elsewhere the copy itself waits
            self._reset(used)
            count -= len(rows)
        self._streams.wait()
        return np.concatenate([copy.numpy() for copy in copies])


def quick_backend(name: BackendName, device: torch.device, statistics: Statistics) -> Backend | None:
    """Choose what reads a device's plain dense tensors and runs no torch operation, if anything can.

    Raises:
        ImportError: `triton` was asked for by name and is not installed.
    """
    on_device = device.type == "cuda" and torch.cuda.is_available()
    if name == "triton" or (name == "auto" and on_device and importlib.util.find_spec("triton") is not None):
        from overflow_recorder.statistics.triton.kernels import TritonKernels

        return TritonKernels(statistics)
    return None


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a kernel may read the tensor's memory without a closer look."""
    return (
        type(tensor) in PLAIN
        and not function_mode_enabled()
        and tensor.dtype in FORMATS
        and tensor.layout is torch.strided
        and not is_functorch_wrapped(tensor)
        and not tensor.is_nested
        and tensor.numel() > 0
        and bool(storage_address(tensor))
    )
