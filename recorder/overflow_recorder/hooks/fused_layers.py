"""``nn.TransformerEncoderLayer`` in evaluation: one fused kernel, which it uses only where no module in it has a hook.

A hook would send it down the other path, whose results differ in the last bits and, with padding, in more than these.
So for such a call our hooks step aside, and the layer is one frame: the modules in it do not run.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.utils.hooks import RemovableHandle


_Hooks = dict[int, Any]


class FusedLayers:
    """Takes our hooks away from a layer for one call, and puts them back before anybody can miss them.

    Args:
        is_ours: Whether a hook is one of ours. Where anybody else's is in the layer, it does not fuse anyway.
    """

    def __init__(self, is_ours: Callable[[Any], bool]) -> None:
        self._is_ours = is_ours
        self._left_over: list[RemovableHandle] = []
        self._attached = False

    def step_aside(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], after: Callable[..., None]
    ) -> bool:
        """Hide our hooks if this call may be fused; called by the layer's own hook before its forward.

        Args:
            layer: The layer.
            args: What its forward is given.
            kwargs: The same.
            after: Our hook behind its forward, which torch will not find.

        Returns:
            Whether they are hidden.
        """
        self.tidy()
        hidden = self._hide(layer) if _may_fuse(layer, args, kwargs) else []
        if not hidden:
            return False
        mine = weakref.ref(layer)
        state = [hidden]

        # A hook for all modules is none on the layer: torch does not count it when it looks for the fused path, and
        # calls it behind the forward all the same. It is there for this one call.
        def back(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
            if module is not mine() or not state:
                return
            restored = state.pop()
            if self._attached:
                for hooks, number, hook in restored:  # the order among hooks stays: there were none but ours
                    hooks[number] = hook
            # Where the forward raised, torch gives no keywords, is still iterating over the hooks for all modules, and
            # calls the restored hook next: nothing may be removed, and nothing is recorded here.
            if len(rest) > 1:
                handle.remove()
                after(module, args, *rest)
            else:
                self._left_over.append(handle)

        handle = register_module_forward_hook(back, with_kwargs=True, always_call=True)
        return True

    def tidy(self) -> None:
        """Remove hooks for all modules whose call ended in an exception."""
        while self._left_over:
            self._left_over.pop().remove()

    def attach(self) -> None:
        """Restore hooks from now on."""
        self._attached = True

    def detach(self) -> None:
        """Restore no hook any more."""
        self._attached = False
        self.tidy()

    def _hide(self, layer: nn.Module) -> list[tuple[_Hooks, int, Any]]:
        found = [
            (hooks, number, hook)
            for module in layer.modules()
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
            for number, hook in hooks.items()
        ]
        if not all(self._is_ours(hook) for _, _, hook in found):
            return []
        for hooks, number, _ in found:
            del hooks[number]
        return found


def _may_fuse(layer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the layer might run its fused kernel, were it without hooks: False only where it certainly does not."""
    source = args[0] if args else kwargs.get("src")
    attention = layer.self_attn
    if layer.training or not attention.batch_first or attention.num_heads % 2 or not isinstance(source, torch.Tensor):
        return False
    if not layer.activation_relu_or_gelu or attention.in_proj_bias is None or source.dim() != 3:  # noqa: PLR2004  batch, sequence, features
        return False
    needs_grad = source.requires_grad or any(parameter.requires_grad for parameter in layer.parameters())
    return not (needs_grad and torch.is_grad_enabled())
