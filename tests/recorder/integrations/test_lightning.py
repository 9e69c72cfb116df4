"""The callback in real runs of the Lightning Trainer."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

pytest.importorskip("lightning", reason="the extra [lightning] is not installed")

from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything

from overflow_analyzer import open_trace
from overflow_recorder import EvalPrediction, NonFiniteError, RecorderCallback
from overflow_recorder.integrations import lightning as integration
from overflow_recorder.integrations.lightning import OverflowRecorderCallback
from tests.recorder.recordings import entry, frames_of, hooks_on

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame

pytestmark = [
    # Advice about data loaders and warnings of its own use of torch: Lightning's concern, not ours.
    pytest.mark.filterwarnings("ignore::UserWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:lightning.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:lightning.*"),
]


class AutoEncoder(LightningModule):  # type: ignore[misc]  # the library is not typed for us
    """Its own forward is never called."""

    def __init__(self, events: list[str] | None = None) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 2)
        self.decoder = nn.Linear(2, 3)
        self.events = [] if events is None else events
        self.fails_in: int | None = None

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if batch_idx == self.fails_in:
            raise RuntimeError("the loader is broken")
        return nn.functional.mse_loss(self.decoder(self.encoder(batch)), batch)

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.decoder(self.encoder(batch))

    def backward(self, loss: torch.Tensor, *arguments: Any) -> None:
        self.events.append("backward")
        super().backward(loss, *arguments)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Called(AutoEncoder):
    """Its own forward is called, twice a batch."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.decoder(self.encoder(batch))
        return output

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return nn.functional.mse_loss(self(self(batch)), batch)


def _trainer(*callbacks: Any, **options: Any) -> Trainer:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    options = {"max_epochs": 2, "accumulate_grad_batches": 2, "num_sanity_val_steps": 1, **options}
    return Trainer(
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def _fit(
    trainer: Trainer, module: LightningModule, *, batches: int = 3, bad: int | None = None, **options: Any
) -> None:
    """Three batches of training and two of validation an epoch; steps of two batches and of one."""
    samples = [torch.randn(3, generator=torch.Generator().manual_seed(index)) for index in range(2 * batches)]
    if bad is not None:
        samples[2 * bad] *= 1e37
    loaders = DataLoader(samples, batch_size=2), DataLoader(samples[:4], batch_size=2)  # type: ignore[arg-type,var-annotated]  # a list is a dataset
    trainer.fit(module, *loaders, **options)


def _module(kind: type[AutoEncoder] = AutoEncoder, **options: Any) -> AutoEncoder:
    seed_everything(0, verbose=False)
    return kind(**options)


def _calls(frames: list[Frame], phase: str) -> list[tuple[int, int]]:
    """Batch number and optimizer step of each forward of the decoder."""
    return [
        (one.batch_number, one.optimizer_step) for one in frames if (one.module_name, one.phase) == ("decoder", phase)
    ]


def _figures(frames: list[Frame]) -> list[tuple[Any, ...]]:
    return [(one.batch_number, one.optimizer_step, one.module_name, one.phase, one.entries) for one in frames]


EVERY_BATCH = [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2), (5, 3)]


@pytest.mark.parametrize("kind", [AutoEncoder, Called])
def test_batches_and_steps_are_the_trainers(tmp_path: Path, kind: type[AutoEncoder]) -> None:
    # GIVEN
    callback = OverflowRecorderCallback(tmp_path / "run", every_n_batches=1)
    module = _module(kind)

    # WHEN
    _fit(_trainer(callback), module)

    # THEN a batch is a training step, however often the module is called in it
    frames = frames_of(tmp_path / "run")
    calls_in_a_batch = 2 if kind is Called else 1
    assert _calls(frames, "train") == [one for one in EVERY_BATCH for _ in range(calls_in_a_batch)]
    # the sanity check of one batch, then two batches behind each epoch
    assert _calls(frames, "eval") == [(0, 0)] + [(2, 2)] * 2 + [(5, 4)] * 2
    assert open_trace(tmp_path / "run").ranks[0].ended == "closed"
    assert hooks_on(module) == []


def test_a_resumed_run_goes_on_with_the_checkpoints_numbers(tmp_path: Path) -> None:
    # GIVEN a whole run, and one that stopped behind its first epoch
    _fit(_trainer(OverflowRecorderCallback(tmp_path / "whole", every_n_batches=1)), _module())
    first = _trainer(max_epochs=1)
    _fit(first, _module())
    first.save_checkpoint(tmp_path / "first.ckpt")

    # WHEN
    callback = OverflowRecorderCallback(tmp_path / "rest", every_n_batches=1)
    _fit(_trainer(callback), _module(), ckpt_path=tmp_path / "first.ckpt", weights_only=False)

    # THEN behind its sanity check its frames are those that the whole run had in its second epoch, to the last bit
    frames, resumed = frames_of(tmp_path / "whole"), frames_of(tmp_path / "rest")
    assert _calls(resumed, "train") == EVERY_BATCH[3:]
    assert _calls(resumed, "eval")[:1] == [(2, 2)]
    assert _figures(resumed[2:]) == _figures([frame for frame in frames if frame.batch_number >= 3])


