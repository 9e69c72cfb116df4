"""Converters of single values: numbers, bool, text, paths, None and other classes."""

from __future__ import annotations

import numbers
import operator
import os
from pathlib import Path, PurePath
from types import NoneType
from typing import Any

from overflow_recorder.helpers.arguments.converter import Converter, refuse

_TRUE_TEXTS = frozenset({"yes", "true", "t", "y", "1"})
_FALSE_TEXTS = frozenset({"no", "false", "f", "n", "0"})
_NONE_TEXTS = frozenset({"None", "none", "null"})


class NumberConverter(Converter):
    """int, float or complex. A bool is no number; a number is taken for a wider type, never rounded for a narrower."""

    def __init__(self, kind: type[int | float | complex]) -> None:
        self.kind = kind
        self.description = kind.__name__
        self.breadth = (int, float, complex).index(kind) + 1

    def is_exact(self, value: object) -> bool:
        """Whether the value is such a number; True and False are none."""
        return isinstance(value, self.kind) and not isinstance(value, bool)

    def _parse(self, text: str) -> Any:
        # Also a file's text: YAML 1.1 reads 1e-4 as one.
        try:
            return self.kind(text)
        except ValueError:
            raise refuse(text, self.description) from None

    def _take(self, value: Any) -> Any:
        if not isinstance(value, bool):
            try:
                return self._from_number(value)
            except (TypeError, ValueError, OverflowError):
                pass
        raise refuse(value, self.description)

    def _from_number(self, value: Any) -> Any:
        is_real, is_integral = isinstance(value, numbers.Real), isinstance(value, numbers.Integral)
        if self.kind is int and not is_integral:
            if not is_real or value != int(value):
                raise ValueError
            return int(value)
        if self.kind is int:
            return operator.index(value)
        if not (is_real or (self.kind is complex and isinstance(value, numbers.Complex))):
            raise TypeError
        return self.kind(value)


class BoolConverter(Converter):
    """A bool: a flag on a command line; 0, 1 and the usual words elsewhere."""

    kind = bool
    description = "bool"
    breadth = 4
    is_flag = True

    def _parse(self, text: str) -> bool:
        word = text.lower()
        if word in _TRUE_TEXTS or word in _FALSE_TEXTS:
            return word in _TRUE_TEXTS
        raise refuse(text, self.description, "yes/no, true/false, t/f, y/n or 1/0")

    def _take(self, value: Any) -> bool:
        if isinstance(value, int) and value in (0, 1):
            return bool(value)
        raise refuse(value, self.description)


class TextConverter(Converter):
    """A str. A file's number or bool is refused: 007, 1.10 and no have lost how they were written."""

    kind = str
    description = "str"
    breadth = 9

    def _parse(self, text: str) -> str:
        return text

    def _take(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        raise refuse(value, self.description, "put it in quotes" if isinstance(value, (int, float)) else "")


class AnythingConverter(Converter):
    """Any, and object: texts stay texts, values what they are."""

    kind = object
    description = "anything"
    breadth = 9

    def _parse(self, text: str) -> str:
        return text

    def _take(self, value: Any) -> Any:
        return value


class NoneConverter(Converter):
    """None, the rest of an Optional: spelt None, none or null where no other member takes that text."""

    kind = NoneType
    description = "None"
    breadth = 10

    def _parse(self, text: str) -> None:
        if text not in _NONE_TEXTS:
            raise refuse(text, self.description)

    def _take(self, value: Any) -> None:
        if value is not None:
            raise refuse(value, self.description)


class BytesConverter(Converter):
    """bytes or bytearray; a text becomes its UTF-8 bytes."""

    breadth = 8

    def __init__(self, kind: type[bytes | bytearray]) -> None:
        self.kind = kind
        self.description = kind.__name__

    def _parse(self, text: str) -> Any:
        return self.kind(text.encode())

    def _take(self, value: Any) -> Any:
        if isinstance(value, (bytes, bytearray)):
            return self.kind(value)
        raise refuse(value, self.description)


class PathConverter(Converter):
    """A path class of pathlib; os.PathLike means Path."""

    description = "path"
    breadth = 7
    metavar = "PATH"

    def __init__(self, kind: type) -> None:
        self.kind = kind if issubclass(kind, PurePath) else Path

    def _parse(self, text: str) -> Any:
        return self.kind(text)

    def _take(self, value: Any) -> Any:
        if isinstance(value, os.PathLike):
            return self.kind(value)
        raise refuse(value, self.description)


class ClassConverter(Converter):
    """Any other class that one text makes: Decimal, UUID, Fraction, datetime (through fromisoformat)."""

    breadth = 6

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.description = kind.__name__
        self._make: Any = getattr(kind, "fromisoformat", kind)

    def _parse(self, text: str) -> Any:
        try:
            return self._make(text)
        except (TypeError, ValueError, ArithmeticError) as error:  # Decimal raises an ArithmeticError
            raise refuse(text, self.description, str(error)) from None

    def _take(self, value: Any) -> Any:
        if isinstance(value, self.kind):
            return value
        raise refuse(value, self.description)
