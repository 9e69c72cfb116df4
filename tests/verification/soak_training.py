"""A tiny training that records and dies when its plan says; called by name in ``tests.crew``."""

from __future__ import annotations

import itertools
import os
import random
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Final

import torch

from overflow_recorder import TraceRecorder
from tests.integration.runs import (
    ENDINGS,
    Seen,
    count_frames,
    input_of,
    make_model,
    make_the_ring_small,
    wait_as_long_as_it_takes,
)

__all__ = ["EVENTS", "batches_file", "train"]

EVENTS: Final = {
    "sealing": ("open", "os.rename"),
    "removing": ("os.remove",),
    "closing": ("open", "os.rename", "os.remove"),
}
"""What the interpreter tells of before it does it, of files in the trace: there a process may be told to die."""
_MOST_SECONDS: Final = 0.002  # that the other thread goes on for before a process dies


class Death:
    """Ends the process at the n-th frame, or before the n-th time that something is done to the trace's files.

    Args:
        plan: Its ``moment``, ``at`` (n) and ``ending``.
        path: The trace.
    """

    def __init__(self, plan: dict[str, Any], path: str) -> None:
        self._moment, self._at, self._ending = plan["moment"], plan["at"], plan["ending"]
        self._path = path
        self._left = itertools.count()
        self._random = random.Random(self._at)
        self.closing = False
        if self._moment in EVENTS:
            sys.addaudithook(self._told)

    def frame(self, *_: object) -> None:
        """A frame's hook has returned."""
        if self._moment == "recording" and next(self._left) == self._at:
            ENDINGS[self._ending]()

    def _told(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS[self._moment] or not self._concerns(str(arguments[0])):
            return
        if next(self._left) == self._at:
            time.sleep(self._random.random() * _MOST_SECONDS)
            ENDINGS[self._ending]()

    def _concerns(self, name: str) -> bool:
        if self._moment == "closing":
            return self.closing and name.startswith(self._path)
        return name.startswith(self._path) and "part-" in Path(name).name


def batches_file(seen: str | Path) -> Path:
    """The file that counts batches, beside the one that counts frames."""
    return Path(f"{seen}.batches")


def train(path: str, seen: str, plan: dict[str, Any]) -> None:
    """Record so many batches, each with a backward and a step, and close; or die before that.

    Args:
        path: The trace.
        seen: A file that counts the frames whose hook has returned; a second one counts batches.
        plan: ``options`` of the recorder, ``batches``, and when and how to die.
    """
    warnings.simplefilter("error")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    make_the_ring_small()
    wait_as_long_as_it_takes()  # nothing gives way to a part that is being sealed
    model, frames, batches = make_model(), Seen(seen), Seen(batches_file(seen))
    optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
    death = Death(plan, path)
    with TraceRecorder(model, path, **plan["options"]):
        count_frames(model, frames)
        for module in model.modules():
            module.register_forward_hook(death.frame)
        for batch in range(plan["batches"]):
            optimizer.zero_grad()
            model(input_of(batch % 5)).square().mean().backward()
            optimizer.step()
            batches.frames = batch + 1
        death.closing = True
    os._exit(0)
