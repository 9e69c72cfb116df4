"""What every module of a model is: class, settings, dtypes; looked at where a run starts, changes and ends."""

from __future__ import annotations

import itertools
import json
import time
import types
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn.parameter import is_lazy

from overflow_analyzer.format.modules import Modules, ModuleSettings, ModulesState
from overflow_recorder.faults import describe_error, raised_by_signal_handler, warn
from overflow_recorder.recording.random_states import random_states_kept
from overflow_recorder.statistics.quiet import quiet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from overflow_recorder.storage.storage import Storage


_MOST_LOOKS: Final = 100
_MOST_MODULES: Final = 20_000
_MOST_ATTRIBUTES: Final = 32
_LONGEST_TEXT: Final = 1000
_LONGEST_NAME: Final = 500
_LONGEST_VALUE: Final = 100
_LONGEST_TUPLE: Final = 8
_SECONDS: Final = 1.0
"""What all ``extra_repr`` of a run may take together; once it is spent, none is called any more."""
_SCALARS: Final = (bool, int, float, complex, str, types.NoneType, torch.dtype, torch.device)
_SEQUENCES: Final = (tuple, list, torch.Size)
_FUNCTIONS: Final = (types.FunctionType, types.BuiltinFunctionType)


class ModuleStates:
    """Looks at a model's modules, and writes what it has seen whenever that is new.

    ``extra_repr`` is anybody's code. It may fail, and a random number that it draws is put back. It is not called where
    reading a weight computes it, because that may change buffers.

    Args:
        model: The root.
        storage: Where it goes; nothing is looked at where there is no room for it.
    """

    def __init__(self, model: nn.Module, storage: Storage) -> None:
        self._model, self._storage = model, storage
        self._room = storage.most_modules_bytes
        self._states: list[ModulesState] = []
        self._seen: dict[str, tuple[Any, ...]] = {}
        """By name, what the next look compares."""
        self._seen_in: int | None = None
        self._left_out = self._looks = 0
        self._looking = False
        self._seconds = _SECONDS
        self.is_due = self._room > 0
        """Whether to look at the next begin of a batch, also if the model has the same modules as before."""

    def look(self, batch_number: int) -> None:
        """Look at every module, and write what has changed since the last look.

        Args:
            batch_number: The batch that begins, or in which the run ends.
        """
        if self._room <= 0 or self._looking or self._looks == _MOST_LOOKS:
            return
        self._looking = True
        self._looks += 1
        try:
            if self._see(batch_number):
                self._storage.write_modules(Modules(tuple(self._states), self._left_out))
        except Exception as error:  # a lost side file is no reason to lose the frames too
            if raised_by_signal_handler(error):
                raise
            self._room = 0
            warn(f"the modules' settings are not recorded ({describe_error(error)})")
        finally:
            self._looking = False

    def _see(self, batch_number: int) -> bool:
        """Keep what has changed; says whether anything has."""
        every = dict(self._model.named_modules())
        modules = list(itertools.islice(every.items(), _MOST_MODULES))
        self.is_due = any(_is_uninitialised(module) for _, module in modules)
        asks_others = any(_is_foreign(module) for _, module in modules)
        with quiet(), random_states_kept() if asks_others else nullcontext():
            found = [self._settings(name, module) for name, module in modules]
        compared = {one.name: _compared(one, found[0]) for one in found}
        changed = [one for one in found if compared[one.name] != self._seen.get(one.name)]
        removed = tuple(name for name in self._seen if name not in compared)
        after, self._seen, self._seen_in = self._seen_in, compared, batch_number
        if not changed and not removed:
            return False
        kept = tuple(self._within_room(changed))
        self._left_out += len(changed) - len(kept) + (len(every) - len(modules) if after is None else 0)
        self._states.append(ModulesState(batch_number, after, kept, removed))
        return True

    def _within_room(self, changed: list[ModuleSettings]) -> Iterator[ModuleSettings]:
        for one in changed:
            self._room -= len(json.dumps(vars(one))) + 1
            if self._room <= 0:
                return
            yield one

    def _settings(self, name: str, module: nn.Module) -> ModuleSettings:
        extra_repr = self._extra_repr(name, module)
        tensors = [one for one in (*module._parameters.values(), *module._buffers.values()) if one is not None]
        weights = [one for one in module._parameters.values() if one is not None]
        return ModuleSettings(
            name=_text(name, _LONGEST_NAME),
            module_class=_text(f"{type(module).__module__}.{type(module).__qualname__}", _LONGEST_NAME),
            extra_repr=extra_repr,
            attributes=dict(itertools.islice(_attributes(module, extra_repr or ""), _MOST_ATTRIBUTES)),
            training=module.training is True,
            dtypes=tuple(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in tensors)),
            devices=tuple(dict.fromkeys(str(one.device) for one in tensors)),
            parameters=sum(one.numel() for one in weights if not is_lazy(one)),
        )

    def _extra_repr(self, name: str, module: nn.Module) -> str | None:
        """Ask a module for its settings, as ``print(model)`` does; what it said before once the time is spent."""
        if self._seconds <= 0:
            said_before: str | None = self._seen.get(name, (None, None))[1]
            return said_before
        if "parametrizations" in module._modules and _is_foreign(module):
            return None
        started = time.perf_counter()
        try:
            said = module.extra_repr()
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            return None
        finally:
            self._seconds -= time.perf_counter() - started
        return _text(said, _LONGEST_TEXT) if type(said) is str else None


