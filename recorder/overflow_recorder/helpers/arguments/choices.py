"""Converters of one value out of several: Literal, Enum and a field's ``choices``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from overflow_recorder.helpers.arguments.converter import Converter, refuse

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


_MOST_CHOICES_SHOWN = 12


class LiteralConverter(Converter):
    """One of a Literal's values: the value itself, or its text."""

    kind = object

    def __init__(self, values: Sequence[object]) -> None:
        self.values = values
        self.description = _one_of(values)
        self.metavar = _metavar(values)

    def is_exact(self, value: object) -> bool:
        """Whether the value is one of them, type and all."""
        return any(_same(choice, value) for choice in self.values)

    def _parse(self, text: str) -> Any:
        for value in self.values:
            if text in (_text(value), value.name if isinstance(value, Enum) else None):
                return value
        raise refuse(text, self.description)

    def _take(self, value: Any) -> Any:
        if self.is_exact(value):
            return value
        raise refuse(value, self.description)


class EnumConverter(Converter):
    """A member of an Enum, by value and else by name; always the member, never its bare value."""

    def __init__(self, kind: type[Enum]) -> None:
        self.kind = kind
        self._members = dict(kind.__members__)  # aliases too
        values = [member.value for member in kind]
        self.description = f"{kind.__name__}, {_one_of(values)}"
        self.metavar = _metavar(values)

    def _parse(self, text: str) -> Any:
        for member in self._members.values():
            if text == _text(member):
                return member
        if text in self._members:
            return self._members[text]
        raise refuse(text, self.description)

    def _take(self, value: Any) -> Any:
        for member in self._members.values():
            if value is member or _same(member.value, value):
                return member
        raise refuse(value, self.description)


class ChoicesConverter(Converter):
    """Another converter whose result, or each element of it, must be among a field's ``choices``."""

    def __init__(self, inner: Converter, choices: Collection[object]) -> None:
        self.inner = inner
        self.choices = choices
        self.kind = inner.kind
        self.description = f"{inner.description}, {_one_of(choices)}"
        self.breadth, self.nargs, self.is_flag = inner.breadth, inner.nargs, inner.is_flag
        self.metavar = _metavar(choices)

    def is_exact(self, value: object) -> bool:
        """Whether the value is of the type, its choices aside."""
        return self.inner.is_exact(value)

    def _parse(self, text: str) -> Any:
        return self._checked(self.inner.from_text(text))

    def _take(self, value: Any) -> Any:
        return self._checked(self.inner.from_value(value))

    def _parse_several(self, tokens: Sequence[str]) -> Any:
        return self._checked(self.inner.from_tokens(tokens))

    def _checked(self, value: Any) -> Any:
        several = isinstance(value, (list, tuple, set, frozenset))
        for element in value if several else (value,):
            # None is an Optional's "not given", as a default may be though it is no choice.
            if element is not None and not any(choice == element for choice in self.choices):
                raise refuse(element, _one_of(self.choices))
        return value


def _text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _same(choice: object, value: object) -> bool:
    """Whether they are equal and of one type: 1, 1.0 and True are three choices."""
    return type(choice) is type(value) and choice == value


def _one_of(values: Collection[object]) -> str:
    return "one of " + ", ".join(_text(value) for value in values)


def _metavar(values: Collection[object]) -> str | None:
    return "{" + ",".join(_text(value) for value in values) + "}" if len(values) <= _MOST_CHOICES_SHOWN else None
