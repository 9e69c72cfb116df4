"""What a type hint becomes: a converter, from a command line's texts and from a file's values."""

from __future__ import annotations

import json
import numbers
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from types import NoneType
from typing import Any, Final

_SHOWN_LENGTH = 80
_MOST_CHOICES_SHOWN = 12
TRUE_TEXTS = ("yes", "true", "t", "y", "1")
FALSE_TEXTS = ("no", "false", "f", "n", "0")
_NONE_TEXTS = ("None", "none", "null")
_NUMBERS: Final[dict[Any, type]] = {int: numbers.Real, float: numbers.Real, complex: numbers.Complex}
"""A type of numbers -> the values that it may be made of."""


class ConversionError(ValueError):
    """A text or value is not of the type asked for; whoever knows the field puts its name before the message."""


class Converter(ABC):
    """Makes values of one type, or raises ``ConversionError``; never returns another type's value."""

    kind: type
    """The runtime type of what it makes."""
    description: str
    """The type, as a message names it."""
    breadth: int = 0
    """How many texts it takes: a Union tries members that take few before those that take many."""
    nargs: int | str | None = None
    """argparse's nargs: None where one text makes the value."""
    metavar: str | None = None
    """What stands for the value in the usage; None for argparse's own choice."""
    is_flag: bool = False
    """Whether the option may stand alone and then means True."""
    has_members: bool = False
    """Whether it makes members of an Enum."""

    def from_text(self, text: str) -> Any:
        """Convert one text of a command line."""
        return self._parse(text)

    def from_texts(self, texts: Sequence[str]) -> Any:
        """Convert all texts given to one option."""
        return self._parse_several(texts)

    def from_value(self, value: object) -> Any:
        """Convert what a JSON or YAML file, or a Python caller, gave; a text that is not the type is parsed."""
        return self._parse(value) if isinstance(value, str) and not self.is_exact(value) else self._take(value)

    @abstractmethod
    def _parse(self, text: str) -> Any: ...

    @abstractmethod
    def _take(self, value: Any) -> Any:
        """Convert a value that is of the type, or no text."""

    def _parse_several(self, texts: Sequence[str]) -> Any:
        if len(texts) != 1:
            raise ConversionError(f"expected one value, got {len(texts)}")
        return self._parse(texts[0])

    def is_exact(self, value: object) -> bool:
        """Whether the value is of the type already, its elements aside. A bool is no int."""
        return isinstance(value, self.kind) and not (isinstance(value, bool) and self.kind is int)


def refuse(value: object, description: str, hint: str = "") -> ConversionError:
    """Return the error that says what was wrong, the value shortened."""
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN_LENGTH else f"{shown[:_SHOWN_LENGTH]}..."
    kind = "" if isinstance(value, str) else f" ({type(value).__name__})"
    return ConversionError(f"expected {description}, got {shown}{kind}{hint and '; ' + hint}")


@dataclass(frozen=True, eq=False)
class ScalarConverter(Converter):
    """A single value: one function makes it of a text, another of a value; what they raise is a refusal."""

    kind: type
    description: str
    text_to_value: Callable[[str], Any]
    value_to_value: Callable[[Any], Any] = lambda value: value
    takes: type | tuple[type, ...] | None = None
    """Types of the values that the second function is given; None for ``kind``."""
    explains: bool = True
    """Whether a refusal shows the reason that the function raised."""
    breadth: int = 0
    metavar: str | None = None
    is_flag: bool = False

    def _parse(self, text: str) -> Any:
        return self._made(self.text_to_value, text)

    def _take(self, value: Any) -> Any:
        if not isinstance(value, self.takes or self.kind):
            raise refuse(value, self.description)
        return self._made(self.value_to_value, value)

    def _made(self, convert: Callable[[Any], Any], value: object) -> Any:
        try:
            return convert(value)
        except (TypeError, ValueError, ArithmeticError) as error:  # Decimal raises an ArithmeticError
            raise refuse(value, self.description, str(error) if self.explains else "") from None


def path(kind: type) -> Converter:
    """A path class of pathlib; os.PathLike means Path."""
    kind = kind if issubclass(kind, PurePath) else Path
    return ScalarConverter(kind, "path", kind, kind, takes=os.PathLike, breadth=7, metavar="PATH")


