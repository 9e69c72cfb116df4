"""What the recorder raises on purpose, and the one warning it gives when it has to switch itself off."""

from __future__ import annotations


class NonFiniteError(ValueError):
    """An inf or nan was detected; raised before the training loop goes on."""


class BatchLimitReached(ValueError):  # noqa: N818  the name that the design gives it: not an error, an end that was asked for
    """The batch named by ``abort_after_batch_num`` has ended."""


class TraceExistsError(FileExistsError):
    """There is something at the path already. It was not touched."""


class RecorderWarning(RuntimeWarning):
    """The recorder could not do something; training goes on."""


class NonFiniteWarning(RecorderWarning):
    """An inf or nan was detected under ``on_nonfinite="warn"``."""
