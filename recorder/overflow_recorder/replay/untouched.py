"""What a second run leaves as it was: random states, buffers, the modules' attributes, objects among the arguments."""

from __future__ import annotations

import collections
import copy
import operator
import sys
import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Iterator


_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CONTAINERS: Final = (list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict)
_PLAIN: Final = (torch.Tensor, nn.Module, torch.Generator, type, str, bytes, int, float, complex, bool, np.ndarray)
_DEPTH: Final = 6


class Refused(BaseException):
    """The second run could not be true or safe.

    It is no ``Exception``: a forward that catches those does not catch this.

    Args:
        reason: A sentence without a full stop.
        outward: Whether running the module around it again may still show the operation.
    """

    def __init__(self, reason: str, *, outward: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.outward = outward


@contextmanager
def modules_kept(module: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Run a module and those below it without anybody's hooks and on copies of their buffers; put all back afterwards.

    Yields the copies. The buffers themselves are never written, so that neither their bits nor their versions change.

    Raises:
        Refused: Hooks on all modules would see the second run.
    """
    of_all_modules = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    if not all(_is_ours(hook) for hooks in of_all_modules for hook in hooks.values()):
        raise Refused("a hook on all modules (register_module_forward_hook) would see the second run")
    ours = [(hooks, dict(hooks)) for hooks in of_all_modules]
    modules = list(module.modules())
    before = [
        (
            one,
            dict(vars(one)),
            [(value, copy.copy(value)) for value in vars(one).values() if type(value) in _CONTAINERS],
        )
        for one in modules
    ]
    copies: dict[int, torch.Tensor] = {}
    try:
        for hooks, _ in ours:
            hooks.clear()
        for one in modules:
            attributes = vars(one)
            attributes["_buffers"] = {name: _copied(buffer, copies) for name, buffer in one._buffers.items()}
            attributes.update({name: collections.OrderedDict() for name in _HOOKS if name in attributes})
        yield list(copies.values())
    finally:
        for hooks, listed in ours:
            hooks.update(listed)
        for one, attributes, contents in before:
            vars(one).clear()
            vars(one).update(attributes)
            for container, items in contents:
                _refill(container, items)


def _is_ours(hook: Any) -> bool:
    """Whether a hook is this package's: a function, a method or an object."""
    function = getattr(hook, "__func__", hook)
    name = getattr(function, "__module__", None) or type(hook).__module__
    return bool(name.startswith("overflow_recorder."))


def _copied(buffer: torch.Tensor | None, copies: dict[int, torch.Tensor]) -> torch.Tensor | None:
    """Return a buffer's copy; two modules that share a buffer share its copy."""
    if buffer is None:
        return None
    if id(buffer) not in copies:
        copies[id(buffer)] = buffer.detach().clone()
    return copies[id(buffer)]


def _refill(container: Any, items: Any) -> None:
    if len(container) == len(items) and all(map(operator.is_, _items(container), _items(items))):
        return
    container.clear()
    (container.update if isinstance(container, (dict, set)) else container.extend)(items)


def _items(container: Any) -> list[Any]:
    return [part for item in container.items() for part in item] if isinstance(container, dict) else list(container)


@contextmanager
def surroundings() -> Iterator[None]:
    """No gradients, no modes of others, no compiler, nothing kept in autocast's cache, no warnings a second time."""
    cache = torch.is_autocast_cache_enabled()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if "torch._dynamo" in sys.modules:  # else nothing here can be compiled
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.no_grad())
        # A cast made without gradients would stay in the cache and be used where gradients are wanted.
        torch.set_autocast_cache_enabled(False)
        stack.callback(torch.set_autocast_cache_enabled, cache)
        yield


def structural_copy(value: Any, depth: int = _DEPTH) -> Any:
    """Return a copy in which no container and no object is shared, but every tensor and module is."""
    if value is None or depth == 0 or isinstance(value, _PLAIN) or callable(value):
        return value
    if type(value) in (tuple, list, set):
        return type(value)(structural_copy(item, depth - 1) for item in value)
    if type(value) is dict:
        return {key: structural_copy(item, depth - 1) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(structural_copy(item, depth - 1) for item in value))
    try:
        copied = copy.copy(value)
        for name, item in vars(value).items() if hasattr(value, "__dict__") else ():
            vars(copied)[name] = structural_copy(item, depth - 1)
        for key, item in value.items() if isinstance(value, dict) else ():
            dict.__setitem__(copied, key, structural_copy(item, depth - 1))
    except Exception as error:  # noqa: BLE001  a class may refuse to be copied in any way
        raise Refused(
            f"a {type(value).__name__} among its arguments cannot be copied ({error})", outward=True
        ) from None
    return copied


def leaves_of(value: Any, depth: int = _DEPTH) -> list[int]:
    """Return the identities of the tensors in a value: whether a second run has put others there."""
    if isinstance(value, torch.Tensor):
        return [id(value)]
    if value is None or depth == 0 or isinstance(value, _PLAIN) or callable(value):
        return []
    items: list[Any] = list(value) if isinstance(value, (tuple, list)) else []
    if isinstance(value, dict):
        items += value.values()
    if hasattr(value, "__dict__"):
        items += vars(value).values()
    return [leaf for item in items for leaf in leaves_of(item, depth - 1)]


def generators_in(value: Any, depth: int = 3) -> list[torch.Generator]:
    """Return the user's own generators among arguments or attributes."""
    if isinstance(value, torch.Generator):
        return [value]
    if depth == 0:
        return []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [generator for item in items for generator in generators_in(item, depth - 1)]
