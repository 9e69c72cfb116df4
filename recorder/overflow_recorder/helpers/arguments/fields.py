"""A dataclass as its fields: name, type hint, default, help; and a dataclass made of values."""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import inspect
import os
import sys
import types
import typing
from collections import abc
from collections.abc import Collection, Mapping
from dataclasses import MISSING, InitVar, dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

from overflow_recorder.helpers.arguments import converters
from overflow_recorder.helpers.arguments.converters import ConversionError, Converter, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


GROUP_ATTRIBUTE = "_argument_group_name"
"""The attribute of a dataclass that names its argparse group; never an argument, annotated or not."""

_ARRAYS: dict[Any, Any] = {
    **{kind: kind for kind in (list, set, frozenset, tuple)},
    **dict.fromkeys((abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable), list),
    **dict.fromkeys((abc.Set, abc.MutableSet), set),
}
_MAPPINGS = (dict, abc.Mapping, abc.MutableMapping)
# A str would make containers of its characters, and classes of nothing that was meant.
_NOT_MADE_FROM_TEXT = (
    *(type, types.FunctionType, memoryview, range, slice),
    *(list, tuple, dict, set, frozenset, collections.deque),
)


@dataclass(frozen=True)
class Argument:
    """One field of a dataclass, as an argument."""

    owner: type
    """The dataclass."""
    name: str
    converter: Converter
    choices: Collection[object] | None
    """What the value, or each element of it, must be among."""
    default: Any
    """``dataclasses.MISSING`` where there is none, or only a factory."""
    default_factory: Callable[[], Any] | None
    help: str | None
    aliases: tuple[str, ...]
    metavar: str | None

    @property
    def label(self) -> str:
        """How messages name it."""
        return f"{self.owner.__name__}.{self.name}"

    @property
    def has_default(self) -> bool:
        """Whether the dataclass can be made without it."""
        return self.default is not MISSING or self.default_factory is not None

    def convert(self, conversion: Callable[[Any], Any], value: object, label: str | None = None) -> Any:
        """Return ``conversion(value)``; what it refuses is raised with the label, or the name of class and field."""
        try:
            made = conversion(value)
            for element in made if isinstance(made, (list, tuple, set, frozenset)) else (made,):
                # None is an Optional's "not given", as a default may be though it is no choice.
                if self.choices is not None and element is not None and all(one != element for one in self.choices):
                    raise refuse(element, converters.one_of(self.choices))
        except ConversionError as error:
            raise ConversionError(f"{label or self.label}: {error}") from None
        return made


@functools.cache
def arguments_of(owner: type) -> tuple[Argument, ...]:
    """Return the arguments of a dataclass: what its ``__init__`` takes, in order, an ``InitVar`` too.

    Raises:
        TypeError: A field's annotation cannot be resolved, or its type cannot be made from text.
        ValueError: A text that is the default of an Enum is none of its members.
    """
    fields: Iterable[Any] = vars(owner)["__dataclass_fields__"].values()
    class_variable = dataclasses._FIELD_CLASSVAR  # type: ignore[attr-defined]
    given = (field for field in fields if field.init and field._field_type is not class_variable)
    return tuple(_argument(owner, field) for field in given if field.name != GROUP_ATTRIBUTE)


