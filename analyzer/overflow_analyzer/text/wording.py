"""Small pieces of sentences."""

from __future__ import annotations


def counted(number: int, thing: str, things: str | None = None) -> str:
    """Return a number with its noun, as ``1 frame`` and ``3 frames``.

    Args:
        number: How many.
        thing: One of them.
        things: Several; None where an s makes it so.
    """
    return f"{number} {thing}" if number == 1 else f"{number} {things or f'{thing}s'}"
