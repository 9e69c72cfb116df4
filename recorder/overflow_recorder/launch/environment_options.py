"""The options that ``OVERFLOW_RECORD_*`` variables give, for who cannot change a command line."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from overflow_recorder.helpers.arguments.fields import Argument, arguments_of, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


PREFIX: Final = "OVERFLOW_RECORD_"


def environment_options(kinds: Iterable[type], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that variables give to dataclasses' fields; an empty variable is none.

    The variable of a field ``max_bytes`` is ``OVERFLOW_RECORD_MAX_BYTES``. Its text is what would stand behind the
    option: where that takes several values, they are split and quoted as a shell does.

    Args:
        kinds: The dataclasses.
        environment: Such as ``os.environ``.

    Returns:
        Field name -> converted value.

    Raises:
        ValueError: A variable with the prefix is no field's, or its text is not of the field's type.
    """
    known = {f"{PREFIX}{argument.name.upper()}": argument for kind in kinds for argument in arguments_of(kind)}
    given = {name: text for name, text in environment.items() if name.startswith(PREFIX) and text}
    for name in given:
        if name not in known:
            raise ValueError(f"the environment variable {name} is no option's{did_you_mean(name, known)}")
    return {known[name].name: _converted(name, known[name], text) for name, text in given.items()}


def _converted(name: str, argument: Argument, text: str) -> Any:
    label, converter = f"the environment variable {name}", argument.converter
    try:
        texts = [text] if converter.nargs is None else shlex.split(text)
    except ValueError as error:  # a quotation is not closed
        raise ValueError(f"{label}: {error}") from None
    return argument.convert(converter.from_texts, texts, label)