def _compared(one: ModuleSettings, root: ModuleSettings) -> tuple[Any, ...]:
    """Return what makes a change: not what train() and eval() do to the whole model, which each frame's phase says."""
    same_mode = one.training == root.training
    return one.module_class, one.extra_repr, one.attributes, one.dtypes, one.devices, one.parameters, same_mode


def _is_foreign(module: nn.Module) -> bool:
    """Whether ``extra_repr`` is another's code than torch's."""
    return "extra_repr" in vars(module) or not type(module).extra_repr.__module__.startswith("torch.")


def _is_uninitialised(module: nn.Module) -> bool:
    """Whether its class, too, may become another one in the first forward, as a lazy module's does."""
    return any(one is not None and is_lazy(one) for one in module._parameters.values())


def _attributes(module: nn.Module, extra_repr: str) -> Iterator[tuple[str, str]]:
    """Yield the plain attributes that ``extra_repr`` does not name; reading them runs no code of the module."""
    for name, value in list(vars(module).items()):
        if (
            type(name) is str
            and not name.startswith("_")
            and name != "training"
            and f" {name}=" not in f" {extra_repr}"
        ):
            shown = _shown(value)
            if shown is not None:
                yield _text(name, _LONGEST_VALUE), _text(shown, _LONGEST_VALUE)


def _shown(value: Any) -> str | None:
    kind = type(value)
    if kind in _FUNCTIONS:
        return f"{value.__module__}.{value.__qualname__}" if value.__module__ else value.__qualname__
    if kind in _SEQUENCES and len(value) <= _LONGEST_TUPLE and all(type(item) in _SCALARS for item in value):
        return repr(tuple(map(_short, value)) if kind is not list else list(map(_short, value)))
    return repr(_short(value)) if kind in _SCALARS else None


def _short(value: Any) -> Any:
    """Return a scalar whose text is of a sane length: a long string cut, a number that has no end as its size."""
    if type(value) is str:
        return value[:_LONGEST_VALUE]
    return f"integer of {value.bit_length()} bits" if type(value) is int and value.bit_length() > 1 << 10 else value


def _text(text: str, longest: int) -> str:
    """Return a text as UTF-8 can hold it, cut at a length."""
    if len(text) <= longest and text.isascii():
        return text
    shown = text[: longest + 1].encode("utf-8", "backslashreplace").decode()
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."
