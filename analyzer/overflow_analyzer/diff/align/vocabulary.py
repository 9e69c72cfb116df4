"""Names as small integers that both traces share: what is compared row by row is never text."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from overflow_analyzer.diff.stream.block import constant
from overflow_analyzer.format.arrays import plain, text_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


Codes = npt.NDArray[np.int32]

_SEED: Final = 0x5EED
_SLOT_BITS: Final = 16


class Vocabulary:
    """A name's code is its position; codes are only ever added. Used by one reading thread a trace."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names: list[str] = list(names)
        self._codes = {name: code for code, name in enumerate(self.names)}
        self._lock = threading.Lock()

    def code(self, name: str) -> int:
        """Return the code of a name, adding it where it is new."""
        with self._lock:
            code = self._codes.setdefault(name, len(self.names))
            if code == len(self.names):
                self.names.append(name)
        return code


class Translation:
    """Turns dictionary columns of one trace into codes; a dictionary that comes again is not looked through again."""

    def __init__(self, code: Callable[[str], int]) -> None:
        self._code = code
        self._dictionary: pa.Array = text_array([])
        self._table: Codes = np.zeros(1, np.int32)

    def __call__(self, column: pa.ChunkedArray) -> Codes:
        """Return the codes of a dictionary column, shape [rows]; a null has that of the empty name."""
        pieces = [self._translate(chunk) for chunk in column.chunks]
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)

    def _translate(self, chunk: pa.DictionaryArray) -> Codes:
        if not chunk.dictionary.equals(self._dictionary):
            self._table = np.array([self._code(name or "") for name in chunk.dictionary.to_pylist()], np.int32)
            self._dictionary = chunk.dictionary
        if chunk.null_count == 0 and len(self._table) == 1:
            return constant(self._table[0], len(chunk))
        indices, absent = plain(chunk.indices)
        table = self._table
        if absent is not None:
            table, indices = np.append(table, np.int32(self._code(""))), np.where(absent, len(table), indices)
        translated: Codes = table[indices]
        return translated


class Shapes:
    """Turns shapes into 64-bit fingerprints, equal for equal shapes, and back.

    A fingerprint is a sum of the dimensions, each times a random 64-bit factor of its position: that two different
    shapes share one has a chance of about 2**-63.
    """

    NONE: Final = 0
    """The fingerprint of a row that has no shape."""

    def __init__(self) -> None:
        self._factors = np.random.default_rng(_SEED).integers(0, 2**63, 64, dtype=np.uint64) * 2 + 1
        self._seen = np.zeros(1 << _SLOT_BITS, np.uint64)
        self._shapes: dict[int, tuple[int, ...]] = {}

    def __call__(self, column: pa.ChunkedArray) -> npt.NDArray[np.uint64]:
        """Return the fingerprints of a ``list<int64>`` column, shape [rows]."""
        pieces = [self._fingerprints(chunk) for chunk in column.chunks]
        return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.zeros(0, np.uint64)])

    def shape(self, fingerprint: int) -> tuple[int, ...] | None:
        """Return a shape that was seen; None for ``NONE``."""
        return self._shapes.get(fingerprint)

    def _fingerprints(self, chunk: pa.ListArray) -> npt.NDArray[np.uint64]:
        offsets, _ = plain(chunk.offsets)
        values = plain(chunk.values)[0].view(np.uint64)
        lengths = np.diff(offsets)
        found = np.zeros(len(chunk), np.uint64)
        for length in range(int(lengths.min(initial=0)), int(lengths.max(initial=-1)) + 1):
            rows: Any = slice(None) if (lengths == length).all() else np.flatnonzero(lengths == length)
            found[rows] = self._sum(values, offsets[:-1][rows], length)
        if chunk.null_count:
            found[plain(chunk.is_valid().cast(pa.uint8()))[0] == 0] = self.NONE
        self._remember(found, offsets, values)
        return found

    def _sum(self, values: npt.NDArray[np.uint64], starts: npt.NDArray[Any], length: int) -> Any:
        factors = np.resize(self._factors[1:], length) * (np.arange(length, dtype=np.uint64) // 63 + 1)
        with np.errstate(over="ignore"):  # sums are taken modulo 2**64, which numpy tells of for scalars alone
            one = self._factors[0] * np.uint64(length + 1)
        if not len(starts):
            return np.zeros(0, np.uint64)
        if length and starts[-1] - starts[0] == length * (len(starts) - 1):  # rows without a gap: no gathering
            table = values[starts[0] : starts[-1] + length].reshape(-1, length)
        else:
            table = values[starts[:, None] + np.arange(length)]
        return table @ factors + one

    def _remember(
        self, found: npt.NDArray[np.uint64], offsets: npt.NDArray[Any], values: npt.NDArray[np.uint64]
    ) -> None:
        slots = found >> np.uint64(64 - _SLOT_BITS)
        fresh, rows = np.unique(found[new := np.flatnonzero(self._seen[slots] != found)], return_index=True)
        for fingerprint, row in zip(fresh.tolist(), new[rows].tolist(), strict=True):
            self._shapes[fingerprint] = tuple(values[offsets[row] : offsets[row + 1]].view(np.int64).tolist())
            self._seen[fingerprint >> (64 - _SLOT_BITS)] = fingerprint
