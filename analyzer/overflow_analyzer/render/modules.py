"""What every module of a trace is, as text, as Markdown and as what becomes JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.markdown import escape_markdown
from overflow_analyzer.text.tables import Column, render_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from overflow_analyzer.format.modules import Modules, ModuleSettings, ModulesState
    from overflow_analyzer.trace.opening import Trace


_TORCH: Final = "torch.nn.modules."
_COLUMNS: Final = (
    Column("module", lambda one: one.name or "(root)", name=True),
    Column("class", lambda one: one.module_class.removeprefix(_TORCH), name=True),
    Column("settings", lambda one: one.text, name=True),
    Column("mode", lambda one: "train" if one.training else "eval"),
    Column("dtypes", lambda one: ", ".join(one.dtypes)),
    Column("devices", lambda one: ", ".join(one.devices)),
    Column("parameters", lambda one: str(one.parameters or ""), "right"),
)
_CHANGES: Final = (
    Column("seen in batch", lambda one: str(one[0].batch_number), "right"),
    Column("last seen otherwise", lambda one: "" if one[0].after is None else f"batch {one[0].after}"),
    Column("module", lambda one: one[1] or "(root)", name=True),
    Column("change", lambda one: one[2], name=True),
)


def modules_as_json(trace: Trace) -> list[dict[str, Any]]:
    """Return for ``to_json`` what every module is: an object for ranks that have the same modules."""
    return [
        {"ranks": ranks, "states": modules.states, "left_out": modules.left_out} for ranks, modules in _alike(trace)
    ]


def render_modules(trace: Trace, *, markdown: bool = False, width: int | None = None) -> str:
    """Return a table of the modules as they were at first, and one of what changed, ended by a newline.

    Args:
        trace: An open trace.
        markdown: For pasting into an issue.
        width: Columns of the terminal; None where lines may be of any length.
    """
    parts = []
    for ranks, modules in _alike(trace):
        of_ranks = "" if len(ranks) == len(trace.ranks) else f" of {_ranks(ranks)}"
        first = list(modules.states[0].modules) if modules.states else []
        tables = (f"Modules{of_ranks}", _COLUMNS, first), (f"Changes{of_ranks}", _CHANGES, list(_changes(modules)))
        for title, columns, rows in tables:
            if rows:
                heading = f"#### {escape_markdown(title)}\n" if markdown else f"{title}:"
                parts.append(f"{heading}\n{render_table(columns, rows, markdown=markdown, width=width)}")
        if modules.left_out:
            parts.append(f"{modules.left_out} modules or changes are left out: there was no room for them.\n")
    lost = [one.lost_modules for one in trace.ranks if one.lost_modules is not None]
    if not parts and not lost:
        lost = ["the trace does not say what the modules are"]
    return "\n".join([*parts, *(f"{escape_markdown(one) if markdown else escape(one)}\n" for one in lost)])


def _alike(trace: Trace) -> list[tuple[list[int], Modules]]:
    found: list[tuple[list[int], Modules]] = []
    for rank in trace.ranks:
        modules = rank.modules
        if modules is None:
            continue
        ranks = next((ranks for ranks, other in found if other == modules), None)
        if ranks is None:
            found.append(([rank.rank], modules))
        else:
            ranks.append(rank.rank)
    return found


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _changes(modules: Modules) -> Iterator[tuple[ModulesState, str, str]]:
    known: dict[str, ModuleSettings] = {}
    for place, state in enumerate(modules.states):
        if place:
            yield from ((state, one.name, _change(known, one)) for one in state.modules)
            yield from ((state, name, "removed") for name in state.removed)
        known |= {one.name: one for one in state.modules}


def _change(known: Mapping[str, ModuleSettings], one: ModuleSettings) -> str:
    before = known.get(one.name)
    if before is None:
        return f"new: {one.class_name} {one.text}".rstrip()
    changes = ", ".join(map(str, before.changes_to(one)))
    return changes or ("to mode train" if one.training else "to mode eval")
