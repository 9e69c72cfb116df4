"""Finding the model in a running script: the outermost module called that has trainable parameters, or a named one."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_forward_pre_hook

from overflow_recorder.faults import describe_error, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.utils.hooks import RemovableHandle


_MOST_NOTED: Final = 8


class ModelFinder:
    """Watches the calls of all modules until the model is known, and until its next call which others there are.

    Args:
        name: A class, or an attribute of the script such as ``trainer.model``; None for the outermost module called
            that has trainable parameters.
        found: Called once with the model and the module called, which is the model or in it, before that call's
            forward. Hooks that it puts on the module called are run in this call too.
        settled: Called once when the model is called again, with the labels of other trainable modules called.
    """

    def __init__(
        self,
        name: str | None,
        found: Callable[[nn.Module, nn.Module], None],
        settled: Callable[[list[str]], None],
    ) -> None:
        self._name = name
        self._found = found
        self._settled = settled
        self._called: nn.Module | None = None
        self._known: set[int] = set()
        self._missed: list[Callable[..., None]] = []
        self._handles: list[RemovableHandle] = []
        self._catch_up_number = -1
        self.others: list[str] = []
        """Labels of outermost modules called that were not chosen; with a model found, the trainable ones alone."""

    @property
    def has_found(self) -> bool:
        """Whether the model is known."""
        return self._called is not None

    @property
    def is_armed(self) -> bool:
        """Whether calls are watched."""
        return bool(self._handles)

    def arm(self) -> None:
        """Begin to watch."""
        # torch.compile's wrapper warns of any hook for all modules. Ours is gone before it could run twice.
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        # In this order: both are called for one call of a module, the second with what the first has found.
        self._handles = list(map(register_module_forward_pre_hook, (self._watch, self._catch_up)))
        self._catch_up_number = self._handles[1].id

    def disarm(self) -> None:
        """Watch no longer; twice does no harm."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        # Inside a compiled region Python does not run: traced to nothing, this hook leaves the graph as it is.
        if is_compiling():
            return
        try:
            self._look_at(module)
        except Exception as error:  # noqa: BLE001  training goes on
            self.disarm()
            warn(f"the model could not be found ({describe_error(error)}); training goes on, nothing is recorded")

    def _look_at(self, module: nn.Module) -> None:
        if self._called is None:
            model = None if _is_traced() else self._choose(module)
            if model is None:
                self._note(module)
            else:
                self._take(model, module)
        elif module is self._called:
            self.disarm()
            self._settled(self.others)
        elif _is_trainable(module):
            self._note(module)

    def _choose(self, module: nn.Module) -> nn.Module | None:
        if self._name is None:
            return module if _is_trainable(module) else None
        kind = type(module)
        if self._name in (kind.__name__, kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}"):
            return module
        named = _attribute_of_main(self._name)
        return named if named is not None and any(one is module for one in named.modules()) else None

    def _note(self, module: nn.Module) -> None:
        # Of a module that was noted, the modules in it are no others.
        if id(module) not in self._known and len(self.others) < _MOST_NOTED:
            self._known.update(map(id, module.modules()))
            self.others.append(label(module))

    def _take(self, model: nn.Module, called: nn.Module) -> None:
        self._called = called
        self._known = set(map(id, model.modules()))
        self.others = []
        before = set(called._forward_pre_hooks)
        self._found(model, called)
        self._missed = [hook for number, hook in called._forward_pre_hooks.items() if number not in before]
        if self._missed:
            # torch has already listed the hooks of this call, and gives a hook for all modules no keywords. It looks
            # the hook's number up in the module just before the hook's turn; without the entry, _catch_up is called
            # without keywords and leaves it at that: then inputs are measured after the forward instead of before.
            called._forward_pre_hooks_with_kwargs[self._catch_up_number] = True

    def _catch_up(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        if is_compiling() or not self._missed or module is not self._called:
            return
        hooks, self._missed = self._missed, []
        module._forward_pre_hooks_with_kwargs.pop(self._catch_up_number, None)
        if kwargs is not None:
            for hook in hooks:
                hook(module, args, kwargs)


def label(module: nn.Module) -> str:
    """Return a module's class and, where the script has it in a variable, how ``--model`` can name it."""
    name = type(module).__name__
    with contextlib.suppress(Exception):  # names of any script: whatever they are, this is a label
        found = _path_in_main(module)
        return name if found is None else f"{name} ({found})"
    return name


def _is_trainable(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _is_traced() -> bool:
    """Whether modules are called with stand-ins, to make a graph of them."""
    symbolic: Any = sys.modules.get("torch.fx._symbolic_trace")
    is_symbolic = getattr(symbolic, "is_fx_symbolic_tracing", None)
    return torch._C._get_tracing_state() is not None or (is_symbolic is not None and bool(is_symbolic()))


def _attribute_of_main(path: str) -> nn.Module | None:
    value: Any = sys.modules["__main__"]
    for name in path.removeprefix("__main__.").split("."):
        value = getattr(value, name, None)
    return value if isinstance(value, nn.Module) else None


def _path_in_main(module: nn.Module) -> str | None:
    variables = {name: value for name, value in vars(sys.modules["__main__"]).items() if isinstance(value, nn.Module)}
    for name, value in variables.items():
        if value is module:
            return name
    for name, value in variables.items():
        for inner, one in value.named_modules():
            if one is module:
                return f"{name}.{inner}"
    return None
