"""Arguments from files: JSON, YAML, and files of command-line texts."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_json(path: str | os.PathLike[str]) -> Mapping[str, object]:
    """Return the JSON object in a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not JSON, or not an object.
    """
    try:
        content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: not valid JSON: {error}") from None
    return _checked(content, path)


def read_yaml(path: str | os.PathLike[str]) -> Mapping[str, object]:
    """Return the mapping in a YAML file; an empty file is an empty mapping.

    Raises:
        ImportError: PyYAML is not installed.
        OSError: The file cannot be read.
        ValueError: It is not YAML, or not a mapping.
    """
    try:
        import yaml
    except ImportError as error:
        raise ImportError("reading YAML needs PyYAML: pip install 'overflow-trace[yaml]'") from error
    try:
        content: Any = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{os.fspath(path)}: not valid YAML: {error}") from None
    return _checked({} if content is None else content, path)


def read_args_file(path: str | os.PathLike[str]) -> list[str]:
    """Return the texts in a file, split and quoted as a shell does (without comments and expansions).

    Raises:
        OSError: It cannot be read.
        ValueError: A quotation is not closed.
    """
    try:
        return shlex.split(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def script_args_file() -> Path | None:
    """The ``.args`` file beside the running script and named like it, if there is one."""
    script = Path(sys.argv[0]) if sys.argv else Path()
    if not script.name:  # an interactive session
        return None
    path = script.with_suffix(".args")
    return path if path.is_file() else None


def _checked(content: object, path: str | os.PathLike[str]) -> Mapping[str, object]:
    if not isinstance(content, dict):
        # A ValueError: it is what the file holds that is wrong, not what the caller passed.
        raise ValueError(  # noqa: TRY004
            f"{os.fspath(path)}: expected names with values, got a {type(content).__name__}"
        )
    return content