def instance(kind: type) -> Converter:
    """Any other class that one text makes: Decimal, UUID, Fraction, datetime (through fromisoformat)."""
    return ScalarConverter(kind, kind.__name__, getattr(kind, "fromisoformat", kind), breadth=6)


def _number(kind: type[int | float | complex], value: Any) -> Any:
    """A number is taken for a wider type, and never rounded for a narrower one; a bool is none."""
    if isinstance(value, bool) or (kind is int and value != int(value)):
        raise ValueError
    return kind(value)


def _bool_of_text(text: str) -> bool:
    if text.lower() not in (*TRUE_TEXTS, *FALSE_TEXTS):
        raise ValueError("yes/no, true/false, t/f, y/n or 1/0")
    return text.lower() in TRUE_TEXTS


def _text(value: object) -> str:
    """A file's number or bool is refused: 007, 1.10 and no have lost how they were written."""
    if not isinstance(value, str):
        raise TypeError("put it in quotes" if isinstance(value, (int, float)) else "")
    return value


def _none_of_text(text: str) -> None:
    if text not in _NONE_TEXTS:
        raise ValueError


ANYTHING: Final = ScalarConverter(object, "anything", str, breadth=9)
"""Texts stay texts, values what they are."""
_NONE: Final = ScalarConverter(NoneType, "None", _none_of_text, breadth=10)

SCALARS: Final[dict[object, Converter]] = {
    Any: ANYTHING,
    object: ANYTHING,
    None: _NONE,
    NoneType: _NONE,
    bool: ScalarConverter(
        bool, "bool", _bool_of_text, lambda value: bool((0, 1).index(value)), takes=int, breadth=4, is_flag=True
    ),
    str: ScalarConverter(str, "str", str, _text, takes=object, breadth=9),
    **{
        kind: ScalarConverter(
            kind, kind.__name__, kind, partial(_number, kind), takes=takes, breadth=breadth, explains=False
        )
        for breadth, (kind, takes) in enumerate(_NUMBERS.items(), 1)
    },
    **{
        kind: ScalarConverter(kind, name, partial(kind, encoding="utf-8"), kind, takes=(bytes, bytearray), breadth=8)
        for kind, name in ((bytes, "bytes"), (bytearray, "bytearray"))
    },
}
"""Those of types that stand for themselves."""


class ChoiceConverter(Converter):
    """One of a Literal's values or an Enum's members: itself, its value, that value's text, or a member's name."""

    kind = object

    def __init__(self, values: Collection[object], members: Mapping[str, Enum] | None = None, name: str = "") -> None:
        self.values = values
        self._members = {one.name: one for one in values if isinstance(one, Enum)} | dict(members or {})
        self.has_members = members is not None
        self.description = name + one_of(values)
        self.metavar = choices_metavar(values)

    def is_exact(self, value: object) -> bool:
        """Whether the value is one of them, type and all."""
        return any(_same(choice, value) for choice in self.values)

    def _parse(self, text: str) -> Any:
        for value in self.values:
            if text == _choice_text(value):
                return value
        if text in self._members:
            return self._members[text]
        raise refuse(text, self.description)

    def _take(self, value: Any) -> Any:
        for choice in self.values:
            if _same(choice, value) or (isinstance(choice, Enum) and _same(choice.value, value)):
                return choice
        raise refuse(value, self.description)


def one_of(values: Collection[object]) -> str:
    """Name the choices, as a message does."""
    return "one of " + ", ".join(map(_choice_text, values))


def choices_metavar(values: Collection[object]) -> str | None:
    """Name the choices as a usage does, unless there are too many."""
    return "{" + ",".join(map(_choice_text, values)) + "}" if len(values) <= _MOST_CHOICES_SHOWN else None


def _choice_text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _same(choice: object, value: object) -> bool:
    """Whether they are equal and of one type: 1, 1.0 and True are three choices."""
    return type(choice) is type(value) and choice == value


class JsonConverter(Converter):
    """What one text gives as JSON."""

    breadth = 5
    json_kind: type = dict
    """The outermost value's type: list or dict."""

    def _parse(self, text: str) -> Any:
        try:
            value = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise refuse(text, self.description, f"not valid JSON: {error}") from None
        if not isinstance(value, self.json_kind):
            raise refuse(text, self.description, "the JSON is of another kind")
        return self._take(value)


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    for key in given_twice(key for key, _ in pairs):
        raise ValueError(f"{key!r} is given twice")
    return dict(pairs)


