"""The callback in real runs of the Hugging Face Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="the extra [transformers] is not installed")
pytest.importorskip("accelerate", reason="the extra [transformers] is not installed")

from transformers import PrinterCallback, Trainer, TrainingArguments, set_seed

from overflow_analyzer import open_trace
from overflow_recorder import NonFiniteError, TraceExistsError
from overflow_recorder.integrations.transformers import OverflowRecorderCallback
from tests.recorder.recordings import entry, frames_of, hooks_on

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame

SAMPLES = 10
"""With 2 a batch: 5 batches an epoch. With 2 batches a step: steps of 2, 2 and 1 batches."""


class Net(nn.Module):
    """Its features are multiplied by what it is given in ``scale``."""

    def __init__(self, oom_above: int = 100) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.same = nn.Identity()
        self.oom_above = oom_above

    def forward(self, features: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(features) > self.oom_above:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        logits = self.same(self.linear(features * scale[:, None]))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def _samples(bad: int | None = None) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "features": torch.randn(3, generator=generator),
            "labels": torch.tensor(index % 2),
            "scale": torch.tensor(1e37 if index == bad else 1.0),
        }
        for index in range(SAMPLES)
    ]


def _trainer(directory: Path, *callbacks: Any, model: Net | None = None, **options: Any) -> Trainer:
    set_seed(0)
    arguments = {
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 5,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        **{name: value for name, value in options.items() if name not in ("compute_metrics", "train_dataset")},
    }
    trainer = Trainer(
        model=model or Net(),
        args=TrainingArguments(output_dir=str(directory / "checkpoints"), **arguments),
        train_dataset=options.get("train_dataset", _samples()),
        eval_dataset=_samples(),
        compute_metrics=options.get("compute_metrics"),
        callbacks=list(callbacks),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _calls(frames: list[Frame], phase: str) -> list[tuple[int, int]]:
    """Batch number and optimizer step of each forward of the model itself."""
    return [(one.batch_number, one.optimizer_step) for one in frames if one.module_name == "" and one.phase == phase]


def _figures(frames: list[Frame]) -> list[tuple[Any, ...]]:
    return [(one.batch_number, one.optimizer_step, one.module_name, one.phase, one.entries) for one in frames]


EVERY_BATCH = list(zip(range(10), [0, 0, 1, 1, 2, 3, 3, 4, 4, 5], strict=True))
"""Two epochs: the third step of each has one batch only."""


def test_batches_are_forwards_and_steps_are_the_trainers(tmp_path: Path) -> None:
    # GIVEN
    trainer = _trainer(tmp_path, OverflowRecorderCallback(tmp_path / "run", every_n_batches=1))

    # WHEN
    trainer.train()

    # THEN
    assert trainer.state.global_step == 6
    frames = frames_of(tmp_path / "run")
    assert _calls(frames, "train") == EVERY_BATCH
    assert all(frame.call_index == 0 for frame in frames)
    assert open_trace(tmp_path / "run").ranks[0].ended == "closed"
    assert hooks_on(trainer.model) == []


def test_an_evaluation_belongs_to_the_batch_before_it_and_disturbs_nothing(tmp_path: Path) -> None:
    # GIVEN an evaluation of two batches before training and behind each second step
    callback = OverflowRecorderCallback(tmp_path / "run", every_n_batches=1)
    trainer = _trainer(tmp_path, callback, eval_strategy="steps", eval_steps=2, eval_on_start=True)

    # WHEN
    trainer.train()

    # THEN steps 2, 4 and 6 end with batches 3, 6 (the first of the second epoch's is 5) and 9
    frames = frames_of(tmp_path / "run")
    assert _calls(frames, "train") == EVERY_BATCH
    assert _calls(frames, "eval") == [(0, 0)] * 2 + [(3, 2)] * 2 + [(6, 4)] * 2 + [(9, 6)] * 2


def test_a_resumed_run_goes_on_with_the_checkpoints_numbers(tmp_path: Path) -> None:
    # GIVEN a whole run, with a checkpoint behind step 4, in the midst of its second epoch
    whole = OverflowRecorderCallback(tmp_path / "whole", every_n_batches=1)
    _trainer(tmp_path, whole, save_strategy="steps", save_steps=4).train()

    # WHEN
    rest = OverflowRecorderCallback(tmp_path / "rest", every_n_batches=1)
    _trainer(tmp_path, rest).train(resume_from_checkpoint=str(tmp_path / "checkpoints/checkpoint-4"))

    # THEN its frames are those that the whole run had from there on, to the last bit
    frames = [frame for frame in frames_of(tmp_path / "whole") if frame.batch_number >= 7]
    assert _calls(frames, "train") == EVERY_BATCH[7:]
    assert _figures(frames_of(tmp_path / "rest")) == _figures(frames)


class Stream(torch.utils.data.IterableDataset[dict[str, torch.Tensor]]):
    """Samples in order, without a length."""

    def __init__(self, samples: list[dict[str, torch.Tensor]]) -> None:
        self.samples = samples

    def __iter__(self) -> Any:
        return iter(self.samples)


def test_a_resumed_stream_has_no_length_to_count_epochs_in(tmp_path: Path) -> None:
    # GIVEN
    options: dict[str, Any] = {"train_dataset": Stream(_samples()), "max_steps": 2}
    _trainer(tmp_path, save_strategy="steps", save_steps=1, **options).train()

    # WHEN
    callback = OverflowRecorderCallback(tmp_path / "rest", every_n_batches=1)
    _trainer(tmp_path, callback, **options).train(resume_from_checkpoint=str(tmp_path / "checkpoints/checkpoint-1"))

    # THEN
    assert _calls(frames_of(tmp_path / "rest"), "train") == [(2, 1), (3, 1)]


def test_the_training_is_the_same(tmp_path: Path) -> None:
    plain, recorded = _trainer(tmp_path), _trainer(tmp_path, OverflowRecorderCallback(tmp_path / "run"))

    for trainer in (plain, recorded):
        set_seed(1)
        trainer.train()

    for name, value in plain.model.state_dict().items():
        assert torch.equal(recorded.model.state_dict()[name], value), name


def test_an_overflow_stops_the_training_where_it_is(tmp_path: Path) -> None:
    # GIVEN a sample that is in batch 3, and weights that make it overflow
    model = Net()
    nn.init.constant_(model.linear.weight, 1000.0)
    callback = OverflowRecorderCallback(tmp_path / "run")
    trainer = _trainer(tmp_path, callback, model=model, train_dataset=Stream(_samples(bad=7)), max_steps=4)

    # WHEN
    with pytest.raises(NonFiniteError, match=r"output of linear \(Linear\), batch 3"):
        trainer.train()

    # THEN
    rank = open_trace(tmp_path / "run").ranks[0]
    assert rank.ended == "detected"
    assert list(rank.frames())[-1].optimizer_step == 1
    assert hooks_on(model) == []


def test_predictions_are_recorded_with_the_metrics(tmp_path: Path) -> None:
    # GIVEN
    seen: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction)
        return {"mean": float(np.mean(prediction.predictions))}

    callback = OverflowRecorderCallback(tmp_path / "run", every_n_batches=1)
    trainer = _trainer(
        tmp_path, callback, compute_metrics=callback.recorded(metrics), eval_strategy="epoch", num_train_epochs=1
    )

    # WHEN
    trainer.train()

    # THEN the frame has what the metrics were computed of
    assert trainer.state.log_history[0]["eval_mean"] == seen[0].predictions.mean()
    (frame,) = (one for one in frames_of(tmp_path / "run") if one.module_name == "evaluation")
    assert (frame.batch_number, frame.phase) == (4, "manual")
    predictions = entry(frame, "predictions")
    assert predictions.shape == seen[0].predictions.shape
    assert predictions.abs_max == float(np.abs(seen[0].predictions).max())
    assert entry(frame, "label_ids").abs_max == 1.0


def test_without_metrics_or_training_there_is_nothing_to_record_into() -> None:
    assert OverflowRecorderCallback(None).recorded()("a prediction", compute_result=True) == {}


def test_a_trainer_that_begins_anew_goes_on_in_the_same_trace(tmp_path: Path) -> None:
    # GIVEN batches of more than 2 that do not fit into memory, and a trainer that then tries smaller ones
    callback = OverflowRecorderCallback(tmp_path / "run", every_n_batches=1)
    trainer = _trainer(
        tmp_path, callback, model=Net(oom_above=2), auto_find_batch_size=True, per_device_train_batch_size=4,
        gradient_accumulation_steps=1, num_train_epochs=1,
    )  # fmt: skip

    # WHEN
    trainer.train()

    # THEN the attempts are there, and then all batches
    frames = frames_of(tmp_path / "run")
    raised = [frame for frame in frames if frame.entries[-1].note == "forward raised RuntimeError"]
    assert set(_calls(raised, "train")) == {(0, 0)}
    finished = [frame for frame in frames if frame not in raised]
    assert _calls(finished, "train") == [(batch, batch) for batch in range(5)]


def test_wrong_options_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="max_frames_to_save: 0 is less than 1"):
        OverflowRecorderCallback(max_frames_to_save=0)
    with pytest.raises(TypeError, match="max_frames"):
        OverflowRecorderCallback(max_frames=21)


def test_a_trace_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    for attempt in range(2):
        callback = OverflowRecorderCallback(tmp_path / "run", overwrite=False)
        trainer = _trainer(tmp_path, callback, max_steps=1)
        if attempt == 0:
            trainer.train()
        else:
            with pytest.raises(TraceExistsError, match="holds the trace of a run of Net"):
                trainer.train()

    _trainer(tmp_path, OverflowRecorderCallback(tmp_path / "run", overwrite=True), max_steps=1).train()


def test_the_page_is_written_when_training_ends(tmp_path: Path) -> None:
    _trainer(tmp_path, OverflowRecorderCallback(tmp_path / "run", html=tmp_path / "run.html")).train()
    assert "<h1>No inf/nan in what was recorded</h1>" in (tmp_path / "run.html").read_text()