def test_the_training_is_the_same(tmp_path: Path) -> None:
    plain, recorded = _module(), _module()

    _fit(_trainer(), plain)
    _fit(_trainer(OverflowRecorderCallback(tmp_path / "run")), recorded)

    for name, value in plain.state_dict().items():
        assert torch.equal(recorded.state_dict()[name], value), name


def test_an_overflow_stops_the_training_where_it_is(tmp_path: Path) -> None:
    # GIVEN
    module = _module()
    nn.init.constant_(module.encoder.weight, 1000.0)

    # WHEN
    with pytest.raises(NonFiniteError, match=r"output of encoder \(Linear\), batch 4"):
        _fit(_trainer(OverflowRecorderCallback(tmp_path / "run"), max_epochs=1), module, batches=5, bad=4)

    # THEN
    rank = open_trace(tmp_path / "run").ranks[0]
    assert rank.ended == "detected"
    assert list(rank.frames())[-1].optimizer_step == 2
    assert hooks_on(module) == []


def test_any_other_failure_completes_the_trace(tmp_path: Path) -> None:
    # GIVEN
    module = _module()
    module.fails_in = 1

    # WHEN
    with pytest.raises(RuntimeError, match="the loader is broken"):
        _fit(_trainer(OverflowRecorderCallback(tmp_path / "run")), module)

    # THEN
    end = open_trace(tmp_path / "run").ranks[0].run.end
    assert end is not None
    assert (end.how, end.batch_number, end.reason) == ("exception", 1, "RuntimeError: the loader is broken")


def test_the_forward_ends_before_its_backward(tmp_path: Path) -> None:
    # GIVEN what was computed on a device is looked at when the batch's forward ends
    events: list[str] = []

    class Ends(RecorderCallback):
        def on_batch_end(self, recorder: Any, event: Any) -> None:
            events.append(f"end of {event.batch_number}")

    # WHEN
    callback = OverflowRecorderCallback(tmp_path / "run", callbacks=[Ends])
    _fit(_trainer(callback, max_epochs=1, num_sanity_val_steps=0), _module(events=events))

    # THEN
    assert events == [what for batch in range(3) for what in (f"end of {batch}", "backward")]


def test_predictions_can_be_recorded(tmp_path: Path) -> None:
    # GIVEN
    recording = OverflowRecorderCallback(tmp_path / "run", every_n_batches=1)

    class Evaluates(Callback):  # type: ignore[misc]  # the library is not typed for us
        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                recording.recorder.record_evaluation(EvalPrediction(torch.tensor([1.0, -3.0]), torch.tensor([0, 1])))  # type: ignore[arg-type,union-attr]  # tensors will do

    # WHEN
    _fit(_trainer(recording, Evaluates(), max_epochs=1), _module())

    # THEN
    (frame,) = (one for one in frames_of(tmp_path / "run") if one.module_name == "evaluation")
    assert (frame.batch_number, frame.phase, entry(frame, "predictions").abs_max) == (2, "manual", 3.0)


def test_wrong_options_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="statistics: 'all' is not one of"):
        OverflowRecorderCallback(statistics="all")
    with pytest.raises(TypeError, match="max_frames"):
        OverflowRecorderCallback(max_frames=21)


@pytest.mark.parametrize(
    ("imported", "chosen"),
    [
        (["lightning.pytorch"], "lightning.pytorch"),
        (["pytorch_lightning"], "pytorch_lightning"),
        (["lightning.pytorch", "pytorch_lightning"], "lightning.pytorch"),
    ],
)
def test_the_package_that_the_script_imports_is_the_one(
    monkeypatch: pytest.MonkeyPatch, imported: list[str], chosen: str
) -> None:
    # GIVEN
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in imported:
        module = ModuleType(name)
        module.Callback = name  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)

    # WHEN / THEN
    assert integration._callback_class() == chosen


def test_the_page_is_written_when_training_ends(tmp_path: Path) -> None:
    _fit(_trainer(OverflowRecorderCallback(tmp_path / "run", html=tmp_path / "run.html")), _module())
    assert "<h1>No inf/nan in what was recorded</h1>" in (tmp_path / "run.html").read_text()
