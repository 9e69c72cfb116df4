"""Trainings whose disk fails in some way; called by name in ``tests.crew``."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import resource
import shutil
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from overflow_recorder import TraceRecorder
from overflow_recorder.storage import directory as directory_room
from tests.integration.runs import make_model, make_the_ring_small, wait_as_long_as_it_takes

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES = 30
FAULT_AT = 8
"""The batch before which a disk fails, unless it fails at the start."""
_SLOW_SECONDS = 0.3


def digest_of(*tensors: torch.Tensor) -> str:
    """The bits of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()


def train(path: str, options: dict[str, Any] | None, fault: str, kind: str, action: str) -> None:
    """Train with dropout, with a fault before the first batch or in the middle; print the bits of all that came out.

    ``options`` are the recorder's, None for none; ``kind`` is the error's name in ``errno``; ``action`` is what is done
    with warnings.
    """
    warnings.simplefilter(action)  # type: ignore[arg-type]
    make_the_ring_small()
    if fault != "slow":
        wait_as_long_as_it_takes()
    model = torch.nn.Sequential(make_model(), torch.nn.Dropout(0.5))
    velocities = [torch.zeros_like(parameter) for parameter in model.parameters()]
    losses = []
    if fault.startswith("at the start"):
        FAULTS[fault](path, kind)
    with contextlib.nullcontext() if options is None else TraceRecorder(model, path, **options) as recorder:
        for batch in range(BATCHES):
            if batch == FAULT_AT and not fault.startswith("at the start"):
                FAULTS[fault](path, kind)
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            _step(model, velocities)
            losses.append(loss)
            if recorder is not None:
                recorder.record(f"loss of batch {batch}", loss=loss)  # whose name is new
    print("RESULT", digest_of(*losses, *model.state_dict().values(), torch.get_rng_state()))


def _step(model: torch.nn.Module, velocities: list[torch.Tensor]) -> None:
    """Gradient descent with momentum by hand: torch's own imports its compiler first, which takes seconds."""
    with torch.no_grad():
        for parameter, velocity in zip(model.parameters(), velocities, strict=True):
            velocity.mul_(0.9).add_(parameter.grad)  # type: ignore[arg-type]
            parameter.sub_(0.1 * velocity)
            parameter.grad = None


def record_many(path: str, options: dict[str, Any], batches: int) -> None:
    """Record so many batches, more than a small disk has room for."""
    warnings.simplefilter("always")
    make_the_ring_small()
    wait_as_long_as_it_takes()
    model = make_model()
    with TraceRecorder(model, path, **options), torch.no_grad():
        for batch in range(batches):
            model(torch.full((2, 8), batch / 100))
    print("RESULT")


def _failing(room: Any, name: str, kind: str) -> None:
    """From now on a function fails; a path's own, since Python 3.10's paths have taken those of ``os`` before."""
    number = getattr(errno, kind)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    setattr(room, name, fail)


def _fail_writes(_: str, kind: str) -> None:
    """Files can be opened, but nothing be written to them."""
    number = getattr(errno, kind)
    opened = io.open

    class Failing(io.FileIO):
        def write(self, _: Any) -> int:
            raise OSError(number, os.strerror(number))

    def failing_open(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        return Failing(file, "w") if mode == "wb" else opened(file, mode, *arguments, **keywords)

    io.open = failing_open


def _slow_down(*_: str) -> None:
    """Every flush takes its time."""
    flush = os.fsync

    def slowly(descriptor: int) -> None:
        time.sleep(_SLOW_SECONDS)
        flush(descriptor)

    os.fsync = slowly  # type: ignore[assignment]


def _limit_files(*_: str) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


FAULTS: dict[str, Callable[[str, str], Any]] = {
    "none": lambda *_: None,
    "slow": _slow_down,
    "fsync fails": lambda _, kind: _failing(os, "fsync", kind),
    "rename fails": lambda _, kind: _failing(Path, "replace", kind),
    "names cannot be written": lambda _, kind: _failing(os, "write", kind),
    "writing fails": _fail_writes,
    "the directory is removed": lambda path, _: shutil.rmtree(path),
    "files may be no larger": _limit_files,
    "at the start no directory can be made": lambda _, kind: _failing(Path, "mkdir", kind),
    "at the start the ring finds no room": lambda _, kind: _failing(os, "posix_fallocate", kind),
    "at the start nothing can be claimed": lambda _, kind: _failing(directory_room, "claim", kind),
    "at the start files may be no larger": _limit_files,
}
