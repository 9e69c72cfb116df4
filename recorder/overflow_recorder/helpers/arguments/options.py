"""From an argument to argparse's options."""

from __future__ import annotations

import argparse
import re
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from overflow_recorder.helpers.arguments.converter import ConversionError
from overflow_recorder.helpers.arguments.scalars import BoolConverter

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from overflow_recorder.helpers.arguments.fields import Argument


_PERCENT = re.compile(r"%%|%\((?:default|prog|dest|metavar|type|choices|const|nargs|required)\)s|%")
"""argparse formats help texts with %: what is meant for it, and any other percent sign."""


class ArgumentAction(argparse.Action):
    """Converts an option's texts; a wrong one is a usage error that names class and field."""

    def __init__(self, *, argument: Argument, **options: Any) -> None:
        super().__init__(**options)
        self.argument = argument
        self._made: object = None

    def refresh_default(self) -> None:
        """Make a default factory's value anew, so that two results never share it; ``set_defaults`` stays."""
        factory = self.argument.default_factory
        if factory is not None and self.default is self._made:
            self._made = self.default = factory()

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Put the converted value into the namespace."""
        try:
            setattr(namespace, self.dest, self._converted(values))
        except ConversionError as error:
            raise argparse.ArgumentError(self, str(error)) from None

    def _converted(self, values: Any) -> Any:
        if values is self.const or (values == [] and self.argument.converter.is_flag):
            return True  # the option stood alone
        if isinstance(values, str):
            return self.argument.convert(self.argument.converter.from_text, values)
        return self.argument.convert(self.argument.converter.from_tokens, values)


_UNMATCHED = object()
"""The const of a flag: what argparse passes where the option stood alone."""


def add_options(group: argparse._ActionsContainer, argument: Argument, taken: Collection[str]) -> None:
    """Add an argument's options to a parser or group: ``--some_name``, ``--some-name``, aliases, ``--no_some_name``.

    Args:
        group: Where to.
        argument: The argument.
        taken: Names of arguments, which no negative form may shadow.

    Raises:
        ValueError: Another argument has one of the options.
    """
    name, converter = argument.name, argument.converter
    is_required = not argument.has_default and not converter.is_flag
    try:
        action = group.add_argument(
            *_spellings(name),
            *argument.aliases,
            action=ArgumentAction,
            argument=argument,
            dest=name,
            nargs="?" if converter.is_flag and converter.nargs is None else converter.nargs,
            const=_UNMATCHED,
            required=is_required,
            default=argparse.SUPPRESS if is_required else _default(argument),
            metavar=argument.metavar,
            help=_escaped(argument.help),
        )
        if isinstance(action, ArgumentAction):  # as it is: for mypy
            action.refresh_default()
        if converter.is_flag and f"no_{name}" not in taken:
            group.add_argument(
                *_spellings(f"no_{name}"),
                dest=name,
                action="store_false",
                default=argparse.SUPPRESS,
                help=f"the same as --{name} False",
            )
    except (argparse.ArgumentError, ValueError) as error:
        raise ValueError(f"{argument.label}: {error}") from None


def _spellings(name: str) -> list[str]:
    hyphened = name.replace("_", "-") if not name.startswith("_") else name
    return [f"--{name}"] if hyphened == name else [f"--{name}", f"--{hyphened}"]


def _default(argument: Argument) -> Any:
    """The default that argparse shows and sets; a plain bool without one is False, an Optional bool None."""
    if argument.default is not MISSING:
        return argument.default
    if argument.default_factory is not None:
        return None  # refresh_default makes it
    return False if isinstance(argument.converter, BoolConverter) else None


def _escaped(text: str | None) -> str | None:
    """A help text with its own percent signs as argparse wants them; ``%(default)s`` keeps its meaning."""
    return None if text is None else _PERCENT.sub(lambda found: "%%" if found[0] == "%" else found[0], text)
