"""Patterns of intended infinities: MODULE:CONTEXT with ``*`` and ``?``; brackets are literal, contexts have them."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from overflow_analyzer.format.patterns import regular_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def ignoring(patterns: Iterable[str]) -> Callable[[str, str], bool]:
    """Return what answers whether a module's context is one where infinities are intended.

    Args:
        patterns: ``MODULE:CONTEXT`` each, such as ``*.attention:input[mask]`` or ``*:output``. A module's name is what
            ``named_modules()`` gives it, so the root is the empty name.
    """
    pattern = re.compile("|".join(map(regular_expression, patterns)) or r"(?!)", re.DOTALL)

    @functools.lru_cache(maxsize=1 << 16)
    def is_ignored(module_name: str, context: str) -> bool:
        return pattern.fullmatch(f"{module_name}:{context}") is not None

    return is_ignored
