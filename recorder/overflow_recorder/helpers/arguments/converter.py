"""What a type hint becomes: a converter, from a command line's texts and from a file's values."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


_SHOWN_LENGTH = 80


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

    def from_text(self, text: str) -> Any:
        """Convert one text of a command line."""
        return self._parse(text)

    def from_tokens(self, tokens: Sequence[str]) -> Any:
        """Convert all texts given to one option."""
        return self._parse_several(tokens)

    def from_value(self, value: object) -> Any:
        """Convert what a JSON or YAML file, or a Python caller, gave; a text that is not the type is parsed."""
        if isinstance(value, str) and not self.is_exact(value):
            return self._parse(value)
        return self._take(value)

    def is_exact(self, value: object) -> bool:
        """Whether the value is of the type already, its elements aside."""
        return isinstance(value, self.kind)

    @abstractmethod
    def _parse(self, text: str) -> Any: ...

    @abstractmethod
    def _take(self, value: Any) -> Any:
        """Convert a value that is exact, or no text."""

    def _parse_several(self, tokens: Sequence[str]) -> Any:
        if len(tokens) != 1:
            raise ConversionError(f"expected one value, got {len(tokens)}")
        return self._parse(tokens[0])


def refuse(value: object, description: str, hint: str = "") -> ConversionError:
    """Return the error that says what was wrong, the value shortened."""
    shown = repr(value)
    if len(shown) > _SHOWN_LENGTH:
        shown = f"{shown[:_SHOWN_LENGTH]}..."
    kind = "" if isinstance(value, str) else f" ({type(value).__name__})"
    return ConversionError(f"expected {description}, got {shown}{kind}{hint and '; ' + hint}")


def from_json(text: str, kind: type, description: str) -> Any:
    """Parse JSON text whose outermost value must be of ``kind`` (list or dict)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(text, description, f"not valid JSON: {error}") from None
    if not isinstance(value, kind):
        raise refuse(text, description, "the JSON is of another kind")
    return value
