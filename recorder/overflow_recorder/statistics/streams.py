"""The order between a device's streams: rows are made on one, written on any, and read on one."""

from __future__ import annotations

import torch


class Streams:
    """The streams of one device that write into a buffer. On devices other than CUDA and ROCm there is but one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._exists = device.type == "cuda" and torch.cuda.is_available()
        self._seen: set[int] = set()
        self._made: torch.cuda.Event | None = None
        self._several = False

    def are_capturing(self) -> bool:
        """Whether work enqueued now would become part of a CUDA graph, and run again at each replay."""
        return self._exists and torch.cuda.is_current_stream_capturing()

    def begin(self) -> None:
        """Rows have just been made on the current stream: others must not write before that is done."""
        if self._exists:
            stream = torch.cuda.current_stream(self._device)
            self._several = self._several or len(self._seen) > 1
            self._seen = {stream.cuda_stream}
            self._made = stream.record_event()

    def enter(self) -> None:
        """The current stream is about to write."""
        if self._exists:
            stream = torch.cuda.current_stream(self._device)
            if stream.cuda_stream not in self._seen:
                self._seen.add(stream.cuda_stream)
                if self._made is not None:
                    stream.wait_event(self._made)

    def join(self) -> None:
        """The current stream is about to read what all have written."""
        if self._exists:
            current = torch.cuda.current_stream(self._device).cuda_stream
            if self._several or self._seen - {current}:
                torch.cuda.synchronize(self._device)
            self._several = False

    def wait(self) -> None:
        """Wait on the host until the current stream is done."""
        if self._exists:
            torch.cuda.current_stream(self._device).synchronize()
