"""Finding the model in a running script: the outermost module called that has trainable parameters, or a named one."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_forward_pre_hook

from overflow_recorder.faults import describe_error, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from torch.utils.hooks import RemovableHandle


_MOST_NOTED: Final = 8


class ModelFinder:
    """Watches the calls of all modules: until the model is known, and from then on for other models.

    Args:
        name: A class, or a variable of the script such as ``trainer.model``, also one of a function that is running;
            None for the outermost module called that has trainable parameters.
        found: Called once with the model and the module called, which is the model or in it, before that call's
            forward. Hooks that it puts on the module called are run in this call too.
        other: Called with the label of each other outermost module called that has trainable parameters of its own,
            as soon as the model is known.
        missing: Called once, as soon as such a module is called again while none that has the name was called.
    """

    def __init__(
        self,
        name: str | None,
        found: Callable[[nn.Module, nn.Module], None],
        other: Callable[[str], None],
        missing: Callable[[], None],
    ) -> None:
        self._name = name
        self._found = found
        self._other = other
        self._missing: Callable[[], None] | None = missing
        self._model: nn.Module | None = None
        self._called: nn.Module | None = None
        self._known: dict[int, weakref.ref[nn.Module]] = {}
        self._outermost: list[tuple[weakref.ref[nn.Module], str]] = []
        self._missed: list[Callable[..., None]] = []
        self._handles: list[RemovableHandle] = []

    @property
    def has_found(self) -> bool:
        """Whether the model is known."""
        return self._model is not None

    @property
    def called(self) -> list[str]:
        """Labels of the outermost modules called before the model was known; not all if there are many."""
        return list(dict.fromkeys(one for _, one in self._outermost))

    def arm(self) -> None:
        """Begin to watch."""
        # torch.compile's wrapper warns of any hook for all modules. Ours does nothing when it runs twice.
        warnings.filterwarnings("ignore", message="Using `torch.compile.module.` when there are global hooks")
        # In this order: both are called for one call of a module, the second with what the first has found.
        self._handles = list(map(register_module_forward_pre_hook, (self._watch, self._catch_up)))

    def disarm(self) -> None:
        """Watch no longer; twice does no harm."""
        while self._handles:
            self._handles.pop().remove()

    def _watch(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        # Inside a compiled region Python does not run: traced to nothing, this hook leaves the graph as it is.
        if is_compiling():
            return
        known = self._known.get(id(module))
        is_known = known is not None and known() is module  # another module may have got a dead one's id
        if is_known and (self._name is None or self._model is not None):
            return
        try:
            if not _is_traced():
                self._look_at(module, is_known=is_known)
        except Exception as error:  # noqa: BLE001  training goes on
            self.disarm()
            if self._model is None or self._called is not None:
                warn(f"the model could not be found ({describe_error(error)}); training goes on, nothing is recorded")
            else:
                warn(f"other models are not named ({describe_error(error)}); training and recording go on")

    def _look_at(self, module: nn.Module, *, is_known: bool) -> None:
        model = self._choose(module) if self._model is None else None
        if model is not None:
            self._take(model, module)
        elif not is_known:
            self._remember(module)
            if self._model is not None:
                if self._has_parameters_of_its_own(module):
                    self._other(label(module))
            elif len(self._outermost) < _MOST_NOTED:
                self._outermost.append((weakref.ref(module), label(module)))
        elif self._missing and any(one() is module for one, _ in self._outermost) and _is_trainable(module):
            missing, self._missing = self._missing, None
            missing()

    def _choose(self, module: nn.Module) -> nn.Module | None:
        if self._name is None:
            return module if _is_trainable(module) else None
        kind = type(module)
        if self._name in (kind.__name__, kind.__qualname__, f"{kind.__module__}.{kind.__qualname__}"):
            return module
        return next((named for named in _named(self._name) if any(one is module for one in named.modules())), None)

    def _remember(self, module: nn.Module) -> None:
        # Of a module that was looked at, the modules in it are no others.
        for one in module.modules():
            self._known[id(one)] = weakref.ref(one, functools.partial(self._known.pop, id(one)))

    def _has_parameters_of_its_own(self, module: nn.Module) -> bool:
        recorded = set() if self._model is None else set(map(id, self._model.parameters()))
        return any(one.requires_grad and id(one) not in recorded for one in module.parameters())

    def _take(self, model: nn.Module, called: nn.Module) -> None:
        self._model, self._called = model, called
        self._remember(model)
        before = set(called._forward_pre_hooks)
        self._found(model, called)
        self._missed = [hook for number, hook in called._forward_pre_hooks.items() if number not in before]
        if self._missed and self._handles:
            # torch has already listed the hooks of this call, and gives a hook for all modules no keywords. It looks
            # the hook's number up in the module just before the hook's turn; without the entry, _catch_up is called
            # without keywords and leaves it at that: then inputs are measured after the forward instead of before.
            called._forward_pre_hooks_with_kwargs[self._handles[1].id] = True
        for reference, named in self._outermost:
            module = reference()
            if module is not None and self._has_parameters_of_its_own(module):
                self._other(named)

    def _catch_up(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        if is_compiling() or module is not self._called or not self._handles:
            return
        handle, hooks, self._called, self._missed = self._handles.pop(), self._missed, None, []
        handle.remove()
        module._forward_pre_hooks_with_kwargs.pop(handle.id, None)
        if kwargs is not None:
            for hook in hooks:
                hook(module, args, kwargs)


def label(module: nn.Module) -> str:
    """Return a module's class and, where the script has it in a variable, how ``--model`` can name it."""
    name = type(module).__name__
    with contextlib.suppress(Exception):  # names of any script: whatever they are, this is a label
        found = _path_of(module)
        return name if found is None else f"{name} ({found})"
    return name


def _is_trainable(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _is_traced() -> bool:
    """Whether modules are called with stand-ins, to make a graph of them."""
    symbolic: Any = sys.modules.get("torch.fx._symbolic_trace")
    is_symbolic = getattr(symbolic, "is_fx_symbolic_tracing", None)
    return torch._C._get_tracing_state() is not None or (is_symbolic is not None and bool(is_symbolic()))


def _named(path: str) -> Iterator[nn.Module]:
    """The modules that the script's variables call so."""
    first, *rest = path.removeprefix("__main__.").split(".")
    for variables in _variables():
        value: Any = variables.get(first)
        for name in rest:
            value = getattr(value, name, None)
        if isinstance(value, nn.Module):
            yield value


def _path_of(module: nn.Module) -> str | None:
    for variables in _variables():
        named = [(name, one) for name, one in variables.items() if isinstance(one, nn.Module) and name != "self"]
        for name, value in named:
            if value is module:
                return name
        for name, value in named:
            for inner, one in value.named_modules():
                if one is module:
                    return f"{name}.{inner}"
    return None


def _variables() -> Iterator[Mapping[str, Any]]:
    """The script's own variables, and those of its functions that are running, from the inside out."""
    script = vars(sys.modules["__main__"])
    yield script
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_globals is script and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            variables = dict(frame.f_locals)
            if sys.version_info < (3, 13):
                frame.f_locals.clear()  # a copy that the frame would keep, and with it every tensor in it
            yield variables
        frame = frame.f_back
