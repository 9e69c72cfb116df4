"""``encoder.*=model.encoder.*``: what the user says about modules that are called differently in the two runs."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from overflow_analyzer.format.patterns import regular_expression


@dataclass(frozen=True)
class Rename:
    """A rule that gives a module's name in B for one in A.

    ``*`` stands for any characters and ``?`` for one; all else, brackets too, is literal. The n-th wildcard of the
    right side is what the n-th of the left side stood for.
    """

    a: str
    b: str

    @classmethod
    def parse(cls, rule: str) -> Rename:
        """Parse ``A=B``.

        Raises:
            ValueError: No ``=``, more than one, nothing on either side of it, or a right side with other wildcards than
                the left one.
        """
        a, equals, b = rule.partition("=")
        if not equals or "=" in b or not (a or b):
            raise ValueError(f"{rule!r} is not a rule: write A=B, as in 'encoder.*=model.encoder.*'")
        if re.findall(r"[*?]", a) != re.findall(r"[*?]", b):
            raise ValueError(f"{rule!r}: both sides need the same wildcards in the same order")
        return cls(a, b)

    def apply(self, name: str) -> str | None:
        """Return the name in B of a module called ``name`` in A; None where the rule is about others."""
        found = re.fullmatch(regular_expression(self.a), name, re.DOTALL)
        if found is None:
            return None
        literals = re.split(r"[*?]", self.b)
        parts = itertools.zip_longest(literals, found.groups(), fillvalue="")
        return "".join(itertools.chain.from_iterable(parts))

    def reversed(self) -> Rename:
        """Return the same rule for the runs the other way round."""
        return Rename(self.b, self.a)
