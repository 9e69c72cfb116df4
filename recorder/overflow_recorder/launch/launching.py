"""Running another program in this process as Python would have run it: its ``__main__``, ``sys.argv``, path, traceback.

The program is not imported but takes the place of this one, so that what looks at ``__main__`` finds it there: the
``if __name__ == "__main__"`` of the script, pickling of its classes, child processes that multiprocessing spawns.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.util
import io
import os
import pkgutil
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from overflow_recorder.errors import NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, TracebackType


_PACKAGE: Final = f"{__name__.partition('.')[0]}."
_replaced: Final[list[ModuleType]] = []
"""The ``__main__`` that this process began with: its functions are still running, so it must live."""


class CannotStartError(Exception):
    """There is no such program."""


def run_script(path: str, arguments: Sequence[str], *, before: Callable[[], None] = lambda: None) -> None:
    """Run a script as ``python path arguments`` does: a file, or a directory or zip file with a ``__main__.py``.

    Args:
        path: As it stands on the command line.
        arguments: Its own.
        before: Called when ``sys.argv`` and ``sys.path`` are the script's.

    Raises:
        CannotStartError: Nothing there can be run; nothing was.
        BaseException: What the script raises. If nobody catches it, it is shown without this package's frames.
    """
    full = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118  Path would tidy up what Python's own start does not
    sys.argv[:] = [path, *arguments]
    if os.path.isfile(full) and pkgutil.get_importer(full) is None:  # noqa: PTH113  the same
        _put_first(os.path.dirname(os.path.realpath(full)))  # noqa: PTH120  the same
        before()
        loader = SourceFileLoader("__main__", full)
        _run({"__file__": full, "__loader__": loader, "__package__": None}, lambda: _read(full))
        return
    spec = PathFinder.find_spec("__main__", [full])
    if spec is None or spec.loader is None:
        what = "there is no __main__.py in it" if os.path.exists(full) else "no such file"  # noqa: PTH110  the same
        raise CannotStartError(f"cannot run {path!r}: {what}")
    _put_first(full)
    before()
    _run_spec(spec, package="")


def run_module(name: str, arguments: Sequence[str], *, before: Callable[[], None] = lambda: None) -> None:
    """Run a module or package as ``python -m name arguments`` does.

    Args:
        name: Dotted; of a package its ``__main__`` is run.
        arguments: Its own.
        before: Called when ``sys.path`` is the module's, before its packages are imported.

    Raises:
        CannotStartError: There is no such module; at most the packages that it would be in were imported.
        BaseException: What the module raises. If nobody catches it, it is shown without this package's frames.
    """
    sys.argv[:] = ["-m", *arguments]  # as Python says while it looks for the module
    _put_first(str(Path.cwd()))
    before()
    spec = _find_module(name)
    if spec.submodule_search_locations is not None:
        spec = _find_module(f"{name}.__main__", f"; {name} is a package without a __main__ and cannot be run")
    sys.argv[0] = str(spec.origin)
    _run_spec(spec, package=spec.parent)


def die_if_interrupted() -> None:
    """At exit, after an uncaught Ctrl-C: let Python die of SIGINT, as it means to, whatever ran at exit before this.

    Python decides by a flag that only its C API sets, and that any code which a library runs through the same API at
    exit takes back; what ``torch._dynamo`` imports does.
    """
    if type(getattr(sys, "last_value", None)) is KeyboardInterrupt:
        import ctypes

        with contextlib.suppress(KeyboardInterrupt):
            file_input, names = 257, ctypes.py_object({"__builtins__": builtins})
            ctypes.pythonapi.PyRun_String(b"raise KeyboardInterrupt", file_input, names, names)


def _find_module(name: str, hint: str = "") -> ModuleSpec:
    if name.startswith("."):
        raise CannotStartError(f"cannot run the module {name!r}: its name is relative")
    try:
        spec = importlib.util.find_spec(name)
    except (ValueError, AttributeError) as error:
        raise CannotStartError(f"cannot run the module {name!r}: {error}") from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the program's own: a package that it is in could not import something
        spec = None
    if spec is None or not hasattr(spec.loader, "get_code"):
        suggestion = f"; is {name[:-3]!r} meant?" if name.endswith(".py") else hint
        raise CannotStartError(f"no module named {name!r} can be run{suggestion}")
    return spec


def _put_first(directory: str) -> None:
    # Where Python was told to be safe it has put nothing there that could be replaced.
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return
    sys.path[:1] = [directory]


def _read(path: str) -> CodeType:
    with io.open_code(path) as file:
        code: CodeType | None = pkgutil.read_code(file)
    if code is not None:
        return code
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _run_spec(spec: ModuleSpec, package: str | None) -> None:
    loader: Any = spec.loader
    attributes = {"__file__": spec.origin, "__cached__": spec.cached, "__loader__": loader, "__spec__": spec}
    _run({**attributes, "__package__": package}, lambda: loader.get_code(spec.name))


def _run(attributes: dict[str, Any], load: Callable[[], CodeType]) -> None:
    main = ModuleType("__main__")
    vars(main).update({"__builtins__": builtins, "__cached__": None, **attributes})
    _replaced.append(sys.modules["__main__"])
    sys.modules["__main__"] = main
    try:
        exec(load(), vars(main))  # noqa: S102  it is what the user asked to run
    except BaseException as error:
        _show_without_our_frames(error, vars(main))
        raise


def _show_without_our_frames(error: BaseException, program: dict[str, Any]) -> None:
    """Let ``sys.excepthook``, whoever's it is, see the traceback that the program alone would have had."""
    show = sys.excepthook

    def excepthook(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        if value is error:
            traceback = _frames_of(program, value, traceback)
            value = value.with_traceback(traceback)
            sys.last_traceback = traceback
        show(kind, value, traceback)

    sys.excepthook = excepthook


def _frames_of(program: dict[str, Any], error: BaseException, whole: TracebackType | None) -> TracebackType | None:
    first = whole
    while first is not None and first.tb_frame.f_globals is not program:
        first = first.tb_next
    if first is None:  # it did not come so far: its text is no Python, or the fault is ours
        return None if isinstance(error, SyntaxError) else whole
    if isinstance(error, NonFiniteError):
        _cut_our_end(first)
    return first


def _cut_our_end(traceback: TracebackType) -> None:
    """Drop torch's and the recorder's frames at the end: what raised is where the program called a module."""
    last, one = traceback, traceback.tb_next
    while one is not None:
        if not str(one.tb_frame.f_globals.get("__name__")).startswith((_PACKAGE, "torch.")):
            last = one
        one = one.tb_next
    last.tb_next = None
