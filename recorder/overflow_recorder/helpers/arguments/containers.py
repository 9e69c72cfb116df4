"""Converters made of converters: lists and sets, tuples, dicts and Unions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from overflow_recorder.helpers.arguments.converter import ConversionError, Converter, from_json, refuse
from overflow_recorder.helpers.arguments.scalars import AnythingConverter, NoneConverter


class ListConverter(Converter):
    """A list, set, frozenset or homogeneous tuple: several texts, or an array."""

    breadth = 5
    nargs = "*"

    def __init__(self, kind: type[list[Any] | set[Any] | frozenset[Any] | tuple[Any, ...]], item: Converter) -> None:
        self.kind = kind
        self.item = item
        self.description = f"{kind.__name__} of {item.description}"
        self.metavar = item.metavar

    def _parse(self, text: str) -> Any:
        return self._take(from_json(text, list, self.description))

    def _parse_several(self, tokens: Sequence[str]) -> Any:
        return self._made(self.item.from_text, tokens)

    def _take(self, value: Any) -> Any:
        if not (isinstance(value, (list, tuple)) or self.is_exact(value)):
            raise refuse(value, self.description)
        return self._made(self.item.from_value, value)

    def _made(self, convert: Callable[[Any], Any], values: Iterable[object]) -> Any:
        return self.kind([_at(f"element {index}", convert, value) for index, value in enumerate(values)])


class TupleConverter(Converter):
    """A tuple of so many elements, each of its own type."""

    kind = tuple
    breadth = 5

    def __init__(self, items: Sequence[Converter]) -> None:
        self.items = items
        self.description = f"tuple of ({', '.join(item.description for item in items)})"
        self.nargs = len(items) or "*"

    def _parse(self, text: str) -> tuple[Any, ...]:
        return self._take(from_json(text, list, self.description))

    def _parse_several(self, tokens: Sequence[str]) -> tuple[Any, ...]:
        return self._made([item.from_text for item in self.items], tokens)

    def _take(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise refuse(value, self.description)
        return self._made([item.from_value for item in self.items], value)

    def _made(self, conversions: Sequence[Callable[[Any], Any]], values: Sequence[object]) -> tuple[Any, ...]:
        if len(values) != len(conversions):
            raise refuse(values, self.description, f"{len(values)} values for {len(conversions)}")
        pairs = enumerate(zip(conversions, values, strict=True))
        return tuple(_at(f"element {index}", convert, value) for index, (convert, value) in pairs)


class MappingConverter(Converter):
    """A dict: JSON on a command line, where keys that are not texts are converted from them."""

    kind = dict
    breadth = 5
    metavar = "JSON"

    def __init__(self, key: Converter, item: Converter) -> None:
        self.key = key
        self.item = item
        anything = isinstance(item, AnythingConverter)
        self.description = "dict" if anything else f"dict of {key.description} to {item.description}"

    def _parse(self, text: str) -> dict[Any, Any]:
        return self._take(from_json(text, dict, self.description))

    def _take(self, value: Any) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise refuse(value, self.description)
        return {
            _at(f"key {key!r}", self.key.from_value, key): _at(f"key {key!r}", self.item.from_value, item)
            for key, item in value.items()
        }


class UnionConverter(Converter):
    """Several types. A text: members that take few texts are tried first, so str comes last. A value: its own type."""

    kind = object

    def __init__(self, members: Sequence[Converter]) -> None:
        self.members = sorted(members, key=lambda member: member.breadth)
        self.description = " or ".join(member.description for member in members)
        present = [member for member in self.members if not isinstance(member, NoneConverter)]
        self.breadth = max(member.breadth for member in present)
        self.is_flag = any(member.is_flag for member in present)
        self._only = present[0] if len(present) == 1 else None
        several = any(member.nargs is not None for member in present)
        self.nargs = self._only.nargs if self._only else "*" if several else None
        self.metavar = self._only.metavar if self._only else None

    def is_exact(self, value: object) -> bool:
        """Whether the value is of one of the types."""
        return any(member.is_exact(value) for member in self.members)

    def _parse(self, text: str) -> Any:
        return self._first([member.from_text for member in self.members], text)

    def _parse_several(self, tokens: Sequence[str]) -> Any:
        # One text is a single value if it can be one; and it is an array of one before it is None.
        ordered = sorted(self.members, key=lambda member: (isinstance(member, NoneConverter), member.nargs is not None))
        return self._first([member.from_tokens for member in ordered], tokens)

    def _take(self, value: Any) -> Any:
        # A file's value says its own type: "3" stays a text for int | str, though a command line's 3 is an int.
        exact = [member for member in self.members if member.is_exact(value)]
        return self._first([member.from_value for member in [*exact, *self.members]], value)

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
