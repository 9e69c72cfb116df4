"""What a recorder could not see of a run, and why, in sentences: never silently nothing."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, Final

from overflow_recorder.faults import warn
from overflow_recorder.hooks.modules import is_inside

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import nn

    from overflow_recorder.hooks.modules import ModuleHooks


_NAMED: Final = 5
_TRACED: Final = (
    "a forward under torch.jit.trace is neither measured nor counted as a batch: measuring it would become a part of "
    "the graph"
)
_UNSEEN_TRAINING: Final = (
    "no forward in training was seen before an optimizer step: the model is trained where hooks do not run, such as "
    "inside torch.compile"
)
_COMPILED_AROUND: Final = (
    "forwards of the model run inside torch.compile, which leaves hooks out: nothing of them is recorded"
)
_REMEDY: Final = "to record them, set TORCHDYNAMO_DISABLE=1 or do not compile"


class BlindSpots:
    """Knows which modules' hooks have been called, and says what that leaves out.

    Args:
        model: The root.
        hooks: The hooks on it.
    """

    def __init__(self, model: nn.Module, hooks: ModuleHooks) -> None:
        self._model = model
        self._hooks = hooks
        self._looked = False
        self._traced = self._compiled_around = False
        self._unseen_steps = self._steps = 0
        self.warned = False
        """Whether a warning was given."""

    def warn_once(self) -> None:
        """Warn, once, when a batch has gone by: name what hooks do not see, and say what to do about it."""
        if self._looked:
            return
        self._looked = True
        for sentence in (self.never_called(), self._compiled()):
            if sentence is not None:
                self.warned = True
                warn(f"not everything is recorded: {sentence}")

    def warn_of_tracing(self) -> None:
        """Warn, once, that a forward is not recorded because ``torch.jit.trace`` makes a graph of it."""
        if not self._traced:
            self._traced = True
            warn(f"not everything is recorded: {_TRACED}")

    def warn_of_compiling(self) -> None:
        """Warn, once, that ``torch.compile`` runs the whole model without hooks."""
        if not self._compiled_around and not self._any_ran():
            self.warn_once()
        elif not self._compiled_around:
            self.warned = True
            warn(f"not everything is recorded: {_COMPILED_AROUND}; {_REMEDY}")
        self._compiled_around = True

    def count_step(self, *, trained: bool) -> None:
        """Count an optimizer step, and warn, once, of training that was not seen.

        Args:
            trained: Whether a forward in training was seen before it. Before the very first one, the recorder may have
                been attached too late to see any.
        """
        self._steps += 1
        if trained or not self._any_ran():
            return
        self._unseen_steps += 1
        if self._unseen_steps == 1 and not self._compiled_around:
            self.warned = True
            warn(f"not everything is recorded: {_UNSEEN_TRAINING}; {_REMEDY}")

    def never_called(self) -> str | None:
        """Return why no forward was seen at all; None if one was."""
        if self._any_ran():
            return None
        if "" in self._hooks.scripted:
            return "the model is a ScriptModule, which runs without Python"
        if self._traced:
            return _TRACED
        if compiled_regions(self._model):
            return f"no forward of the model was seen: it is compiled, and torch.compile leaves hooks out; {_REMEDY}"
        return (
            "no forward of the model was seen: it was not called, or only inside torch.compile, which leaves hooks "
            f"out; {_REMEDY}"
        )

    def notes(self, *, only_batch: int | None, ran_whole: bool) -> tuple[str, ...]:
        """Return a sentence for everything that is known not to have been seen, for RunInfo; never raises.

        Args:
            only_batch: The number of every frame's batch, where nothing has said where one ends and the next begins.
            ran_whole: False where the root's first forward never returned: what was not called may have had no turn.
        """
        with contextlib.suppress(Exception):
            sentences = [self._compiled(), self._scripted(), self._fused(), self._idle() if ran_whole else None]
            if self._traced:
                sentences.append(_TRACED)
            if self._compiled_around and self._any_ran():
                sentences.append(_COMPILED_AROUND)
            if self._unseen_steps:
                steps = f"before {self._unseen_steps} of {self._steps} optimizer steps"
                sentences.append(_UNSEEN_TRAINING.replace("before an optimizer step", steps))
            if only_batch is not None:
                sentences.append(f"the root's forward was never called, so every frame counts as batch {only_batch}")
            return tuple(sentence for sentence in sentences if sentence is not None)
        return ()

    def _compiled(self) -> str | None:
        regions = self._unseen_regions()
        if not regions or not self._any_ran():
            return None
        names = _list([region.removesuffix("._orig_mod").removesuffix("_orig_mod") for region in regions])
        return (
            f"{names}: compiled by torch.compile, which leaves hooks out, so nothing inside is recorded (measuring "
            f"there would change the numbers); {_REMEDY}"
        )

    def _scripted(self) -> str | None:
        if not self._hooks.scripted:
            return None
        names = _list(self._hooks.scripted)
        return f"{names}: a ScriptModule runs without Python; the modules inside it are not recorded"

    def _fused(self) -> str | None:
        if not self._hooks.fused:
            return None
        return (
            f"{_list(self._hooks.fused)}: in evaluation the layer may run as one fused kernel, which it does not where "
            "a module in it has a hook; so such a call is recorded from outside only"
        )

    def _idle(self) -> str | None:
        regions = self._unseen_regions()
        idle = (one.name for one in self._hooks.hooked.values() if not one.ran and one.parameter_names)
        names = [name for name in idle if not any(is_inside(name, region) for region in regions)]
        if not names or not self._any_ran():
            return None
        return (
            f"{_list(names)}: never called by itself, so its weights are in no frame (unused, used by another module, "
            "or called inside torch.compile)"
        )

    def _any_ran(self, region: str = "") -> bool:
        return any(one.ran for one in self._hooks.hooked.values() if is_inside(one.name, region))

    def _unseen_regions(self) -> list[str]:
        return [region for region in compiled_regions(self._model) if not self._any_ran(region)]


def compiled_regions(model: nn.Module) -> list[str]:
    """Return the names of modules that run compiled, from the outside in, each standing for all that is inside it.

    What ``torch.compile`` returned is a module around the compiled one, and has hooks of its own that are called: the
    region is the one inside. A module compiled in place is the region itself.
    """
    eval_frame: Any = sys.modules.get("torch._dynamo.eval_frame")  # not imported: then nothing is compiled either
    optimized = () if eval_frame is None else eval_frame.OptimizedModule
    regions: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, optimized):
            regions.append(f"{name}._orig_mod" if name else "_orig_mod")
        elif getattr(module, "_compiled_call_impl", None) is not None:
            regions.append(name)
    return [one for one in regions if not any(other != one and is_inside(one, other) for other in regions)]


def _list(names: Collection[str]) -> str:
    listed = ", ".join(name or "the model" for name in sorted(names)[:_NAMED])
    more = len(names) - _NAMED
    return f"{listed} and {more} more" if more > 0 else listed
