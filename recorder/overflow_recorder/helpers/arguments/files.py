"""Arguments from files: JSON, YAML, and files of command-line texts."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overflow_recorder.helpers.arguments.converters import given_twice

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_json(path: str | os.PathLike[str], labels: Mapping[str, str]) -> Mapping[str, object]:
    """Return the JSON object in a file; ``labels`` is how messages name the fields.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not JSON, not an object, or an object in it has two values for a key.
    """
    twice: list[tuple[object, str]] = []

    def collect(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        twice.extend((made, key) for key in given_twice(key for key, _ in pairs))
        return made

    try:
        content = json.loads(_read(path), object_pairs_hook=collect)
        for owner, key in twice:
            raise _two_values(key, labels if owner is content else {})
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: not valid JSON: {error}") from None
    return _checked(content, path)


def read_yaml(path: str | os.PathLike[str], labels: Mapping[str, str]) -> Mapping[str, object]:
    """Return the mapping in a YAML file, empty for an empty file; ``labels`` is how messages name the fields.

    Raises:
        ImportError: PyYAML is not installed.
        OSError: The file cannot be read.
        ValueError: It is not YAML, not a mapping, or a mapping in it has two values for a key.
    """
    try:
        import yaml
    except ImportError as error:
        raise ImportError("reading YAML needs PyYAML: pip install 'overflow-trace[yaml]'") from error

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_mapping_node(self, anchor: Any) -> Any:
            self.depth += 1
            node = super().compose_mapping_node(anchor)
            self.depth -= 1
            for _, key in given_twice((key.tag, key.value) for key, _ in node.value if isinstance(key.value, str)):
                if key != "<<":  # both are merged
                    raise _two_values(key, {} if self.depth else labels)
            return node

    try:
        content: Any = yaml.load(_read(path), Loader)  # noqa: S506  it is a SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)}: not valid YAML: {error}") from None
    return _checked({} if content is None else content, path)


def read_args_file(path: str | os.PathLike[str]) -> list[str]:
    """Return the texts in a file, split, quoted and commented as in a shell, without expansions.

    Raises:
        OSError: It cannot be read.
        ValueError: A quotation is not closed.
    """
    try:
        lexer = _ShellLexer(_read(path), posix=True)
        lexer.whitespace_split = True
        return list(lexer)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def script_args_file() -> Path | None:
    """The ``.args`` file beside the running script and named like it, if there is one."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    path = script.with_suffix(".args") if script.name else script  # no name: an interactive session
    return path if path.is_file() else None


class _ShellLexer(shlex.shlex):
    # In a shell # begins a comment at the start of a word alone; shlex would cut a#b.
    commenters = property(lambda self: "#" if self.state == " " else "", lambda *_: None)


def _read(path: str | os.PathLike[str]) -> str:
    return Path(path).read_text(encoding="utf-8-sig")  # editors on Windows put a mark before the first character


def _two_values(key: str, labels: Mapping[str, str]) -> ValueError:
    return ValueError(f"{labels.get(key, repr(key))} is given twice")


def _checked(content: object, path: str | os.PathLike[str]) -> Mapping[str, object]:
    if not isinstance(content, dict):
        # A ValueError: it is what the file holds that is wrong, not what the caller passed.
        raise ValueError(  # noqa: TRY004
            f"{os.fspath(path)}: expected names with values, got a {type(content).__name__}"
        )
    return content
