"""Patterns of names: ``*`` stands for any characters and ``?`` for one; all else is literal, brackets too."""

from __future__ import annotations

import re


def regular_expression(pattern: str) -> str:
    """Return the regular expression of a pattern, each wildcard a group; compile it with ``re.DOTALL``."""
    return "".join({"*": "(.*)", "?": "(.)"}.get(character) or re.escape(character) for character in pattern)
