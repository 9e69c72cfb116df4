"""The lines that replay a run: its seeds as a call, its command as a shell would take it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from overflow_analyzer.text.escape import escape

if TYPE_CHECKING:
    from overflow_analyzer.format.run_info import RunInfo


_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*", re.ASCII)


def seed_call(run: RunInfo) -> str | None:
    """Return the Python call that sets a run's seeds again, or None where none were set.

    What is no seed in a damaged or foreign trace is not repeated.
    """
    seeds = run.seeds or {}
    seed = seeds.get("seed")
    if type(seed) is not int:
        return None
    if seeds.get("full_determinism") is True:
        return f"enable_full_determinism({seed}{', warn_only=True' if seeds.get('warn_only') is True else ''})"
    return f"set_seed({seed}{', deterministic=True' if seeds.get('deterministic') is True else ''})"


def replay_command(run: RunInfo) -> str | None:
    """Return the shell line that starts a run again, with the environment its seeds need; None if it is not known.

    Every word is quoted, so that pasting the line starts Python and nothing else.
    """
    if not run.command:
        return None
    environment = (run.seeds or {}).get("environment")
    variables = environment if isinstance(environment, dict) else {}
    settings = [
        f"{name}={shlex.quote(escape(value))}"
        for name, value in variables.items()
        if _VARIABLE.fullmatch(name) and isinstance(value, str)
    ]
    return " ".join([*settings, "python", *(shlex.quote(escape(word)) for word in run.command)])