def given_twice(keys: Iterable[Any]) -> list[Any]:
    """Return the keys that are there more than once."""
    return [key for key, count in Counter(keys).items() if count > 1]


class ArrayConverter(JsonConverter):
    """A list, set, frozenset or tuple, of one type or each element of its own: several texts, or an array."""

    json_kind = list

    def __init__(self, kind: Callable[[list[Any]], Any], items: Sequence[Converter], *, repeated: bool = True) -> None:
        self.kind: Any = kind
        self._items = items
        self._repeated = repeated
        listed = ", ".join(item.description for item in items)
        self.description = f"{self.kind.__name__} of {listed if repeated else f'({listed})'}"
        self.nargs = "*" if repeated or not items else len(items)
        self.metavar = items[0].metavar if repeated else None

    def _parse_several(self, texts: Sequence[str]) -> Any:
        return self._made([item.from_text for item in self._one_for_each(texts)], texts)

    def _take(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple, self.kind)):
            raise refuse(value, self.description)
        return self._made([item.from_value for item in self._one_for_each(value)], value)

    def _one_for_each(self, values: Collection[object]) -> Sequence[Converter]:
        return [self._items[0]] * len(values) if self._repeated else self._items

    def _made(self, conversions: Sequence[Callable[[Any], Any]], values: Collection[object]) -> Any:
        if len(values) != len(conversions):
            raise refuse(values, self.description, f"{len(values)} values for {len(conversions)}")
        pairs = enumerate(zip(conversions, values, strict=True))
        return self.kind([_at(f"element {index}", convert, value) for index, (convert, value) in pairs])


class MappingConverter(JsonConverter):
    """A dict: JSON on a command line, where keys that are not texts are converted from them."""

    kind = dict
    metavar = "JSON"

    def __init__(self, key: Converter, item: Converter) -> None:
        self._key, self._item = key, item
        self.description = "dict" if item is ANYTHING else f"dict of {key.description} to {item.description}"

    def _take(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise refuse(value, self.description)
        return {
            _at(f"key {key!r}", self._key.from_value, key): _at(f"key {key!r}", self._item.from_value, item)
            for key, item in value.items()
        }


class UnionConverter(Converter):
    """Several types. A text: members that take few texts are tried first, so str comes last. A value: its own type."""

    kind = object

    def __init__(self, members: Sequence[Converter]) -> None:
        self._members = sorted(members, key=lambda member: member.breadth)
        self.description = " or ".join(member.description for member in members)
        present = [member for member in self._members if member.kind is not NoneType]
        self.breadth = max(member.breadth for member in present)
        self.is_flag = any(member.is_flag for member in present)
        self.has_members = any(member.has_members for member in present)
        self._only = present[0] if len(present) == 1 else None
        several = any(member.nargs is not None for member in present)
        self.nargs = self._only.nargs if self._only else "*" if several else None
        self.metavar = self._only.metavar if self._only else None

    def is_exact(self, value: object) -> bool:
        """Whether the value is of one of the types."""
        return any(member.is_exact(value) for member in self._members)

    def _parse(self, text: str) -> Any:
        return self._first([member.from_text for member in self._members], text)

    def _parse_several(self, texts: Sequence[str]) -> Any:
        if self.nargs is None:
            return super()._parse_several(texts)
        # One text is a single value if it can be one; and it is an array of one before it is None.
        ordered = sorted(self._members, key=lambda member: (member.kind is NoneType, member.nargs is not None))
        return self._first([member.from_texts for member in ordered], texts)

    def _take(self, value: Any) -> Any:
        # A file's value says its own type: "3" stays a text for int | str, though a command line's 3 is an int.
        exact = [member for member in self._members if member.is_exact(value)]
        return self._first([member.from_value for member in [*exact, *self._members]], value)

    def _first(self, conversions: Sequence[Callable[[Any], Any]], value: object) -> Any:
        errors = []
        for convert in conversions:
            try:
                return convert(value)
            except ConversionError as error:
                errors.append(error)
        # Of an Optional, what is wrong with the value says more than that it is not None either.
        raise errors[0] if self._only else refuse(value, self.description)


def _at(where: str, convert: Callable[[Any], Any], value: object) -> Any:
    try:
        return convert(value)
    except ConversionError as error:
        raise ConversionError(f"{where}: {error}") from None
