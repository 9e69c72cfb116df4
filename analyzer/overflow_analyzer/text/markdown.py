"""Markdown for pasting into an issue: whatever a name holds, it shows as that name and acts on nothing."""

from __future__ import annotations

import re

from overflow_analyzer.text.escape import escape

_PLAIN = re.compile(r"[\w.\-:\[\]()/=,+ ]+", re.ASCII)
_ACTIVE = re.compile(r"[\\`*_\[\]<>#|~$&@]")


def escape_markdown(text: str) -> str:
    """Return ``text`` for running Markdown and table cells: markup becomes character references, as ``&#124;``."""
    return _ACTIVE.sub(lambda found: f"&#{ord(found[0])};", escape(text))


def name_span(name: str) -> str:
    """Return a module name, context or class as a code span, or escaped where a code span could not hold it."""
    if _PLAIN.fullmatch(name) and name.strip() == name:
        return f"`{name}`"
    return escape_markdown(name)


def code_block(text: str) -> str:
    """Return ``text`` in a fence longer than any run of backticks in it, ended by a newline."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    body = text.strip("\n")
    return f"{fence}text\n{body}\n{fence}\n"
