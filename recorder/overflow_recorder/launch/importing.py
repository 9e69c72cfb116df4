"""Doing something as soon as a module has been imported, without importing it sooner."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def call_after_import(name: str, action: Callable[[], None]) -> None:
    """Call ``action`` once, when the module has been imported, or now if it is already.

    A script may set environment variables before it imports torch; imported earlier, torch would not see them.

    Args:
        name: Of a module that is not in a package.
        action: Takes nothing; what it raises goes up through the import.
    """
    if name in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Waiting(name, action))


class _Waiting(MetaPathFinder):
    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self._name = name
        self._action = action

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the module as the other finders do; if it is then executed, the action follows."""
        if name != self._name:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._follow(spec)
                return spec
        return None

    def _follow(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        # An attribute of this one loader, gone before the module could see it. Whoever only asks whether the module
        # is there gets a loader of its own, which is never called.
        def execute_and_act(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._action()

        loader.exec_module = execute_and_act
