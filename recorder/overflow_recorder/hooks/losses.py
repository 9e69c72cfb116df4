"""Noticing the losses: the tensors on which a backward starts."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.amp.grad_scaler import GradScaler
from torch.compiler import is_compiling

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


class Losses:
    """Calls back before a backward starts on a loss.

    A tensor whose gradient is given is no loss: a pipeline's stage goes on with the next one's gradient. With a
    ``GradScaler`` the loss is what is given to ``scale``. An inf that the scale makes is not one of the loss, and the
    scaler deals with it.

    Args:
        arrived: Called with the losses. What it raises ends the training.
    """

    def __init__(self, arrived: Callable[[list[torch.Tensor]], None]) -> None:
        self._arrived = arrived
        self._scaled: dict[int, weakref.ref[torch.Tensor]] = {}

    def attach(self) -> None:
        """Listen to every backward and every scaler of the process."""
        _listening.add(self)
        for wrapper in _WRAPPERS:
            wrapper.put_on()

    def detach(self) -> None:
        """Stop listening."""
        _listening.discard(self)
        if not _listening:
            for wrapper in _WRAPPERS:
                wrapper.take_off()

    def backward_starts(self, tensors: Any, grad_tensors: Any = None, *_: Any, **__: Any) -> None:
        """A backward is about to start; the arguments are those of ``torch.autograd.backward``."""
        losses = [] if grad_tensors is not None else [one for one in _tensors(tensors) if not self._is_scaled(one)]
        if losses:
            self._arrived(losses)

    def scales(self, losses: Any, scaled: Any) -> None:
        """A ``GradScaler`` has scaled losses."""
        self._scaled = {key: found for key, found in self._scaled.items() if found() is not None}
        self._scaled |= {id(one): weakref.ref(one) for one in _tensors(scaled)}
        self._arrived(_tensors(losses))

    def _is_scaled(self, loss: torch.Tensor) -> bool:
        found = self._scaled.get(id(loss))
        # The weak reference guards against an id that was used again after its tensor died.
        return found is not None and found() is loss


def reaches(losses: list[torch.Tensor], model: nn.Module) -> bool:
    """Whether a backward from these losses comes to a parameter of a model; True where that cannot be seen.

    It walks the whole graph, so it is for a loss that is known to be non-finite.
    """
    parameters = {id(parameter) for parameter in model.parameters()}
    waiting: list[Any] = [loss.grad_fn for loss in losses]
    seen: set[object] = set()
    sees_others = False
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        # A sharded model's parameters are views of tensors of other classes, which nobody lists.
        if leaf is not None and (id(leaf) in parameters or type(leaf) not in {torch.Tensor, torch.nn.Parameter}):
            return True
        sees_others |= leaf is not None
        waiting += [following for following, _ in node.next_functions]
    return not sees_others


def _tensors(values: Any) -> list[torch.Tensor]:
    several = values if isinstance(values, (list, tuple)) else [values]  # anything else might be used up by looking
    return [one for one in several if isinstance(one, torch.Tensor)]


class _Wrapper:
    """Stands in torch under the name of one of its functions: there is no hook for a backward that starts.

    A hook on a tensor comes only once the backward has begun.
    """

    def __init__(self, owner: Any, name: str, notice: Callable[..., Any]) -> None:
        self._owner, self._name, self._notice = owner, name, notice
        self._original: Any = None
        self._ours: Any = None

    def put_on(self) -> None:
        """Stand there, once."""
        if self._ours is not None:
            return
        original, notice = getattr(self._owner, self._name), self._notice

        @functools.wraps(original)
        def listening(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if is_compiling() else notice(original, *args, **kwargs)

        self._original, self._ours = original, listening
        setattr(self._owner, self._name, listening)

    def take_off(self) -> None:
        """Go, unless somebody has put another wrapper around: then it stays inside that one and tells nobody."""
        if self._ours is not None and getattr(self._owner, self._name) is self._ours:
            setattr(self._owner, self._name, self._original)
            self._ours = None


def _backward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    for one in list(_listening):
        one.backward_starts(*args, **kwargs)
    return original(*args, **kwargs)


def _scale(original: Callable[..., Any], scaler: GradScaler, outputs: Any) -> Any:
    scaled = original(scaler, outputs)
    for one in list(_listening):
        one.scales(outputs, scaled)
    return scaled


_listening: Final[weakref.WeakSet[Losses]] = weakref.WeakSet()
_WRAPPERS: Final = (_Wrapper(torch.autograd, "backward", _backward), _Wrapper(GradScaler, "scale", _scale))
