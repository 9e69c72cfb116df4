"""With and without the recorder: the same losses, weights, gradients, optimizer state and random state, bit for bit.

``python -m tests.verification.changes_nothing`` does the same for all models in all settings, for longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.integration.changes import first_change
from tests.integration.trainings import MODELS, SETTINGS, make, train
from tests.recorder.recordings import EVERYTHING, frames_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS = 10
PRECISIONS = ("float32", "bfloat16", "float16", "autocast")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny operations gain nothing by threads, and on a busy machine these wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_precisions(name: str, precision: str, tmp_path: Path) -> None:
    # WHEN
    assert first_change(tmp_path / "run", name, SETTINGS[precision], STEPS) is None

    # THEN it was looked at, all of it
    frames = frames_of(tmp_path / "run")
    assert {one.role for frame in frames for one in frame.entries} >= set(EVERYTHING) - {"buffer", "grad_input"}
    assert STEPS - 2 <= frames[-1].optimizer_step <= STEPS  # a scaler may skip one


def test_fifty_steps(tmp_path: Path) -> None:
    assert first_change(tmp_path / "run", "mlp", SETTINGS["bfloat16"], steps=50) is None


@pytest.mark.parametrize("name", ["mlp", "cnn", "mixture", "t5"])
@pytest.mark.parametrize("kind", ["checkpointing", "reentrant checkpointing"])
def test_activation_checkpointing(kind: str, name: str, tmp_path: Path) -> None:
    # GIVEN layers with dropout, whose random state is put back for the second forward
    assert first_change(tmp_path / "run", name, SETTINGS[kind]._replace(dtype=torch.bfloat16), STEPS) is None
    assert "recompute" in {frame.phase for frame in frames_of(tmp_path / "run")}


def test_gradient_accumulation(tmp_path: Path) -> None:
    assert first_change(tmp_path / "run", "t5", SETTINGS["accumulation"], steps=4) is None
    assert max(frame.batch_number for frame in frames_of(tmp_path / "run")) == 4 * 3 - 1


def test_the_comparison_sees_a_small_change() -> None:
    # GIVEN
    setting = SETTINGS["float32"]
    plain = train(make("mlp", setting), setting, steps=2)

    # WHEN one weight is a little different
    model = make("mlp", setting)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] *= 1.001

    # THEN
    changed = train(model, setting, steps=2)
    same = [name for name in plain if torch.equal(plain[name], changed[name])]
    assert "torch's random state" in same
    assert "layers.0.0.weight" not in same
