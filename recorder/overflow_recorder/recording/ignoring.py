"""Patterns of intended infinities: MODULE:CONTEXT with ``*`` and ``?``; brackets are literal, contexts have them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from overflow_analyzer.format.patterns import regular_expression

if TYPE_CHECKING:
    from collections.abc import Iterable


class IgnorePatterns:
    """Answers whether a module's context is one where infinities are intended.

    Args:
        patterns: ``MODULE:CONTEXT`` each, such as ``*.attention:input[mask]`` or ``*:output``. A module's name is what
            ``named_modules()`` gives it, so the root is the empty name.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._pattern = re.compile("|".join(map(regular_expression, patterns)) or r"(?!)", re.DOTALL)
        self._answers: dict[tuple[str, str], bool] = {}

    def __call__(self, module_name: str, context: str) -> bool:
        """Whether any pattern matches the whole of both."""
        key = (module_name, context)
        found = self._answers.get(key)
        if found is None:
            found = self._pattern.fullmatch(f"{module_name}:{context}") is not None
            if len(self._answers) < 1 << 16:
                self._answers[key] = found
        return found
