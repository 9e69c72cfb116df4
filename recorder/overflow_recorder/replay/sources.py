"""Lines of source: which one of the user's program is running an operation, and who called a module."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from overflow_analyzer.format.origin import SourceLine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType


_TORCH: Final = str(Path(torch.__file__).parent)
_OURS: Final = str(Path(__file__).parents[1])
CALL: Final = nn.Module._call_impl.__code__
_LONGEST_CODE: Final = 300


def frames_from(frame: FrameType | None, end: CodeType | None = None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, innermost first, up to the one that runs ``end``."""
    while frame is not None and frame.f_code is not end:
        yield frame
        frame = frame.f_back


def users_frames(frame: FrameType | None, end: CodeType | None = None) -> Iterator[FrameType]:
    """Yield the frames outside torch and outside this package, innermost first."""
    return (one for one in frames_from(frame, end) if is_users(one.f_code.co_filename))


def users_lines(frame: FrameType | None, end: CodeType | None = None) -> list[SourceLine]:
    """Return the lines that they are running."""
    return [_line(one) for one in users_frames(frame, end)]


def is_users(file: str) -> bool:
    """Whether a source file is neither torch's nor this package's."""
    return not file.startswith((_TORCH, _OURS, "<frozen"))


def _line(frame: FrameType) -> SourceLine:
    code = frame.f_code
    text = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
    return SourceLine(_shown(code.co_filename), frame.f_lineno, function_of(frame), text[:_LONGEST_CODE])


def _shown(file: str) -> str:
    """Return a path as seen from the working directory, or from where Python imports it."""
    path = Path(file).absolute()
    for folder in (str(Path.cwd()), *sorted(filter(None, sys.path), key=len, reverse=True)):
        if path.is_file() and path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return file


def function_of(frame: FrameType) -> str:
    """Return the name of the function that a frame runs, as ``Attention.forward``."""
    name: str = getattr(frame.f_code, "co_qualname", "")  # from Python 3.11 on
    if not name:
        name = frame.f_code.co_name
        self: Any = frame.f_locals.get("self")
        name = name if self is None else f"{type(self).__name__}.{name}"
    return name.rpartition("<locals>.")[2]
