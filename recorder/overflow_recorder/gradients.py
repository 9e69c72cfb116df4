"""Gradients and optimizer state, where asked for: by tensor hooks, which leave autograd's graph alone.

Full backward hooks would do it in fewer lines, but they put nodes into the graph and so change the order in which
gradients are summed: the run that is watched would not be the run that fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from overflow_analyzer.schema import PHASES, ROLES
from overflow_recorder.loss_scale import LossScale
from overflow_recorder.values import walk, walk_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from overflow_recorder.batches import Batch
    from overflow_recorder.hooks import HookedModule
    from overflow_recorder.session import Session

__all__ = ["Gradients"]

_BACKWARD: Final = PHASES.index("backward")
_GRAD_INPUT, _GRAD_OUTPUT, _WEIGHT_GRAD, _OPTIMIZER_STATE, _VALUE = (
    ROLES.index(role) for role in ("grad_input", "grad_output", "weight_grad", "optimizer_state", "value")
)


class Gradients:
    """Hooks on tensors that a backward will reach.

    Args:
        model: Whose parameters.
        roles: The recorder's; what is not among them costs nothing.
        session: Whom to tell.
    """

    def __init__(self, model: nn.Module, roles: Sequence[str], session: Session) -> None:
        self._model = model
        self._session = session
        self._inputs, self._outputs = "grad_input" in roles, "grad_output" in roles
        self._weights, self._optimizer = "weight_grad" in roles, "optimizer_state" in roles
        self._wanted = self._inputs or self._outputs or self._weights
        self._handles: list[RemovableHandle] = []
        self._loss_scale = LossScale()
        self._scaled_batch: Batch | None = None

    def attach(self) -> None:
        """Put a hook on each parameter that will have a gradient."""
        if not self._weights:
            return
        for module_name, module, name, parameter in _owned_parameters(self._model):
            if parameter.requires_grad and parameter.is_leaf:
                hook = self._after_accumulation(module_name, type(module).__name__, name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]

    def detach(self) -> None:
        """Remove the hooks on parameters; those on activations go with the graph and do nothing by then."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def of_inputs(self, hooked: HookedModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Await the gradients of what a module is given: of the whole tensor, all its uses summed."""
        if self._inputs:
            self._await(hooked, _GRAD_INPUT, walk_inputs(args, kwargs))

    def of_outputs(self, hooked: HookedModule, output: Any) -> None:
        """Await the gradients of what a module has returned."""
        if self._outputs:
            self._await(hooked, _GRAD_OUTPUT, walk(output, "output"))

    def of_batch(self, output: Any, batch: Batch) -> None:
        """Learn when the backward of a batch begins: recomputed frames and gradients belong to that batch."""
        if not torch.is_grad_enabled():
            return
        for _, value in walk(output, "output"):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.register_hook(self._backward_of(batch))  # type: ignore[no-untyped-call]

    def of_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the state of an optimizer after its step, a frame a parameter."""
        if not self._optimizer:
            return
        for module_name, module, name, parameter in _owned_parameters(self._model):
            state = optimizer.state.get(parameter)
            if state:
                named = [(f"{name}.{key}", value) for key, value in state.items()]
                self._session.values(module_name, type(module).__name__, _OPTIMIZER_STATE, _BACKWARD, named)

    def _await(self, hooked: HookedModule, role: int, values: Iterable[tuple[str, Any]]) -> None:
        for context, value in values:
            if isinstance(value, torch.Tensor) and value.requires_grad:
                hook = self._arrived(hooked.name, hooked.class_name, role, f"grad_{context}")
                value.register_hook(hook)  # type: ignore[no-untyped-call]

    def _arrived(self, module_name: str, module_class: str, role: int, context: str) -> Callable[[torch.Tensor], None]:
        def hook(gradient: torch.Tensor) -> None:
            self._record(module_name, module_class, role, context, gradient)

        return hook

    def _after_accumulation(self, module_name: str, module_class: str, name: str) -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            self._record(module_name, module_class, _WEIGHT_GRAD, name, parameter.grad)

        return hook

    def _backward_of(self, batch: Batch) -> Callable[[torch.Tensor], None]:
        session = self._session

        def hook(gradient: torch.Tensor) -> None:  # noqa: ARG001  only when it comes matters
            session.backward_starts(batch)

        return hook

    def _record(
        self, module_name: str, module_class: str, role: int, context: str, gradient: torch.Tensor | None
    ) -> None:
        batch = self._session.batch_now()
        if batch is not self._scaled_batch:
            self._scaled_batch = batch
            scale = self._loss_scale.current()
            if scale is not None:
                self._session.values("", "GradScaler", _VALUE, _BACKWARD, [("loss_scale", scale)])
        self._session.values(module_name, module_class, role, _BACKWARD, [(context, gradient)])


def _owned_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Yield (module name, module, parameter name, parameter), a shared parameter once."""
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                yield module_name, module, name, parameter