def build(owner: type, values: Mapping[str, object]) -> Any:
    """Make the dataclass of a mapping's values, each converted; other keys are not looked at.

    Raises:
        ConversionError: A value is not of its field's type, or one without a default is missing.
    """
    made = {}
    for argument in arguments_of(owner):
        if argument.name in values:
            made[argument.name] = argument.convert(argument.converter.from_value, values[argument.name])
        elif argument.default is not MISSING:
            made[argument.name] = argument.default
        elif argument.default_factory is None:
            raise ConversionError(f"{argument.label}: missing, and it has no default")
    return owner(**made)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the most similar known word, or nothing."""
    similar = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {similar[0]}?)" if similar else ""


class RecordConverter(converters.JsonConverter):
    """A dataclass inside another: a JSON object."""

    metavar = "JSON"

    def __init__(self, kind: type) -> None:
        # Its own arguments are looked up only when needed: a dataclass may contain itself.
        self.kind = kind
        self.description = kind.__name__

    def _take(self, value: Any) -> Any:
        if isinstance(value, self.kind):
            return value
        if not isinstance(value, Mapping):
            raise refuse(value, self.description)
        names = [argument.name for argument in arguments_of(self.kind)]
        for key in value:
            if key not in names:
                raise ConversionError(f"{self.description} has no field {key!r}{did_you_mean(str(key), names)}")
        return build(self.kind, value)


def _argument(owner: type, field: dataclasses.Field[Any]) -> Argument:
    label = f"{owner.__name__}.{field.name}"
    hint = _resolved(owner, field, label)
    known = {**_annotated_metadata(hint), **field.metadata}
    try:
        converter = _converter_for(hint)
    except TypeError as error:
        raise TypeError(f"{label}: {error}") from None
    choices, aliases, shown = known.get("choices"), known.get("aliases", ()), known.get("metavar")
    if not isinstance(choices, Collection) or isinstance(choices, str):
        choices = None
    if not isinstance(shown, str):
        shown = converter.metavar if choices is None else converters.choices_metavar(choices)
    default = field.default
    if converter.has_members and isinstance(default, str) and not converter.is_exact(default):
        try:
            default = converter.from_value(default)
        except ConversionError as error:
            raise ValueError(f"{label}: its default: {error}") from None
    return Argument(
        owner=owner,
        name=field.name,
        converter=converter,
        choices=choices,
        default=default,
        default_factory=None if field.default_factory is MISSING else field.default_factory,
        help=known["help"] if isinstance(known.get("help"), str) else None,
        aliases=(aliases,) if isinstance(aliases, str) else tuple(aliases),
        metavar=shown,
    )


def _resolved(owner: type, field: dataclasses.Field[Any], label: str) -> Any:
    """The field's type hint, evaluated where its class was defined."""
    bases = [base for base in owner.__mro__ if vars(base).get("__dataclass_fields__", {}).get(field.name) is field]
    home = bases[-1]  # inherited fields are the same objects: the last base that has it wrote the annotation
    # Not field.type where it can be helped: transformers' parser overwrites that with what is left of a Union.
    annotation = vars(home).get("__annotations__", {}).get(field.name, field.type)
    if field._field_type is dataclasses._FIELD_INITVAR:  # type: ignore[attr-defined]
        inner = annotation.partition("[")[2].rpartition("]")[0] if isinstance(annotation, str) else annotation
        annotation = (inner.type if isinstance(inner, InitVar) else inner) or Any
    holder = type("holder", (), {"__annotations__": {field.name: annotation}})
    module = vars(sys.modules[home.__module__]) if home.__module__ in sys.modules else {}
    # The module's names come before the class's, as in typing.get_type_hints: a field may be called what its type is.
    outer, inner = dict(vars(home)), {home.__name__: home, **module}
    try:
        return typing.get_type_hints(holder, outer, inner, include_extras=True)[field.name]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise TypeError(
            f"{label}: the annotation {annotation!r} cannot be resolved ({error}). A postponed annotation is looked "
            f"up in the module {home.__module__}: define what it names there, not in a function nor under "
            "`if TYPE_CHECKING:`, or remove `from __future__ import annotations`"
        ) from None


def _annotated_metadata(hint: Any) -> dict[str, Any]:
    """What ``Annotated`` says of a field: a mapping like a field's metadata, a text or a Doc as its help."""
    found: dict[str, Any] = {}
    extras = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    for extra in extras:
        text = extra if isinstance(extra, str) else getattr(extra, "documentation", None)
        if isinstance(text, str):
            found["help"] = text
        elif isinstance(extra, Mapping):
            found.update(extra)
    return found


def _converter_for(hint: Any) -> Converter:
    """Return the converter of a type hint, or raise a TypeError that names the type no text can make."""
    hint = _unwrapped(hint)
    if isinstance(hint, abc.Hashable) and hint in converters.SCALARS:
        return converters.SCALARS[hint]
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Literal:
        return converters.ChoiceConverter(arguments)
    if origin in (Union, types.UnionType):
        return converters.UnionConverter([_converter_for(member) for member in arguments])
    if origin in _MAPPINGS:
        return converters.MappingConverter(*map(_converter_for, arguments or (Any, Any)))
    if origin in _ARRAYS:
        return _array_converter(hint, origin, arguments)
    return _class_converter(hint, origin)


def _class_converter(hint: Any, origin: Any) -> Converter:
    if isinstance(origin, type):
        if issubclass(origin, Enum):
            return converters.ChoiceConverter(list(origin), origin.__members__, f"{origin.__name__}, ")
        if issubclass(origin, PurePath) or origin is os.PathLike:
            return converters.path(origin)
        if dataclasses.is_dataclass(origin):
            return RecordConverter(origin)
        special = inspect.isabstract(origin) or typing.is_typeddict(origin) or getattr(origin, "_is_protocol", False)
        if not special and not issubclass(origin, _NOT_MADE_FROM_TEXT):
            return converters.instance(origin)
    raise TypeError(
        f"values of type {hint!r} cannot be made from text; choose a type that can, or leave the field out of the "
        "arguments with field(init=False)"
    )


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


def _array_converter(hint: Any, origin: Any, arguments: tuple[Any, ...]) -> Converter:
    kind = _ARRAYS[origin]
    bare = hint in (origin, typing.Tuple) or not (arguments or kind is tuple)  # noqa: UP006 - as users write it
    if kind is tuple and not bare and arguments[1:] != (Ellipsis,):
        return converters.ArrayConverter(tuple, list(map(_converter_for, arguments)), repeated=False)
    return converters.ArrayConverter(kind, [_converter_for(Any if bare else arguments[0])])
