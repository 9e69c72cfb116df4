"""Run torch operations so that nothing of the user's sees them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Iterator

# torch has no public names for these switches.
_no_function_modes = torch._C.DisableTorchFunction
_no_autocast = torch._C._DisableAutocast
_no_transforms = torch._C._DisableFuncTorch
_dispatch_modes = torch._C._len_torch_dispatch_stack

PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes whose attributes are torch's own: while no function mode is enabled, reading them runs no user's code."""

function_mode_enabled = torch._C._is_torch_function_mode_enabled


@contextmanager
def quiet() -> Iterator[None]:
    """No mode, autocast, functorch transform or autograd sees the operations inside.

    A subclass that dispatches its own operations still does, for some can only so be read.
    """
    modes = _disable_current_modes() if _dispatch_modes() else nullcontext()
    # First, for no_grad() itself calls a function that a mode would see.
    with _no_function_modes(), torch.no_grad(), modes, _no_transforms(), _no_autocast():
        yield
