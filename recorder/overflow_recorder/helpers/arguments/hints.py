"""From a type hint to its converter: the one place that knows which types there are."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import os
import types
import typing
from collections import abc
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from overflow_recorder.helpers.arguments.choices import EnumConverter, LiteralConverter
from overflow_recorder.helpers.arguments.containers import (
    ListConverter,
    MappingConverter,
    TupleConverter,
    UnionConverter,
)
from overflow_recorder.helpers.arguments.scalars import (
    AnythingConverter,
    BoolConverter,
    BytesConverter,
    ClassConverter,
    NoneConverter,
    NumberConverter,
    PathConverter,
    TextConverter,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from overflow_recorder.helpers.arguments.converter import Converter


_ARRAYS: dict[object, Any] = {
    list: list,
    set: set,
    frozenset: frozenset,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    abc.Set: set,
    abc.MutableSet: set,
}
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
_SCALARS: dict[object, Callable[[], Converter]] = {
    Any: AnythingConverter,
    object: AnythingConverter,
    None: NoneConverter,
    type(None): NoneConverter,
    bool: BoolConverter,
    str: TextConverter,
    int: lambda: NumberConverter(int),
    float: lambda: NumberConverter(float),
    complex: lambda: NumberConverter(complex),
    bytes: lambda: BytesConverter(bytes),
    bytearray: lambda: BytesConverter(bytearray),
}
# A str would make containers of its characters, and classes of nothing that was meant.
_NOT_MADE_FROM_TEXT = (
    type,
    types.FunctionType,
    memoryview,
    range,
    slice,
    list,
    tuple,
    dict,
    set,
    frozenset,
    collections.deque,
)


def converter_for(hint: Any, record: Callable[[type], Converter]) -> Converter:
    """Return the converter of a type hint.

    Args:
        hint: A resolved hint, as ``typing.get_type_hints`` gives it.
        record: Makes the converter of a dataclass.

    Raises:
        TypeError: Values of this type cannot be made from text; the message names the type.
    """
    hint = _unwrapped(hint)
    if isinstance(hint, abc.Hashable) and hint in _SCALARS:
        return _SCALARS[hint]()
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Literal:
        return LiteralConverter(arguments)
    if origin in (Union, types.UnionType):
        return UnionConverter([converter_for(member, record) for member in arguments])
    if origin in (*_ARRAYS, *_MAPPINGS, tuple):
        return _container_converter(hint, origin, arguments, record)
    return _class_converter(hint, origin, record)


def _unwrapped(hint: Any) -> Any:
    """What Annotated, Final, NewType and ``type`` statements stand for."""
    while True:
        if typing.get_origin(hint) in (Annotated, typing.Final):
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint


def _container_converter(
    hint: Any, origin: Any, arguments: tuple[Any, ...], record: Callable[[type], Converter]
) -> Converter:
    if origin in _MAPPINGS:
        key, item = arguments or (Any, Any)
        return MappingConverter(converter_for(key, record), converter_for(item, record))
    kind = _ARRAYS.get(origin, tuple)
    if hint is origin or hint is typing.Tuple or not (arguments or kind is tuple):  # noqa: UP006 - as users write it
        return ListConverter(kind, AnythingConverter())
    if kind is tuple and arguments[1:] != (Ellipsis,):
        return TupleConverter([converter_for(argument, record) for argument in arguments])
    return ListConverter(kind, converter_for(arguments[0], record))


def _class_converter(hint: Any, origin: Any, record: Callable[[type], Converter]) -> Converter:
    if isinstance(origin, type):
        if issubclass(origin, Enum):
            return EnumConverter(origin)
        if issubclass(origin, PurePath) or origin is os.PathLike:
            return PathConverter(origin)
        if dataclasses.is_dataclass(origin):
            return record(origin)
        if _is_made_from_text(origin):
            return ClassConverter(origin)
    raise TypeError(
        f"values of type {hint!r} cannot be made from text; choose a type that can, or leave the field out of the "
        "arguments with field(init=False)"
    )


def _is_made_from_text(kind: type) -> bool:
    special = inspect.isabstract(kind) or typing.is_typeddict(kind) or getattr(kind, "_is_protocol", False)
    return not special and not issubclass(kind, _NOT_MADE_FROM_TEXT)
