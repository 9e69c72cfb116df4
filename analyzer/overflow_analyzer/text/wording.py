"""Small pieces of sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def counted(number: int, thing: str, things: str | None = None) -> str:
    """Return a number with its noun, as ``1 frame``, ``3 entries`` and ``2 batches``.

    Args:
        number: How many.
        thing: One of them.
        things: Several; None where the usual ending makes it so.
    """
    if number == 1:
        return f"1 {thing}"
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}es" if thing.endswith("ch") else f"{thing}s"
    return f"{number} {things or plural}"


def nonfinite_counts(nan: int | None, inf: int | None, neginf: int | None = 0) -> str:
    """Return counts of non-finite elements, as ``2 nan, 1 inf``; those that are 0 are left out."""
    return ", ".join(f"{count} {name}" for count, name in ((nan, "nan"), (inf, "inf"), (neginf, "-inf")) if count)


def section_lines(sections: Iterable[tuple[str, Iterable[str]]]) -> list[str]:
    """Return the lines of sections: each title, and what stands under it."""
    return [line for title, items in sections for line in (title, *(f"  {one}" for one in items))]
