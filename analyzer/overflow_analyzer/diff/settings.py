"""Settings of modules that are not the same in two runs: eps 1e-05 in A and 0.001 in B."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from overflow_analyzer.diff.align.wrappers import strip_wrappers, wrapper_chains
from overflow_analyzer.diff.model import SettingDifference
from overflow_analyzer.format.modules import SettingChange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from overflow_analyzer.diff.align.plan import RankPair
    from overflow_analyzer.diff.model import Divergence, ModulePair
    from overflow_analyzer.format.modules import Modules, ModuleSettings
    from overflow_analyzer.trace.rank_trace import RankTrace


_IN_THE_ROWS: Final = frozenset({"dtypes", "devices"})
"""What the rows say of each tensor."""
_UNSEEN_ENDS: Final = frozenset({"killed", "still running", "unknown"})
"""Ends at which no recorder looked at the modules again."""
_SCRIPT: Final = "__main__."


def setting_differences(
    ranks: Iterable[RankPair], pairs: Iterable[ModulePair], *, offset: int, batch: int | None = None
) -> tuple[SettingDifference, ...]:
    """Return the settings that differ, each once, in the order of A's modules.

    Args:
        ranks: The ranks of both runs to look at.
        pairs: The modules that were matched; modules without a frame match by name.
        offset: Batch N of A is batch N + offset of B.
        batch: Only as they were in this batch of A.
    """
    found: dict[tuple[str, SettingChange], SettingDifference] = {}
    matched = {pair.a: pair.b for pair in pairs}
    for a, b in ranks:
        if a.modules is None or b.modules is None:
            continue
        until = min(_looked_until(a), _looked_until(b) - offset)
        moments = [one for one in _moments(a.modules, b.modules, offset) if one[0] <= until]
        for number, after in moments if batch is None else [(batch, None)]:
            in_a, in_b = a.modules.at(number), b.modules.at(number + offset)
            for name, other in _counterparts(in_a, in_b, matched):
                for change in _changes(in_a[name], in_b[other], in_a.get(""), in_b.get("")):
                    # What changes as both run, such as a count of calls, differs at their ends as their lengths do.
                    runs = ((a.modules, name), (b.modules, other))
                    if after is None or not all(_varies(*run, change.setting) for run in runs):
                        difference = SettingDifference(name, other, in_a[name].class_name, *change, number, after)
                        found.setdefault((name, change), difference)
    return tuple(found.values())


def settings_of(
    divergence: Divergence, settings: Iterable[SettingDifference], called: Iterable[str]
) -> tuple[SettingDifference, ...]:
    """Return the settings that may have made a module diverge: its own, and those of modules in it without a frame.

    Args:
        divergence: With its module.
        settings: All that differ.
        called: Names of A's modules that have frames.
    """
    name, with_frames = divergence.module_name, frozenset(called)
    return tuple(
        one
        for one in settings
        if (one.after is None or one.after < divergence.batch_number)
        and (
            one.module_name == name
            or (one.module_name.startswith(f"{name}." if name else "") and one.module_name not in with_frames)
        )
    )


def _looked_until(rank: RankTrace) -> float:
    """Return the batch up to which a run's modules are known."""
    states = () if rank.modules is None else rank.modules.states
    return float(states[-1].batch_number) if states and rank.ended in _UNSEEN_ENDS else math.inf


def _varies(modules: Modules, name: str, setting: str) -> bool:
    """Whether a setting of a module changed during a run."""
    seen = (one for state in modules.states for one in state.modules if one.name == name)
    return len({one.values.get(setting) for one in seen}) > 1


def _moments(a: Modules, b: Modules, offset: int) -> list[tuple[int, int | None]]:
    """Return the batches, in A's numbers, from which on something is another way, each with the last look before it."""
    moments: dict[int, int | None] = {}
    for modules, shift in ((a, 0), (b, -offset)):
        for state in modules.states:
            number, after = state.batch_number + shift, None if state.after is None else state.after + shift
            known = moments.get(number)
            moments[number] = after if known is None else max(known, known if after is None else after)
    ordered = sorted(moments.items())
    return [(number, after if place else None) for place, (number, after) in enumerate(ordered)]


def _counterparts(
    a: Mapping[str, ModuleSettings], b: Mapping[str, ModuleSettings], matched: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    unmatched = b.keys() - set(matched.values())
    by_stripped = {stripped: chain[-1] for stripped, chain in wrapper_chains(unmatched).items()}
    for name in a:
        other = matched.get(name)
        if other is None:
            other = name if name in unmatched else by_stripped.get(strip_wrappers(name))
        if other is not None and other in b:
            yield name, other


def _changes(
    a: ModuleSettings, b: ModuleSettings, root_a: ModuleSettings | None, root_b: ModuleSettings | None
) -> Iterator[SettingChange]:
    for change in a.changes_to(b):
        is_same_script = a.class_name == b.class_name and _SCRIPT in (a.module_class[:9], b.module_class[:9])
        if change.setting not in _IN_THE_ROWS and not (change.setting == "class" and is_same_script):
            yield change
    # Of the model as a whole each frame's phase says it.
    alone = [root is not None and one.training != root.training for one, root in ((a, root_a), (b, root_b))]
    if alone[0] != alone[1]:
        yield SettingChange("training", str(a.training), str(b.training))
