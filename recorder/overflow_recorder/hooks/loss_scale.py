"""Finding the loss scale in use: a GradScaler belongs to the training loop and nobody hands it to us."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from torch.amp.grad_scaler import GradScaler


_SEARCHES: Final = 3


class LossScale:
    """The scale of the process's enabled GradScaler, looked for among live objects a few times at most."""

    def __init__(self) -> None:
        self._scaler: weakref.ref[GradScaler] | None = None
        self._searches_left = _SEARCHES

    def current(self) -> torch.Tensor | None:
        """Return the scale as the scaler's own tensor, on its device (reading it must not wait); None without one."""
        scaler = self._scaler() if self._scaler is not None else None
        if scaler is None and self._searches_left:
            self._searches_left -= 1
            scaler = _find()
            self._scaler = None if scaler is None else weakref.ref(scaler)
        return None if scaler is None else scaler._scale


def _find() -> GradScaler | None:
    # By type(), never isinstance: proxies among the live objects would run code of their own.
    for found in gc.get_objects():
        # A scaler that is off has no scale; one that has not been used yet has None.
        if issubclass(type(found), torch.amp.GradScaler) and getattr(found, "_scale", None) is not None:
            scaler: GradScaler = found
            return scaler
    return None
