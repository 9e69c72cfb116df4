"""The append-only dictionary of names beside the ring: a name is in its file before any row can refer to it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Final

from overflow_analyzer.format.names import encode_name

if TYPE_CHECKING:
    from pathlib import Path


MOST_NAMES_BYTES: Final = 1 << 25
_MOST_NAMES: Final = 1 << 17
_TOO_MANY_NAMES: Final = "(more names than are kept)"
_RESERVE: Final = len(encode_name(_TOO_MANY_NAMES))


class NameDictionary:
    """Names and their positions, the empty one first.

    Without a bound, names that differ in every batch would grow the process's memory and its disk for days: beyond the
    bound every new name is ``(more names than are kept)``.

    Args:
        path: The file, made new; None keeps the names in memory only.
        max_bytes: Most bytes of the file.

    Raises:
        OSError: The file cannot be made.
    """

    def __init__(self, path: Path | None, max_bytes: int = MOST_NAMES_BYTES) -> None:
        self.names: list[str] = [""]
        self._positions = {"": 0}
        self._ends = [0]
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._adding = False
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        self._file = None if path is None else os.open(path, flags, 0o666)

    def position(self, name: str) -> int:
        """Return the position of a name, adding it first if it is new.

        Raises:
            OSError: The disk has no room for it.
            RuntimeError: A signal handler interrupted the adding of a name and needs another one.
        """
        found = self._positions.get(name)
        return self._add(name) if found is None else found

    def _add(self, name: str) -> int:
        with self._lock:
            if self._adding:
                raise RuntimeError("a signal handler recorded something while the recorder was at work")
            self._adding = True
            try:
                return self._positions[name] if name in self._positions else self._append(self._bounded(name))
            finally:
                self._adding = False

    def _bounded(self, name: str) -> str:
        end = self._ends[len(self.names) - 1] + len(encode_name(name))
        return name if len(self.names) < _MOST_NAMES and end + _RESERVE <= self._max_bytes else _TOO_MANY_NAMES

    def _append(self, name: str) -> int:
        if name in self._positions:  # the one for all that are too many
            return self._positions[name]
        position, entry = len(self.names), encode_name(name)
        start = self._ends[position - 1]
        # Written at its place, not appended: after a disk that took only half, or a KeyboardInterrupt between here and
        # the next lines, the next name is written over what is there, and positions stay right.
        if self._file is not None:
            os.lseek(self._file, start, os.SEEK_SET)
            if os.write(self._file, entry) != len(entry):
                raise OSError("the disk is full: a name was written in part")
        self._ends[position:] = [start + len(entry)]
        self.names.append(name)
        self._positions[name] = position
        return position

    def close(self) -> None:
        """Close the file; the names stay known."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
