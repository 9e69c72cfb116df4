"""With and without the recorder: the same losses, weights, gradients, optimizer state and random state, bit for bit."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.integration.trainings import MODELS, bits_of, train
from tests.recorder.recordings import EVERYTHING, recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import nn

    from overflow_analyzer.frames import Frame

STEPS = 50
FEW_STEPS = 12
"""Where ``benchmarks/changes_nothing.py`` takes all fifty."""
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "autocast": {"autocast": True},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny operations gain nothing by threads, and on a busy machine these wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(name: str, dtype: torch.dtype = torch.float32, **attributes: Any) -> nn.Module:
    """A model, the same each time, and random states as they are at the start of a run."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the state that a recorder might touch
    torch.manual_seed(0)
    model = MODELS[name]()
    for attribute, value in attributes.items():
        setattr(model, attribute, value)
    return model.to(dtype).train()


def assert_same_bits(path: Path, name: str, options: dict[str, Any], *, steps: int, **attributes: Any) -> list[Frame]:
    """Train twice, the second time under a recorder that looks at everything."""
    dtype = options.get("dtype", torch.float32)
    model = made(name, dtype, **attributes)
    plain = list(bits_of(model, train(model, steps=steps, **options)))
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002

    model = made(name, dtype, **attributes)
    with recording(model, path, roles=EVERYTHING, statistics="full", every_n_batches=7) as (_, frames):
        results = train(model, steps=steps, **options)
    recorded = list(bits_of(model, results))

    assert len(plain) == len(recorded) > steps
    assert all(map(torch.equal, plain, recorded))
    assert states == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]  # noqa: NPY002
    assert {one.role for frame in frames for one in frame.entries} >= set(EVERYTHING) - {"buffer", "grad_input"}
    return frames


REFUSED = ("lstm", "autocast")
"""What torch itself has no kernel for on a CPU."""


@pytest.mark.parametrize(("name", "precision"), sorted({*itertools.product(MODELS, PRECISIONS)} - {REFUSED}))
def test_precisions(name: str, precision: str, tmp_path: Path) -> None:
    steps = STEPS if precision == "float32" else FEW_STEPS
    frames = assert_same_bits(tmp_path / "run", name, PRECISIONS[precision], steps=steps)
    assert steps - 2 <= frames[-1].optimizer_step <= steps  # a scaler may skip one


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(use_reentrant: bool, tmp_path: Path) -> None:
    # GIVEN layers with dropout, whose random state is put back for the second forward
    options = PRECISIONS["bfloat16"]
    frames = assert_same_bits(tmp_path / "run", "mlp", options, steps=FEW_STEPS, use_reentrant=use_reentrant)
    assert "recompute" in {frame.phase for frame in frames}


def test_gradient_accumulation(tmp_path: Path) -> None:
    frames = assert_same_bits(tmp_path / "run", "t5", {"accumulate": 3}, steps=FEW_STEPS // 3)
    assert max(frame.batch_number for frame in frames) == FEW_STEPS - 1


def test_the_comparison_sees_a_small_change() -> None:
    # GIVEN
    model = made("mlp")
    plain = list(bits_of(model, train(model, steps=2)))

    # WHEN one weight is a little different
    model = made("mlp")
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] *= 1.001

    # THEN
    assert not all(map(torch.equal, plain, bits_of(model, train(model, steps=2))))
