"""Names out of a trace are data: nothing in them may act on a terminal or a page."""

from __future__ import annotations

import unicodedata

# Control, format (bidirectional overrides, zero width), surrogate, private use, unassigned, separators of lines.
_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def escape(text: str) -> str:
    r"""Return ``text`` with every character that could act on a terminal written as a Python escape (``\x1b``).

    Printable characters of every script stay as they are; a stream that cannot show them escapes them itself.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode("ascii") if unicodedata.category(one) in _ACTIVE else one for one in text
    )
