"""The least and the largest value of a column in each row group, read from a Parquet footer's bytes.

Arrow's own accessors (``RowGroupMetaData.column``, ``ColumnChunkMetaData.statistics``) end the process where a footer
is damaged: they throw a C++ exception that nothing catches. A footer is written in Thrift's compact protocol.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator


Bounds = tuple[int, int]

# Types of Thrift's compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _, _STRUCT = range(1, 13)
_FIXED_SIZES: Final = {_TRUE: 0, _FALSE: 0, _BYTE: 1, _DOUBLE: 8}
_DEEPEST: Final = 16
_LONG_LIST: Final = 15
_VARINT_BYTES: Final = 10
_VARINT: Final = rb"[\x80-\xff]*[\x00-\x7f]"
# Fields of Parquet's FileMetaData and RowGroup, and paths of fields from ColumnChunk on.
_ROW_GROUPS: Final = 4
_COLUMNS: Final = 1
_NAME: Final = (3, 3, 0)
_MAX, _MIN = (3, 12, 5), (3, 12, 6)
_HISTOGRAMS: Final = ((3, 16, 2), (3, 16, 3))
_WORTH_COMPILING: Final = 3  # row groups: as long as a pattern takes to compile, so many take to walk through


class Leaf(NamedTuple):
    """A column of the file."""

    name: str
    size: int
    """Bytes of a value where its bounds are wanted: then it is a signed integer; else 0."""
    levels: tuple[int, int]
    """The numbers of its repetition and of its definition levels."""


def read_bounds(footer: bytes, leaves: tuple[Leaf, ...], row_groups: int) -> list[dict[str, Bounds]]:
    """Return of each row group in a Parquet file's ``FileMetaData`` the bounds of the wanted columns, where known.

    Raises:
        ValueError: These are no such bytes, or a row group has another number of columns.
    """
    layout = _layout_of(leaves)
    found = layout.search(footer, 0, row_groups)
    if found is None:
        try:
            found = list(_walk_through(footer, layout))
        except IndexError:
            raise ValueError("the footer ends too early") from None
    if len(found) != row_groups:
        raise ValueError(f"the footer describes {len(found)} row groups of {row_groups}")
    return found


def _walk_through(footer: bytes, layout: _Layout) -> Iterator[dict[str, Bounds]]:
    walk = _Walk(footer)
    for field, kind in walk.fields():
        if (field, kind) != (_ROW_GROUPS, _LIST):
            walk.value(kind)
            continue
        count = walk.list_of(_STRUCT)
        for at in range(count):
            rest = layout.search(footer, walk.at, count - at)
            if rest is not None:
                yield from rest
                return
            yield layout.pass_row_group(walk)


class _Layout:
    """How the chunks of the wanted columns stand in the bytes of files with the same columns.

    To walk through all the fields of a row group takes a hundred times as long as to search for the few chunks that
    are wanted. So a few row groups are walked through, and the others searched for what stands as in the last of them.
    """

    def __init__(self, leaves: tuple[Leaf, ...]) -> None:
        self._leaves = leaves
        self._wanted = sum(leaf.size > 0 for leaf in leaves)
        self._walked = 0
        self._sources: dict[Leaf, bytes] = {}
        self._patterns: dict[Leaf, re.Pattern[bytes]] = {}

    def search(self, footer: bytes, start: int, count: int) -> list[dict[str, Bounds]] | None:
        """Return the bounds in all ``count`` row groups from ``start`` on.

        None where that is not worth while yet, or where one of them does not stand as those before.
        """
        if self._walked < _WORTH_COMPILING or len(self._sources) < self._wanted:
            return None
        if not self._patterns:
            self._patterns = {leaf: re.compile(source, re.DOTALL) for leaf, source in self._sources.items()}
        found: list[dict[str, Bounds]] = [{} for _ in range(count)]
        for leaf, pattern in self._patterns.items():
            ends = pattern.findall(footer, start)
            if len(ends) != count:
                self._walked = 0
                return None
            for bounds, (high, low) in zip(found, ends, strict=True):
                bounds[leaf.name] = _integer(low), _integer(high)
        return found

    def pass_row_group(self, walk: _Walk) -> dict[str, Bounds]:
        """Walk through one row group and return the bounds in it."""
        bounds: dict[str, Bounds] = {}
        sources: dict[Leaf, bytes] = {}
        for field, kind in walk.fields():
            if (field, kind) != (_COLUMNS, _LIST):
                walk.value(kind)
                continue
            if walk.list_of(_STRUCT) != len(self._leaves):
                raise ValueError(f"a row group has not the file's {len(self._leaves)} columns")
            for leaf in self._leaves:
                chunk = _Walk(walk.data, walk.at)
                chunk.value(_STRUCT)
                walk.at = chunk.at
                chunk.check_levels(leaf)
                if leaf.size and [len(end) for end in chunk.ends.values()] == [leaf.size, leaf.size]:
                    bounds[leaf.name] = _integer(chunk.ends[_MIN]), _integer(chunk.ends[_MAX])
                    if tuple(chunk.ends) == (_MAX, _MIN):
                        sources[leaf] = chunk.source
        if sources != self._sources:
            self._sources, self._patterns, self._walked = sources, {}, 0
        self._walked += 1
        return bounds


_layout_of = functools.lru_cache(maxsize=64)(_Layout)


def _integer(plain: bytes) -> int:
    return int.from_bytes(plain, "little", signed=True)


class _Walk:
    """A way through bytes in Thrift's compact protocol; where they end too early it raises IndexError."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at
        self.pattern: list[bytes] = []
        """A regular expression of what was passed; of a column's chunk, from its name on."""
        self.source = b""
        """The same up to the last of ``ends``."""
        self.ends: dict[tuple[int, ...], bytes] = {}
        """The least and the largest value in a column's chunk, in their order."""
        self.lengths: dict[tuple[int, ...], int] = {}
        """Of the lists that were passed."""

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield number and type of a struct's fields; each value is passed before the next is asked for."""
        number = 0
        while (head := self._byte()) != 0:
            start = self.at - 1
            number = number + (head >> 4) if head >> 4 else self._varint()
            self.pattern.append(re.escape(self.data[start : self.at]))
            yield number, head & 0xF
        self.pattern.append(rb"\0")

    def list_of(self, kind: int) -> int:
        """Pass a list's head and return its length."""
        start = self.at
        head = self._byte()
        length = head >> 4
        if length == _LONG_LIST:
            length = self._varint()
        if head & 0xF != kind:
            raise ValueError(f"a list of type {head & 0xF} where {kind} belongs")
        self.pattern.append(re.escape(self.data[start : self.at]))
        return length

    def value(self, kind: int, path: tuple[int, ...] = ()) -> int:
        """Pass a value; return it where it is an integer.

        Raises:
            ValueError: There is no such type, or structs lie in each other without end.
        """
        if kind in (_I16, _I32, _I64):
            return self._integer()
        if kind == _STRUCT and len(path) < _DEEPEST:
            for field, of in self.fields():
                self.value(of, (*path, field))
        elif kind in (_LIST, _SET) and len(path) < _DEEPEST:
            of = self.data[self.at] & 0xF
            self.lengths[path] = self.list_of(of)
            for _ in range(self.lengths[path]):
                self.value(_BYTE if of in (_TRUE, _FALSE) else of, (*path, 0))
        elif kind == _BINARY:
            start, length = self.at, self._varint()
            self.pattern.append(re.escape(self.data[start : self.at]))
            self._bytes(length, path)
        elif kind in _FIXED_SIZES:
            self._bytes(_FIXED_SIZES[kind])
        else:
            raise ValueError(f"a value of type {kind}")
        return 0

    def _bytes(self, length: int, path: tuple[int, ...] = ()) -> None:
        found = self.data[self.at : self.at + length]
        if len(found) < length:
            raise IndexError
        self.at += length
        if path == _NAME:
            self.pattern = [self.pattern[-1], re.escape(found)]
        elif path in (_MIN, _MAX):
            self.ends[path] = found
            self.pattern.append(b"(.{%d})" % length)
            self.source = b"".join(self.pattern)
        else:
            self.pattern.append(b".{%d}" % length)

    def check_levels(self, leaf: Leaf) -> None:
        """Refuse statistics of other levels than the column has."""
        for path, levels in zip(_HISTOGRAMS, leaf.levels, strict=True):
            if self.lengths.get(path, 0) not in (0, levels):
                raise ValueError(f"column {leaf.name} has {levels} levels, its statistics {self.lengths[path]}")

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _integer(self) -> int:
        """Pass a signed number."""
        self.pattern.append(_VARINT)
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _varint(self) -> int:
        number = 0
        for at in range(_VARINT_BYTES):
            byte = self._byte()
            number |= (byte & 0x7F) << 7 * at
            if byte < 0x80:  # noqa: PLR2004  the bit that says that more bytes follow
                return number
        raise ValueError("a number has no end")
