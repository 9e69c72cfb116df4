"""Noticing the steps of optimizers."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import _global_optimizer_post_hooks, register_optimizer_step_post_hook

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle


class OptimizerSteps:
    """Calls back after each step of any optimizer of the process; a skipped step does not count.

    Args:
        model: Whose parameters.
        stepped: Called after the step with the optimizer, and whether it holds a parameter of the model.
        fault: Called with an exception of ours: none may reach the training.
    """

    def __init__(
        self, model: nn.Module, stepped: Callable[[Optimizer, bool], None], fault: Callable[[Exception], None]
    ) -> None:
        self._model = model
        self._stepped = stepped
        self._fault = fault
        self._ours: weakref.WeakKeyDictionary[Optimizer, tuple[int, bool]] = weakref.WeakKeyDictionary()
        self._handle: RemovableHandle | None = None

    def attach(self) -> None:
        """Listen to every optimizer of the process: they are often made after the recorder."""
        if self._handle is not None:
            return
        # Weakly: torch keeps the hook as long as the process lives, and through it would keep the model.
        weak = weakref.WeakMethod(self._after_step)

        def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:  # noqa: ARG001  torch's signature
            method = weak()
            if method is not None:
                method(optimizer)

        self._handle = register_optimizer_step_post_hook(after_step)

    def detach(self) -> None:
        """Stop listening."""
        if self._handle is not None:
            self._handle.remove()
            # Where the recorder is garbage with its model, the handle has lost sight of torch's dictionary already.
            _global_optimizer_post_hooks.pop(self._handle.id, None)
            self._handle = None

    def learning_rate(self, parameter: torch.Tensor) -> float | None:
        """Return the learning rate of a parameter; None where no optimizer that has stepped holds it."""
        for optimizer in list(self._ours):
            for group in optimizer.param_groups:
                if any(one is parameter for one in group["params"]):
                    return float(group["lr"])
        return None

    def _after_step(self, optimizer: Optimizer) -> None:
        try:
            is_ours = self._is_ours(optimizer)
        except Exception as error:  # noqa: BLE001
            self._fault(error)
            return
        self._stepped(optimizer, is_ours)

    def _is_ours(self, optimizer: Optimizer) -> bool:
        held = sum(len(group["params"]) for group in optimizer.param_groups)
        found = self._ours.get(optimizer)
        if found is None or found[0] != held:  # it may be given more parameters later
            ours = set(map(id, self._model.parameters()))
            is_ours = any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"])
            found = self._ours[optimizer] = (held, is_ours)
        return found[1]
