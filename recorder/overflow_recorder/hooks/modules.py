"""Attaching to modules and letting go of them. Nothing else touches torch's hooks of modules."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from torch import nn
from torch._C import _is_tracing
from torch.compiler import is_compiling

from overflow_recorder.faults import warn
from overflow_recorder.hooks.fused_layers import FusedLayers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.utils.hooks import RemovableHandle


# What a copied or pickled model has in place of a hook: a callable that does nothing and that every Python can load,
# whether or not it has this package.
_INERT: Final = functools.partial(sys.audit, "overflow_trace.hook_of_a_copied_model")
_CALL: Final = nn.Module._call_impl.__code__


class HookedModule:
    """A module's name and class, bound when the hook is attached: a replica shares the hook, and so the name."""

    __slots__ = ("class_name", "is_root", "name", "parameter_names", "ran")

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name.encode("utf-8", "backslashreplace").decode()  # a lone surrogate is no text in a trace
        self.class_name = type(module).__name__
        self.is_root = name == ""
        self.parameter_names = tuple(key for key, value in module._parameters.items() if value is not None)
        self.ran = False
        """Whether a hook behind a forward of a module of this name has been called."""


class ForwardListener(Protocol):
    """What the hooks of modules call."""

    def before_forward(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """A module is about to run."""

    def after_forward(
        self, hooked: HookedModule, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """A module's forward has returned, or raised."""

    def forward_is_traced(self) -> None:
        """``torch.jit.trace`` makes a graph of a forward, which is not recorded."""

    def fault(self, error: Exception) -> None:
        """A hook has failed by its own fault; called while the exception is handled."""


class _Hook:
    __slots__ = ("hooked", "listener")

    def __init__(self, listener: ForwardListener, hooked: HookedModule) -> None:
        self.listener = listener
        self.hooked = hooked

    def __reduce__(self) -> tuple[Any, ...]:
        return _INERT.__reduce__()  # type: ignore[return-value]  # partial's is declared as for any object

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _INERT

    @property
    def __name__(self) -> str:
        # What torch.jit.script asks of every hook, which it would compile.
        raise AttributeError("a recorded model cannot be scripted: close the recorder before torch.jit.script")


class _BeforeForward(_Hook):
    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # In a compiled region this is traced to nothing: measuring there would change what the compiler fuses, and so
        # the numbers. The graph, its breaks and its guards stay as they are without a recorder.
        if is_compiling():
            return
        if _is_tracing():  # what measured here would become a part of torch.jit's graph
            self.listener.forward_is_traced()
            return
        self.listener.before_forward(self.hooked, module, args, kwargs)


class _AfterForward(_Hook):
    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        if is_compiling() or _is_tracing():
            return
        self.hooked.ran = True
        self.listener.after_forward(self.hooked, module, args, kwargs, output)


class _BeforeEncoderLayer(_BeforeForward):
    __slots__ = ("after", "hooks")

    def __init__(self, hooks: ModuleHooks, listener: ForwardListener, after: _AfterForward) -> None:
        super().__init__(listener, after.hooked)
        self.hooks = hooks
        self.after = after

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__call__(module, args, kwargs)
        if not is_compiling():
            self.hooks.step_aside(module, args, kwargs, self.after)


class ModuleHooks:
    """The hooks on one model: attached together or not at all, and removed by whoever attached them.

    Args:
        model: The root.
        listener: What the hooks call.
    """

    def __init__(self, model: nn.Module, listener: ForwardListener) -> None:
        self._model = model
        self._listener = listener
        self._handles: list[RemovableHandle] = []
        self._structure: list[Callable[[], nn.Module | None]] = []
        self._parents: list[weakref.ref[nn.Module]] = []
        self._fused = FusedLayers(lambda hook: isinstance(hook, _Hook))
        self.hooked: dict[str, HookedModule] = {}
        """By name, what has a hook or had one."""
        self.scripted: set[str] = set()
        """Names of the outermost ScriptModules."""
        self.fused: set[str] = set()
        """Names of the encoder layers that ran, or may have run, as one fused kernel."""

    @property
    def is_attached(self) -> bool:
        """Whether any hook is on the model."""
        return bool(self._handles)

    def attach(self) -> None:
        """Attach to every module that has no hook of ours yet; if one refuses, none keeps a hook."""
        self._fused.attach()
        self.scripted.clear()
        try:
            self.attach_new()
        except BaseException:
            self.detach()
            raise

    def attach_new(self) -> bool:
        """Attach to modules that were added since; called where a batch begins.

        Returns:
            Whether the model has changed since the last call.
        """
        self._fused.tidy()
        if self._handles and self._is_unchanged():
            return False
        modules = list(self._model.named_modules())
        self._parents = [weakref.ref(module) for _, module in modules if module._modules]
        self._structure = [(lambda: None) if child is None else weakref.ref(child) for child in self._children()]
        for name, module in modules:
            # A ScriptModule runs without Python, and so do the modules inside it.
            in_script = any(is_inside(name, outer) for outer in self.scripted)
            if not in_script and not self._has_ours(module):
                self._attach_one(HookedModule(name, module), module)
        return True

    def _children(self) -> Iterator[nn.Module | None]:
        for parent in self._parents:
            module = parent()
            if module is not None:
                yield from module._modules.values()

    def _is_unchanged(self) -> bool:
        # By identity, through weak references: a new module may have a dead one's address.
        children = list(self._children())
        return len(children) == len(self._structure) and all(
            reference() is child for reference, child in zip(self._structure, children, strict=True)
        )

    def _has_ours(self, module: nn.Module) -> bool:
        hooks = module._forward_hooks.values()
        return any(type(hook) is _AfterForward and hook.listener is self._listener for hook in hooks)

    def _attach_one(self, hooked: HookedModule, module: nn.Module) -> None:
        hooked.ran = hooked.name in self.hooked and self.hooked[hooked.name].ran
        if isinstance(module, torch.jit.ScriptModule):
            self.scripted.add(hooked.name)
        after = _AfterForward(self._listener, hooked)
        before = _BeforeForward(self._listener, hooked)
        if isinstance(module, nn.TransformerEncoderLayer):
            before = _BeforeEncoderLayer(self, self._listener, after)
        try:
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            # always_call: a forward that raises has left its module too, or later frames would be taken for its child.
            self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
        except RuntimeError:
            if hooked.name not in self.scripted:
                raise
            _warn_of_script(hooked, "it is not recorded, nor are")
            return
        self.hooked[hooked.name] = hooked
        if hooked.name in self.scripted:
            _warn_of_script(hooked, "it is recorded from outside, but not")

    def step_aside(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], after: _AfterForward
    ) -> None:
        """An encoder layer is about to run: where it may run as one fused kernel, no hook of ours keeps it from it."""
        try:
            if self._fused.step_aside(layer, args, kwargs, after):
                self.fused.add(after.hooked.name)
        except Exception as error:  # noqa: BLE001  training goes on
            self._listener.fault(error)

    def detach(self) -> None:
        """Remove every hook; once is enough, twice does no harm."""
        self._fused.detach()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def is_inside(name: str, outer: str) -> bool:
    """Whether a module's name is another one's, or of a module inside that."""
    return not outer or name == outer or name.startswith(f"{outer}.")


def _warn_of_script(hooked: HookedModule, outcome: str) -> None:
    name = f"module {hooked.name!r}" if hooked.name else "the model"
    warn(f"{name} is a ScriptModule ({hooked.class_name}), which runs without Python: {outcome} the modules inside it")


def modules_under_way() -> Iterator[nn.Module]:
    """Yield the modules whose calls are under way in this thread, from the inside out."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is _CALL:
            yield frame.f_locals["self"]
        frame = frame.f_back  # type: ignore[assignment]  # None at the end, whatever mypy's stubs say


def calls_itself(module: nn.Module) -> bool:
    """Whether a forward of this module, which starts just now, was called below another one of the same module."""
    return sum(one is module for one in modules_under_way()) > 1
