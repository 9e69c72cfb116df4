"""The same training twice, the second time under a recorder that looks at everything: does any bit differ?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from overflow_recorder import TraceRecorder
from tests.integration.trainings import make, train
from tests.recorder.recordings import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

    from tests.integration.trainings import Setting

__all__ = ["first_change"]


def first_change(
    path: Path, name: str, setting: Setting, steps: int, wrap: Callable[[nn.Module], nn.Module] | None = None
) -> str | None:
    """Return the name of the first thing that differs; None if losses, weights and all the rest are the same bits.

    Args:
        path: Of the trace.
        name: Of the model.
        setting: How it is trained.
        steps: Of the optimizer.
        wrap: Makes what is called in the model's place.
    """
    model = make(name, setting)
    plain = train(model, setting, steps, wrap and wrap(model))

    model = make(name, setting)
    called = wrap(model) if wrap else model
    options = {"every_n_batches": 7, "on_nonfinite": "ignore", "roles": EVERYTHING, "statistics": "full"}
    with TraceRecorder(called, path, **options):  # type: ignore[arg-type]
        recorded = train(model, setting, steps, called)

    assert len(plain) > steps
    if plain.keys() != recorded.keys():
        return f"what there is: {sorted(plain.keys() ^ recorded.keys())}"
    return next((one for one in plain if not torch.equal(plain[one], recorded[one])), None)
