"""Which module of B is which module of A: decided once for all names, before any row is compared."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overflow_analyzer.diff.align.wrappers import strip_wrappers, wrapper_chains
from overflow_analyzer.diff.model import ModulePair, Pass
from overflow_analyzer.errors import NotRecordedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from overflow_analyzer.diff.align.renames import Rename

    Sequencer = Callable[[Mapping[str, str], Collection[str], Collection[str]], Mapping[str, str]]


@dataclass(frozen=True)
class ModuleMatches:
    """The outcome: every name of both sides is in exactly one of these."""

    pairs: tuple[ModulePair, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    wrappers_a: tuple[str, ...]
    wrappers_b: tuple[str, ...]


def match_modules(
    a: Mapping[str, str], b: Mapping[str, str], renames: Sequence[Rename], sequencer: Sequencer
) -> ModuleMatches:
    """Match the modules of two runs.

    Args:
        a: Name -> class of A's modules, in order of first call.
        b: Of B's.
        renames: The user's rules, asked before everything else.
        sequencer: Matches names that no name explains, given those matched so far and those free on each side.

    Raises:
        NotRecordedError: A rule that names no module of one of the runs.
    """
    matching = _Matching(a, b)
    matching.by_rules(renames)
    matching.by_name()
    matching.by_sequence(sequencer)
    return matching.finish()


class _Matching:
    def __init__(self, a: Mapping[str, str], b: Mapping[str, str]) -> None:
        self._a, self._b = a, b
        self._pairs: dict[str, tuple[str, Pass]] = {}
        self._used_b: set[str] = set()
        self._other_class: dict[str, str] = {}
        """Pairs by name whose classes differ: taken only if nothing better is found for either."""
        self._wrappers_a: dict[str, None] = {}
        self._wrappers_b: dict[str, None] = {}

    def by_rules(self, renames: Sequence[Rename]) -> None:
        stripped_b = {stripped: chain[-1] for stripped, chain in wrapper_chains(self._b).items()}
        in_a, in_b = set(), set()
        for name, rename in itertools.product(self._a, renames):
            # "*=model.*" turns the root's empty name into "model.", meaning "model".
            targets = [rename.apply(one) for one in (name, strip_wrappers(name))]
            wanted = [target.strip(".") for target in targets if target is not None]
            wrapped = [stripped_b[target] for target in wanted if target in stripped_b]
            found = [target for target in (*wanted, *wrapped) if target in self._b]
            if wanted:
                in_a.add(rename)
            if found:
                in_b.add(rename)
                self._pair(name, found[0], "map")  # a module that has a counterpart keeps it: the first rule counts
        for rename in renames:
            if rename not in in_b:
                run, name = ("B", rename.b) if rename in in_a else ("A", rename.a)
                raise NotRecordedError(f"--map {rename.a}={rename.b}: {run} has no module called {name or '(root)'}")

    def by_name(self) -> None:
        chains_a, chains_b = wrapper_chains(self._free_a()), wrapper_chains(self._free_b())
        for stripped in [one for one in chains_a if one in chains_b]:
            self._match_chains(chains_a[stripped], chains_b[stripped])
        # Names that are no chain, as ``fc`` and ``module.fc`` in one model, are matched as they stand.
        free_b = self._free_b()
        for name in self._free_a():
            if name in free_b and name not in self._other_class:
                self._by_name_and_class(name, name)

    def _match_chains(self, a: tuple[str, ...], b: tuple[str, ...]) -> None:
        if a == b:
            for name in a:
                self._by_name_and_class(name, name)
            return
        self._by_name_and_class(a[-1], b[-1])
        for name in a[:-1]:
            if name in b[:-1] and self._a[name] == self._b[name]:
                self._pair(name, name, "exact")
        self._wrappers_a |= {name: None for name in a[:-1] if name not in self._pairs}
        self._wrappers_b |= {name: None for name in b[:-1] if name not in self._used_b}

    def _by_name_and_class(self, a: str, b: str) -> None:
        if self._a[a] == self._b[b]:
            self._pair(a, b, "exact" if a == b else "wrapper")
        else:
            self._other_class[a] = b

    def by_sequence(self, sequencer: Sequencer) -> None:
        free_a, free_b = self._free_a(), self._free_b()
        if free_a and free_b:
            matched = {name: pair[0] for name, pair in self._pairs.items()}
            for name, other in sequencer(matched, free_a, free_b).items():
                self._pair(name, other, "sequence")
        for name, other in self._other_class.items():
            if name not in self._pairs and other not in self._used_b:
                self._pair(name, other, "class")

    def finish(self) -> ModuleMatches:
        return ModuleMatches(
            pairs=tuple(ModulePair(name, *self._pairs[name]) for name in self._a if name in self._pairs),
            only_a=tuple(self._free_a()),
            only_b=tuple(self._free_b()),
            wrappers_a=tuple(self._wrappers_a),
            wrappers_b=tuple(self._wrappers_b),
        )

    def _pair(self, a: str, b: str, matched_by: Pass) -> None:
        if a not in self._pairs and b not in self._used_b:
            self._pairs[a] = (b, matched_by)
            self._used_b.add(b)

    def _free_a(self) -> dict[str, None]:
        return {name: None for name in self._a if name not in self._pairs and name not in self._wrappers_a}

    def _free_b(self) -> dict[str, None]:
        return {name: None for name in self._b if name not in self._used_b and name not in self._wrappers_b}
