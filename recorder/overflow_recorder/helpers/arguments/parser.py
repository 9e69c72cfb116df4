"""The parser: argparse with the arguments that dataclasses describe."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from overflow_recorder.helpers.arguments.converters import ConversionError
from overflow_recorder.helpers.arguments.fields import GROUP_ATTRIBUTE, Argument, arguments_of, build, did_you_mean
from overflow_recorder.helpers.arguments.files import read_args_file, read_json, read_yaml, script_args_file

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


_REAL = r"(?:(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:e[+-]?\d+)?|inf(?:inity)?|nan)"
_NEGATIVE_NUMBER = re.compile(rf"-(?:{_REAL}(?:/\d+|j|[+-]{_REAL}?j)?|j)$", re.IGNORECASE)
_PERCENT = re.compile(r"%%|%\((?:default|prog|dest|metavar|type|choices|const|nargs|required)\)s|%")
"""argparse formats help texts with %: what is meant for it, and any other percent sign."""
_UNMATCHED = object()
"""The const of a flag: what argparse passes where the option stood alone."""


class UnrecognizedArgumentsError(SystemExit, ValueError):
    """Arguments that no option takes.

    Uncaught it ends the program as argparse does, with code 2 after the usage; it is a ValueError too, which is what
    code written for the Hugging Face parser catches.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 2


