from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer

from overflow_analyzer import open_trace
from overflow_recorder.hooks.optimizer_steps import OptimizerSteps
from tests.recorder.recordings import recording

if TYPE_CHECKING:
    from pathlib import Path

X = torch.ones(1, 2)


def step(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    model(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_steps_taken_before_a_frame(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)

    # WHEN the optimizer is made after the recorder, and gradients are accumulated over two micro-batches
    with recording(model, tmp_path / "run") as (_, frames):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for micro_batch in range(6):
            model(X).sum().backward()
            if micro_batch % 2:
                optimizer.step()

    # THEN
    assert [(frame.batch_number, frame.optimizer_step) for frame in frames] == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
        (4, 2),
        (5, 2),
    ]


def test_the_classes_of_optimizers_are_recorded_with_their_numbers(tmp_path: Path) -> None:
    # GIVEN two optimizers of one model; of another one nothing is known
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    adam = torch.optim.Adam([model.weight], lr=0.25, eps=0.5, weight_decay=float("inf"))

    # WHEN
    with recording(model, tmp_path / "run"):
        step(torch.optim.SGD([model.bias], lr=0.125), model)
        step(torch.optim.Adagrad(other.parameters()), other)
        for _ in range(2):
            step(adam, model)

        # THEN it is in the trace at once, so that a kill does not lose it; what is no finite number is left out
        (rank,) = open_trace(tmp_path / "run").ranks
        assert set(rank.run.optimizers) == {"SGD", "Adam"}
        assert rank.run.optimizers["SGD"]["lr"] == 0.125
        assert (rank.run.optimizers["Adam"]["lr"], rank.run.optimizers["Adam"]["eps"]) == (0.25, 0.5)
        assert "weight_decay" not in rank.run.optimizers["Adam"]
    assert open_trace(tmp_path / "run").ranks[0].run.optimizers == rank.run.optimizers


def test_another_models_optimizer_does_not_count(tmp_path: Path) -> None:
    # GIVEN
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames):
        step(torch.optim.SGD(other.parameters()), other)
        model(X)
        step(torch.optim.SGD([*model.parameters(), *other.parameters()]), other)
        model(X)

    # THEN
    assert [frame.optimizer_step for frame in frames] == [0, 1]


def test_parameters_given_to_an_optimizer_later(tmp_path: Path) -> None:
    # GIVEN an optimizer that steps before it has a parameter of the model
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames):
        step(optimizer, other)
        model(X)
        optimizer.add_param_group({"params": list(model.parameters())})
        step(optimizer, other)
        model(X)

    # THEN
    assert [frame.optimizer_step for frame in frames] == [0, 1]


def test_a_step_that_a_scaler_skips_does_not_count(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)

    # WHEN the first step's gradients overflow under the scale, though its loss is finite
    with recording(model, tmp_path / "run") as (_, frames):
        for factor in (1e38, 1.0, 1.0):
            scaler.scale(model(X).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    # THEN
    assert [frame.optimizer_step for frame in frames] == [0, 0, 1]


def test_a_closure_that_calls_the_model(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return float(loss.detach())

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames):
        for _ in range(2):
            optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    # THEN each evaluation is a batch; the step is taken when it is over
    assert sorted({frame.optimizer_step for frame in frames}) == [0, 1]
    assert [frame.batch_number for frame in frames] == list(range(len(frames)))


def test_two_optimizers_of_one_model_both_count(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with recording(model, tmp_path / "run") as (_, frames):
        for _ in range(2):
            for part in model:
                step(torch.optim.SGD(part.parameters()), model)
    assert [frame.optimizer_step for frame in frames if frame.module_name == ""] == [0, 1, 2, 3]


def test_a_fault_of_ours_does_not_reach_the_step() -> None:
    # GIVEN a model that fails when it is asked for its parameters
    class Failing(nn.Module):
        def parameters(self, recurse: bool = True) -> Any:
            raise LookupError("ours")

    model = nn.Linear(2, 2)
    faults: list[Exception] = []
    stepped: list[Any] = []
    steps = OptimizerSteps(Failing(), lambda *step: stepped.append(step), faults.append)
    steps.attach()
    steps.attach()

    # WHEN
    step(torch.optim.SGD(model.parameters()), model)
    steps.detach()
    steps.detach()
    step(torch.optim.SGD(model.parameters()), model)

    # THEN
    assert [str(fault) for fault in faults] == ["ours"]
    assert stepped == []
    assert not torch_optimizer._global_optimizer_post_hooks


@pytest.mark.parametrize("fullgraph", [False])
def test_a_compiled_step(fullgraph: bool, tmp_path: Path) -> None:
    # GIVEN
    def trained(compiled: bool, path: Path | None) -> tuple[list[torch.Tensor], list[int]]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        @torch.compile(backend="eager", fullgraph=fullgraph, disable=not compiled)
        def compiled_step() -> None:
            optimizer.step()

        def run() -> None:
            for _ in range(3):
                model(X).sum().backward()
                compiled_step()

        if path is None:
            run()
            return [parameter.detach() for parameter in model.parameters()], []
        with recording(model, path) as (_, frames):
            run()
        return [parameter.detach() for parameter in model.parameters()], [frame.optimizer_step for frame in frames]

    # WHEN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, _ = trained(compiled=True, path=None)
        recorded, steps = trained(compiled=True, path=tmp_path / "run")

    # THEN
    assert all(map(torch.equal, plain, recorded))
    assert steps == [0, 1, 2]
