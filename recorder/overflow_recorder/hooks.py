"""Attaching to modules and letting go of them. Nothing else touches torch's hooks of modules."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_module_registration_hook

from overflow_recorder.errors import RecorderWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from overflow_recorder.session import Session

__all__ = ["HookedModule", "ModuleHooks"]

# What a copied or pickled model has in place of a hook: a callable that does nothing and that every Python can load,
# whether or not it has this package.
_INERT = functools.partial(sys.audit, "overflow_trace.hook_of_a_copied_model")


class HookedModule:
    """A module's name and class, bound when the hook is attached: a replica shares the hook, and so the name."""

    __slots__ = ("class_name", "is_root", "name", "parameter_names")

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.class_name = type(module).__name__
        self.is_root = name == ""
        self.parameter_names = tuple(key for key, value in module._parameters.items() if value is not None)


class _Hook:
    __slots__ = ("hooked", "session")

    def __init__(self, session: Session, hooked: HookedModule) -> None:
        self.session = session
        self.hooked = hooked

    def __reduce__(self) -> tuple[Any, ...]:
        return _INERT.__reduce__()  # type: ignore[return-value]

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _INERT


class _BeforeForward(_Hook):
    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # Inside a compiled region Python does not run: traced to nothing, this hook leaves the graph as it is.
        if is_compiling():
            return
        self.session.before_forward(self.hooked, module, args, kwargs)


class _AfterForward(_Hook):
    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        if is_compiling():
            return
        self.session.after_forward(self.hooked, module, args, kwargs, output)


class ModuleHooks:
    """The hooks on one model: attached together or not at all, and removed by whoever attached them.

    Args:
        model: The root.
        session: Whom the hooks call.
    """

    def __init__(self, model: nn.Module, session: Session) -> None:
        self._model = model
        self._session = session
        self._handles: list[RemovableHandle] = []
        self._known: set[int] = set()
        self._skipped: set[str] = set()
        self._changed = True

    @property
    def is_attached(self) -> bool:
        """Whether any hook is on the model."""
        return bool(self._handles)

    def attach(self) -> None:
        """Attach to every module that has no hook of ours yet; if one refuses, none keeps a hook."""
        try:
            if not self._handles:
                self._handles.append(register_module_module_registration_hook(self._module_registered))
            self.attach_new()
        except BaseException:
            self.detach()
            raise

    def attach_new(self) -> None:
        """Attach to modules that were added since."""
        if not self._changed:
            return
        self._changed = False
        for name, module in self._model.named_modules():
            if id(module) not in self._known and not self._is_script(name, module):
                self._known.add(id(module))
                self._attach_one(HookedModule(name, module), module)

    def _attach_one(self, hooked: HookedModule, module: nn.Module) -> None:
        before, after = _BeforeForward(self._session, hooked), _AfterForward(self._session, hooked)
        self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        # always_call: a forward that raises has left its module too, or every later frame would be taken for its child.
        self._handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))

    def _is_script(self, name: str, module: nn.Module) -> bool:
        """A ScriptModule runs without Python, and so do the modules inside it."""
        if any(name.startswith(f"{outer}.") for outer in self._skipped):
            return True
        if not isinstance(module, torch.jit.ScriptModule):
            return False
        self._skipped.add(name)
        warnings.warn(
            f"{name or 'the model'} is a ScriptModule ({type(module).__name__}): it runs without Python, "
            "so it and the modules inside it are not recorded",
            RecorderWarning,
            stacklevel=2,
        )
        return True

    def _module_registered(self, parent: nn.Module, name: str, child: nn.Module) -> None:
        # Of any model in the process: whether it is ours is found out at the next batch, by walking ours.
        self._changed = True

    def detach(self) -> None:
        """Remove every hook; once is enough, twice does no harm."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._known.clear()
        self._changed = True