class DataclassArgumentParser(argparse.ArgumentParser):
    """An ``argparse.ArgumentParser`` that makes its arguments from dataclasses' type hints.

    Each field that ``__init__`` takes becomes an option ``--name`` (and ``--some-name`` for ``some_name``); a field
    without default is required. What a field's metadata (or a mapping in ``Annotated``) may hold: ``help``,
    ``aliases`` (one option string or several), ``choices`` and ``metavar``; anything else is somebody else's. A
    dataclass attribute ``_argument_group_name`` puts its options under that title. Options are not abbreviated.

    It stays an argparse parser: arguments added with ``add_argument`` come back as a namespace after the dataclasses.

    Args:
        dataclass_types: A dataclass or several.
        **options: For ``argparse.ArgumentParser``; ``formatter_class`` shows defaults and ``allow_abbrev`` is False
            unless given.

    Raises:
        TypeError: Something is no dataclass; or a field's type cannot be made from text or its annotation not be
            resolved, in which case the message names class and field.
        ValueError: Two dataclasses share a field's name, or an option is taken.

    Example:
        ``(args,) = DataclassArgumentParser(TrainArguments).parse_args_into_dataclasses()``
    """

    def __init__(self, dataclass_types: type | Iterable[type] | None = None, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.ArgumentDefaultsHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)
        # argparse's own pattern takes -1e-4 and -inf for options, and the option before them for one without a value.
        self._negative_number_matcher = _NEGATIVE_NUMBER
        self.dataclass_types = _as_dataclasses(dataclass_types)
        self._arguments: dict[str, Argument] = {}
        for argument in (argument for kind in self.dataclass_types for argument in arguments_of(kind)):
            if argument.name in self._arguments:  # one option cannot fill two fields
                first = self._arguments[argument.name].label
                raise ValueError(f"{argument.label}: {first} has this name already; one of the two must be renamed")
            self._arguments[argument.name] = argument
        groups: dict[str | None, argparse._ArgumentGroup] = {}
        for argument in self._arguments.values():
            title = getattr(argument.owner, GROUP_ATTRIBUTE, None)
            if title is not None and title not in groups:
                groups[title] = self.add_argument_group(title)
            _add_options(groups.get(title, self), argument, self._arguments)

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """Parse command-line texts into the dataclasses.

        Where a thing is given twice the last one holds, in this order: ``args_filename`` or the script's own ``.args``
        file; the files named by ``args_file_flag``, in order; ``args``.

        Args:
            args: The texts; None for ``sys.argv[1:]``.
            return_remaining_strings: Also return what no option takes, instead of refusing it.
            look_for_args_file: Read ``<script>.args`` beside the running script, if there is one (and no
                ``args_filename``).
            args_filename: A file of texts, split and quoted as a shell does.
            args_file_flag: An option such as ``--args_file`` that names such a file; it may be given several times.

        Returns:
            The dataclasses' instances in the constructor's order; then, if there is anything in it, the namespace of
            arguments that were added to the parser; then, if asked for, the list of remaining texts.

        Raises:
            SystemExit: With code 2, after the usage on stderr: wrong, missing or unknown
                (``UnrecognizedArgumentsError``) arguments, or a file named by ``args_file_flag`` that cannot be read.
            OSError: ``args_filename`` cannot be read.
            ValueError: A quotation in it or in the script's file is not closed.
        """
        texts = list(sys.argv[1:] if args is None else args)
        named: list[str] = []
        if args_file_flag is not None:
            named, texts = self._take_named_files(args_file_flag, texts)
        default_file = args_filename or (script_args_file() if look_for_args_file else None)
        before = read_args_file(default_file) if default_file else []
        for action in self._actions:
            if isinstance(action, ArgumentAction):
                action.refresh_default()
        namespace, remaining = self.parse_known_args([*before, *named, *texts])
        if remaining and not return_remaining_strings:
            self._refuse_remaining(remaining)
        outputs = self._from_namespace(namespace)
        return (*outputs, remaining) if return_remaining_strings else outputs

    def parse_dict(self, args: Mapping[str, object], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """Make the dataclasses of a mapping from field names to values, without a command line.

        A value is converted where nothing is lost (a list to a tuple, 3 to 3.0, "steps" to an Enum's member) and else
        refused. Defaults are used as they stand.

        Args:
            args: The values.
            allow_extra_keys: Pass over keys that are no field's name.

        Returns:
            The dataclasses' instances in the constructor's order.

        Raises:
            ValueError: A value is of the wrong type, one without default is missing, or a key is unknown.
        """
        unknown = [str(key) for key in args if key not in self._arguments]
        if unknown and not allow_extra_keys:
            classes = ", ".join(kind.__name__ for kind in self.dataclass_types) or "no dataclass"
            shown = ", ".join(f"{key!r}{did_you_mean(key, self._arguments)}" for key in unknown)
            raise ConversionError(f"not a field of {classes}: {shown}")
        return tuple(build(kind, args) for kind in self.dataclass_types)

    def parse_json_file(self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """As ``parse_dict``, from the object in a JSON file.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not JSON, not an object, or as ``parse_dict``.
        """
        return self._parse_file(json_file, read_json, allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """As ``parse_dict``, from the mapping in a YAML file; needs PyYAML (the extra ``yaml``).

        Raises:
            ImportError: PyYAML is not installed.
            OSError: The file cannot be read.
            ValueError: It is not YAML, not a mapping, or as ``parse_dict``.
        """
        return self._parse_file(yaml_file, read_yaml, allow_extra_keys)

    def _parse_file(
        self, path: str | os.PathLike[str], read: Callable[..., Any], allow_extra_keys: bool
    ) -> tuple[Any, ...]:
        content = read(path, {argument.name: argument.label for argument in self._arguments.values()})
        try:
            return self.parse_dict(content, allow_extra_keys=allow_extra_keys)
        except ConversionError as error:
            raise ValueError(f"{path}: {error}") from None

    def _take_named_files(self, flag: str, texts: list[str]) -> tuple[list[str], list[str]]:
        """Take the flag out of the texts; return the named files' texts, and the texts that are left."""
        finder = argparse.ArgumentParser(prog=self.prog, add_help=False, allow_abbrev=False)
        finder.add_argument(flag, action="append", default=[], dest="files")
        found, rest = finder.parse_known_args(texts)
        try:
            return [text for path in found.files for text in read_args_file(path)], rest
        except (OSError, ValueError) as error:
            self.error(f"argument {flag}: {error}")

    def _refuse_remaining(self, remaining: list[str]) -> None:
        self.print_usage(sys.stderr)
        known = list(self._option_string_actions)
        hints = [did_you_mean(text.partition("=")[0], known) for text in remaining if text.startswith("-")]
        message = f"unrecognized arguments: {' '.join(remaining)}{''.join(hints)}"
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        raise UnrecognizedArgumentsError(message)

    def _from_namespace(self, namespace: argparse.Namespace) -> tuple[Any, ...]:
        """The dataclasses, and what is left in the namespace if anything is."""
        values = vars(namespace)
        outputs = [
            kind(**{one.name: values.pop(one.name) for one in arguments_of(kind) if one.name in values})
            for kind in self.dataclass_types
        ]
        return (*outputs, namespace) if values else tuple(outputs)


def _as_dataclasses(kinds: Any) -> tuple[type, ...]:
    if kinds is None or isinstance(kinds, type) or dataclasses.is_dataclass(kinds):
        kinds = () if kinds is None else (kinds,)
    types = tuple(kinds)
    for kind in types:
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise TypeError(f"expected dataclasses (the classes themselves), got {kind!r}")
    return types


class ArgumentAction(argparse.Action):
    """Converts an option's texts; a wrong one is a usage error that names class and field."""

    def __init__(self, *, argument: Argument, **options: Any) -> None:
        super().__init__(**options)
        self.argument = argument
        self._made: object = self.default  # None where a factory makes it
        self.refresh_default()

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
            setattr(namespace, self.dest, self._converted([values] if isinstance(values, str) else values))
        except ConversionError as error:
            raise argparse.ArgumentError(self, str(error)) from None

    def _converted(self, texts: Any) -> Any:
        if texts is self.const or (texts == [] and self.argument.converter.is_flag):
            return True  # the option stood alone
        return self.argument.convert(self.argument.converter.from_texts, texts)


def _add_options(group: argparse._ActionsContainer, argument: Argument, taken: Collection[str]) -> None:
    """Add ``--some_name``, ``--some-name``, aliases, and ``--no_some_name`` where no argument has that name."""
    name, converter = argument.name, argument.converter
    default = (False if converter.kind is bool else None) if argument.default is MISSING else argument.default
    is_required = not argument.has_default and not converter.is_flag
    try:
        group.add_argument(
            *_spellings(name),
            *argument.aliases,
            action=ArgumentAction,
            argument=argument,
            dest=name,
            nargs="?" if converter.is_flag and converter.nargs is None else converter.nargs,
            const=_UNMATCHED,
            required=is_required,
            default=argparse.SUPPRESS if is_required else default,
            metavar=argument.metavar,
            help=argument.help and _PERCENT.sub(lambda found: "%%" if found[0] == "%" else found[0], argument.help),
        )
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


def _spellings(name: str) -> Iterable[str]:
    hyphened = name if name.startswith("_") else name.replace("_", "-")
    return dict.fromkeys([f"--{name}", f"--{hyphened}"])
