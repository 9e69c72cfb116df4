"""Doing something as soon as a module has been imported, and before the process becomes another program."""

from __future__ import annotations

import functools
import os
import sys
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any, NoReturn

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


def call_before_exec(action: Callable[[str], None]) -> None:
    """Call ``action`` with the program's path before any function of ``os`` replaces this process."""

    def calling_first(replace: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
        @functools.wraps(replace)
        def execute(*arguments: Any, **named: Any) -> NoReturn:
            path = arguments[0] if arguments else named.get("path")
            action(os.fsdecode(path) if isinstance(path, (str, bytes, os.PathLike)) else repr(path))
            replace(*arguments, **named)

        return execute

    # All others, such as os.execvp, call one of these two.
    os.execv, os.execve = calling_first(os.execv), calling_first(os.execve)


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
