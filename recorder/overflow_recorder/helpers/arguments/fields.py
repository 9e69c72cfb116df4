"""A dataclass as its fields: name, converter, default, help; and a dataclass made of values."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import sys
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from overflow_recorder.helpers.arguments.choices import ChoicesConverter
from overflow_recorder.helpers.arguments.converter import ConversionError, Converter, from_json, refuse
from overflow_recorder.helpers.arguments.hints import converter_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


GROUP_ATTRIBUTE = "_argument_group_name"
"""The attribute of a dataclass that names its argparse group; never an argument, annotated or not."""


@dataclass(frozen=True)
class Argument:
    """One field of a dataclass, as an argument."""

    owner: type
    """The dataclass."""
    name: str
    converter: Converter
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

    def convert(self, conversion: Callable[[Any], Any], value: object) -> Any:
        """Return ``conversion(value)``; what it refuses is raised with the name of class and field."""
        try:
            return conversion(value)
        except ConversionError as error:
            raise ConversionError(f"{self.label}: {error}") from None


@functools.cache
def arguments_of(owner: type) -> tuple[Argument, ...]:
    """Return the arguments of a dataclass: its fields that ``__init__`` takes, in order.

    Raises:
        TypeError: A field's annotation cannot be resolved, or its type cannot be made from text.
    """
    fields = (field for field in dataclasses.fields(owner) if field.init and field.name != GROUP_ATTRIBUTE)
    return tuple(_argument(owner, field) for field in fields)


def build(owner: type, values: Mapping[str, object]) -> Any:
    """Make the dataclass of a mapping's values, each converted; other keys are not looked at.

    Raises:
        ConversionError: A value is not of its field's type, or one without a default is missing.
    """
    made = {}
    for argument in arguments_of(owner):
        if argument.name in values:
            made[argument.name] = argument.convert(argument.converter.from_value, values[argument.name])
        elif not argument.has_default:
            raise ConversionError(f"{argument.label}: missing, and it has no default")
    return owner(**made)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the most similar known word, or nothing."""
    similar = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {similar[0]}?)" if similar else ""


class RecordConverter(Converter):
    """A dataclass inside another: a JSON object."""

    breadth = 5
    metavar = "JSON"

    def __init__(self, kind: type) -> None:
        # Its own arguments are looked up only when needed: a dataclass may contain itself.
        self.kind = kind
        self.description = kind.__name__

    def _parse(self, text: str) -> Any:
        return self._take(from_json(text, dict, self.description))

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
        converter = converter_for(hint, RecordConverter)
    except TypeError as error:
        raise TypeError(f"{label}: {error}") from None
    if isinstance(known.get("choices"), Collection) and not isinstance(known["choices"], str):
        converter = ChoicesConverter(converter, known["choices"])
    aliases = known.get("aliases", ())
    return Argument(
        owner=owner,
        name=field.name,
        converter=converter,
        default=field.default,
        default_factory=None if field.default_factory is MISSING else field.default_factory,
        help=known["help"] if isinstance(known.get("help"), str) else None,
        aliases=(aliases,) if isinstance(aliases, str) else tuple(aliases),
        metavar=known["metavar"] if isinstance(known.get("metavar"), str) else converter.metavar,
    )


def _resolved(owner: type, field: dataclasses.Field[Any], label: str) -> Any:
    """The field's type hint, evaluated where its class was defined."""
    bases = [base for base in owner.__mro__ if vars(base).get("__dataclass_fields__", {}).get(field.name) is field]
    home = bases[-1]  # inherited fields are the same objects: the last base that has it wrote the annotation
    # Not field.type where it can be helped: transformers' parser overwrites that with what is left of a Union.
    annotation = vars(home).get("__annotations__", {}).get(field.name, field.type)
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
