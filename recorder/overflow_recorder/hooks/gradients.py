"""Gradients and optimizer state, where their roles are recorded: by tensor hooks, which leave autograd's graph alone.

Full backward hooks would do it in fewer lines, but they put nodes into the graph and so change the order in which
gradients are summed: the run that is watched would not be the run that fails.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.parameter import is_lazy
from torch.utils.hooks import unserializable_hook

from overflow_analyzer.format.columns import ROLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from overflow_recorder.hooks.modules import HookedModule

    _TensorHook = Callable[[torch.Tensor], None]
    _Arrived = Callable[[str, str, int, str, torch.Tensor | None], None]

# Inside it, reading an attribute of a tensor's subclass runs none of that class's code.
_own_attributes: Final = torch._C.DisableTorchFunctionSubclass
_GRAD_INPUT, _GRAD_OUTPUT, _WEIGHT_GRAD = (ROLES.index(role) for role in ("grad_input", "grad_output", "weight_grad"))


class _LeafHooks:
    """Hooks on tensors that outlive a batch: each is put on once, and all are removed at the end."""

    def __init__(self) -> None:
        self._hooks: dict[tuple[object, ...], tuple[weakref.ref[torch.Tensor], RemovableHandle]] = {}

    def add(
        self, tensor: torch.Tensor, key: tuple[object, ...], register: Callable[[torch.Tensor], RemovableHandle]
    ) -> None:
        """Put a hook on a tensor unless it has it.

        Args:
            tensor: A leaf.
            key: Tells its hooks apart.
            register: Puts the hook on.
        """
        key = (id(tensor), *key)
        found = self._hooks.get(key)
        # The weak reference guards against an id that was used again after its tensor died.
        if found is None or found[0]() is not tensor:
            self._hooks[key] = (weakref.ref(tensor), register(tensor))

    def remove(self) -> None:
        """Remove them all."""
        for _, handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()

    def forget_dead(self) -> None:
        """Keep no record of tensors that are gone."""
        self._hooks = {key: found for key, found in self._hooks.items() if found[0]() is not None}


class Gradients:
    """Hooks on tensors that a backward will reach.

    Args:
        model: Whose parameters.
        roles: The recorder's; what is not among them costs nothing.
        arrived: Called with module name, module class, role, context and gradient.
    """

    def __init__(self, model: nn.Module, roles: Sequence[str], arrived: _Arrived) -> None:
        self._model = model
        self._arrived = arrived
        self.of_inputs, self.of_outputs = "grad_input" in roles, "grad_output" in roles
        """Whether the gradients of what modules are given, and of what they return, are recorded."""
        self._weights, self._optimizer = "weight_grad" in roles, "optimizer_state" in roles
        self._leaves = _LeafHooks()

    def attach(self) -> None:
        """Put a hook on each parameter that will have a gradient and has none of ours; called where a batch begins."""
        self._leaves.forget_dead()
        if not self._weights:
            return
        for module_name, module, name, parameter in _owned_parameters(self._model):
            if parameter.requires_grad and parameter.is_leaf and not is_lazy(parameter):
                hook = self._after_accumulation(module_name, type(module).__name__, name)
                self._leaves.add(parameter, ("accumulated",), _registering("register_post_accumulate_grad_hook", hook))

    def detach(self) -> None:
        """Remove the hooks on leaves; those on activations go with the graph and do nothing by then."""
        self._leaves.remove()

    def await_inputs(self, hooked: HookedModule, named: Iterable[tuple[str, Any]]) -> None:
        """Await the gradients of what a module is given: of the whole tensor, all its uses summed."""
        self._await(hooked, _GRAD_INPUT, named)

    def await_outputs(self, hooked: HookedModule, named: Iterable[tuple[str, Any]]) -> None:
        """Await the gradients of what a module has returned."""
        self._await(hooked, _GRAD_OUTPUT, named)

    def states_of(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, str, list[tuple[str, Any]]]]:
        """Yield (module name, module class, named state) of each of the model's parameters, where that is recorded."""
        if not self._optimizer:
            return
        for module_name, module, name, parameter in _owned_parameters(self._model):
            state = optimizer.state.get(parameter)
            if state:
                yield module_name, type(module).__name__, [(f"{name}.{key}", value) for key, value in state.items()]

    def _await(self, hooked: HookedModule, role: int, named: Iterable[tuple[str, Any]]) -> None:
        with _own_attributes():
            for context, value in named:
                if issubclass(type(value), torch.Tensor) and value.requires_grad:
                    arrived = functools.partial(self._arrived, hooked.name, hooked.class_name, role, f"grad_{context}")
                    register = _registering("register_hook", arrived)
                    if value.is_leaf:
                        self._leaves.add(value, (hooked.name, role, context), register)
                    else:
                        register(value)

    def _after_accumulation(self, module_name: str, module_class: str, name: str) -> _TensorHook:
        def hook(parameter: torch.Tensor) -> None:
            self._arrived(module_name, module_class, _WEIGHT_GRAD, name, parameter.grad)

        return hook


def largest_gradient(parameter: torch.Tensor) -> float | None:
    """Return the largest magnitude of a parameter's gradient; None where it has none, or one that was set to 0."""
    with torch.no_grad(), _own_attributes():
        gradient = parameter.grad
        return None if gradient is None or not gradient.numel() else float(gradient.abs().max()) or None


def call_at_backward(named: Iterable[tuple[str, Any]], begins: Callable[[], None]) -> None:
    """Call ``begins`` when a backward reaches any of the tensors among these values, which a forward has returned."""

    def hook(gradients: tuple[torch.Tensor, ...]) -> None:  # noqa: ARG001  only when it comes matters
        begins()

    with _own_attributes():
        for _, value in named:
            # On the node, not on the tensor: that may be saved or sent elsewhere, and nobody finds a hook on it.
            if issubclass(type(value), torch.Tensor) and value.grad_fn is not None:
                value.grad_fn.register_prehook(hook)


def _registering(method: str, hook: _TensorHook) -> Callable[[torch.Tensor], RemovableHandle]:
    # Otherwise torch would warn when the tensor is saved: as it should, of a hook that means something to the user.
    hook = unserializable_hook(hook)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return lambda tensor: getattr(tensor, method)(hook)


def _owned_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Yield (module name, module, parameter name, parameter), a shared parameter once."""
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield module_name, module, name, parameter
