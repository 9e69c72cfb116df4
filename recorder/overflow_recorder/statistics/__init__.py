"""The figures of one tensor: extrema, exact non-finite counts and, on request, more.

`measure` reads a tensor in the host's memory at once. `DeviceBuffer` reads tensors on a device without ever waiting
for it. `describe` names what was measured. None of them raises for any tensor, and none changes anything.
"""

from __future__ import annotations

from overflow_recorder.statistics.describe import Description, describe
from overflow_recorder.statistics.device_buffer import BackendName, DeviceBuffer
from overflow_recorder.statistics.figures import Figures, Statistics
from overflow_recorder.statistics.host.masked_rows import masked_rows
from overflow_recorder.statistics.host.measure import measure

__all__ = ["BackendName", "Description", "DeviceBuffer", "Figures", "Statistics", "describe", "masked_rows", "measure"]
