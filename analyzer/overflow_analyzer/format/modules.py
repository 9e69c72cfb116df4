"""``_modules.json``: class and settings of every module, and when they changed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from overflow_analyzer.errors import DamagedTraceError
from overflow_analyzer.format.typed_json import build

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES_FILE: Final = "_modules.json"
MOST_MODULES_BYTES: Final = 1 << 22
"""The most bytes that a recorder writes."""
_VERSION: Final = 1

_NAMED: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*(.*)", re.ASCII | re.DOTALL)
_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "'\""


class SettingChange(NamedTuple):
    """A setting that is another one."""

    setting: str
    """Its name; empty for one that ``extra_repr`` does not name."""
    a: str | None
    """None where there is none of that name."""
    b: str | None

    def __str__(self) -> str:
        """Return it as ``eps 1e-05 -> 0.001``."""
        values = f"{'not set' if self.a is None else self.a} -> {'not set' if self.b is None else self.b}"
        return f"{self.setting} {values}" if self.setting else values


@dataclass(frozen=True)
class ModuleSettings:
    """What one module is."""

    name: str
    """As ``named_modules()`` gives it; empty for the root."""
    module_class: str
    """With its package, as ``torch.nn.modules.normalization.LayerNorm``."""
    extra_repr: str | None
    """What the module says of itself, cut at a length; None where it was not asked or failed."""
    attributes: dict[str, str]
    """Its plain attributes (numbers, texts, tuples of them, functions) that ``extra_repr`` does not name."""
    training: bool
    dtypes: tuple[str, ...]
    """Of its own parameters and buffers, each once."""
    devices: tuple[str, ...]
    parameters: int
    """Elements of its own parameters."""

    @property
    def class_name(self) -> str:
        """The class without its package."""
        return self.module_class.rpartition(".")[2]

    @cached_property
    def values(self) -> dict[str, str]:
        """The settings by name, as ``{"eps": "1e-05"}``; one that ``extra_repr`` does not name has its place, "0"."""
        found: dict[str, str] = {}
        for place, part in enumerate(_parts(self.extra_repr or "")):
            match = _NAMED.fullmatch(part)
            found |= {match[1]: match[2]} if match else {str(place): part}
        return found | self.attributes

    @property
    def text(self) -> str:
        """The settings as ``print(model)`` shows them, and behind them the attributes that say something else."""
        shown = {value for name, value in self.values.items() if name.isdecimal()}
        named = (f"{name}={value}" for name, value in self.attributes.items() if value not in shown)
        return ", ".join(filter(None, [self.extra_repr or "", *named]))

    def changes_to(self, other: ModuleSettings) -> tuple[SettingChange, ...]:
        """Return what is another way there: the class first, then settings, dtypes, devices, elements.

        Where one of the two was not asked for its ``extra_repr``, only what both tell is compared.
        """
        a, b = self.values, other.values
        names = [name for name in (*a, *(name for name in b if name not in a)) if a.get(name) != b.get(name)]
        if self.extra_repr is None or other.extra_repr is None:
            names = [name for name in names if name in a and name in b]
        # What has no name says often again what an attribute says: it counts where nothing else does.
        names = [name for name in names if not name.isdecimal()] or names
        own = (
            ("class", self.module_class, other.module_class),
            *(("" if name.isdecimal() else name, a.get(name), b.get(name)) for name in names),
            ("dtypes", _listed(self.dtypes), _listed(other.dtypes)),
            ("devices", _listed(self.devices), _listed(other.devices)),
            ("parameters", str(self.parameters), str(other.parameters)),
        )
        return tuple(SettingChange(*change) for change in own if change[1] != change[2])

    def number(self, setting: str) -> float | None:
        """Return a setting that is a number; None where it is not there or something else."""
        try:
            return float(self.values[setting])
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True)
class ModulesState:
    """What was another way than before, when the recorder looked."""

    batch_number: int
    """The batch in which it was first seen so: at its begin, or at the end of the run."""
    after: int | None
    """The last batch in which it was seen as it was before; None for the first state."""
    modules: tuple[ModuleSettings, ...]
    """In the first state all modules; then those that are new or different."""
    removed: tuple[str, ...]
    """Names that the model no longer has."""


@dataclass(frozen=True)
class Modules:
    """Every module of a rank's model over its run."""

    states: tuple[ModulesState, ...]
    """In order."""
    left_out: int = 0
    """Modules and changes for which there was no room."""
    version: int = _VERSION

    def at(self, batch: int) -> dict[str, ModuleSettings]:
        """Return the modules by name, in order, as they were in a batch; before the first state as in the first."""
        found: dict[str, ModuleSettings] = {}
        for place, state in enumerate(self.states):
            if place and state.batch_number > batch:
                break
            found |= {one.name: one for one in state.modules}
            for name in state.removed:
                found.pop(name, None)
        return found

    def known_at(self, batch: int) -> dict[str, ModuleSettings]:
        """Return the modules of which nothing can have changed between the looks before and after a batch."""
        found = self.at(batch)
        for state in self.states[1:]:
            if (state.after or 0) < batch < state.batch_number:
                for name in (*state.removed, *(one.name for one in state.modules)):
                    found.pop(name, None)
        return found

    def to_json(self) -> str:
        """Return strict JSON; the keys are the fields' names."""
        return json.dumps(self, default=_fields, separators=(",", ":"), allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: object) -> Modules:
        """Parse ``to_json``'s text; keys that are not known here are left out.

        Args:
            text: What stands in the file.
            where: The file's name, for the message.

        Raises:
            DamagedTraceError: It is not such a text, or of a later version.
        """
        try:
            found = json.loads(text)
            if type(found["version"]) is int and found["version"] != _VERSION:
                raise DamagedTraceError(f"{where}: version {found['version']} is not known here")
            modules: Modules = build(cls, found)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DamagedTraceError(f"{where}: does not describe modules ({type(error).__name__}: {error})") from None
        return modules


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _fields(value: Any) -> dict[str, Any]:
    return {name: item for name, item in vars(value).items() if name != "values"}


def _parts(text: str) -> Iterator[str]:
    """Cut a text at its commas and line ends, but not inside brackets and quotes."""
    part, depth, quote = "", 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in _QUOTES:
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        if character in ",\n" and depth <= 0 and not quote:
            if part.strip():
                yield part.strip()
            part = ""
        else:
            part += character
    if part.strip():
        yield part.strip()
