"""Gradients, optimizer state and loss scale, where they are asked for."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.recorder.recordings import EVERYTHING, Forward, entry, plain_figures, record, recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overflow_analyzer.format.frames import Entry, Frame

X = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))


def rows(frames: list[Frame], role: str) -> dict[tuple[str, str], Entry]:
    """The rows of one role, by module and context; each must be there once."""
    found = [((frame.module_name, one.context), one) for frame in frames for one in frame.entries if one.role == role]
    assert len(dict(found)) == len(found)
    return dict(found)


def figures(one: Entry) -> tuple[Any, ...]:
    return (one.abs_min, one.abs_max, one.finite_abs_max, one.nan_count, one.posinf_count, one.neginf_count)


def backward(model: nn.Module) -> None:
    loss: torch.Tensor = model(X).sum()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def plain_gradients() -> tuple[nn.Sequential, dict[str, torch.Tensor]]:
    """The gradients of all activations, kept by torch itself."""
    model = mlp()
    activations = {"x": X.clone().requires_grad_()}
    for name, module in model.named_children():
        activations[name] = module(list(activations.values())[-1])
        activations[name].retain_grad()
    loss: Any = activations["2"].square().sum()
    loss.backward()
    return model, {name: tensor.grad for name, tensor in activations.items() if tensor.grad is not None}


def contexts(frame: Frame) -> list[str]:
    return [one.context for one in frame.entries]


def test_gradients_of_activations_and_weights(tmp_path: Path) -> None:
    # GIVEN
    plain, expected = plain_gradients()
    x = X.clone().requires_grad_()

    # WHEN
    model = mlp()
    frames = record(model, tmp_path / "run", lambda: model(x).square().sum().backward(), roles=EVERYTHING)

    # THEN
    outputs, inputs = rows(frames, "grad_output"), rows(frames, "grad_input")
    assert {key: figures(one) for key, one in outputs.items()} == {
        (name, "grad_output"): plain_figures(expected[of])
        for name, of in (("0", "0"), ("1", "1"), ("2", "2"), ("", "2"))
    }
    assert {key: figures(one) for key, one in inputs.items()} == {
        (name, "grad_input[0]"): plain_figures(expected[of])
        for name, of in (("0", "x"), ("1", "0"), ("2", "1"), ("", "x"))
    }
    assert {key: figures(one) for key, one in rows(frames, "weight_grad").items()} == {
        (name, context): plain_figures(plain.get_submodule(name).get_parameter(context).grad)  # type: ignore[arg-type]
        for name in ("0", "2")
        for context in ("weight", "bias")
    }
    assert {frame.phase for frame in frames if frame.entries[0].role.startswith(("grad", "weight_g"))} == {"backward"}


@pytest.mark.parametrize("role", ["grad_output", "grad_input", "weight_grad", "optimizer_state"])
def test_a_role_that_was_not_asked_for_is_not_there(role: str, tmp_path: Path) -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> None:
        model(X.clone().requires_grad_()).sum().backward()
        optimizer.step()

    frames = record(model, tmp_path / "run", run, roles=[role])
    assert {one.role for frame in frames for one in frame.entries} == {role}


def test_optimizer_state_after_each_step(tmp_path: Path) -> None:
    # GIVEN
    def trained(recorder_path: Path | None) -> tuple[nn.Module, torch.optim.Adam, list[Frame]]:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())

        def run() -> None:
            model(X).sum().backward()
            optimizer.step()

        frames = [] if recorder_path is None else record(model, recorder_path, run, roles=["optimizer_state"])
        if recorder_path is None:
            run()
        return model, optimizer, frames

    plain, optimizer, _ = trained(None)
    # WHEN
    _, _, frames = trained(tmp_path / "run")

    # THEN
    assert {key: figures(one) for key, one in rows(frames, "optimizer_state").items()} == {
        (name.rpartition(".")[0], f"{name.rpartition('.')[2]}.{key}"): plain_figures(value)
        for name, parameter in plain.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    assert {frame.optimizer_step for frame in frames} == {1}


def test_nested_outputs_and_keyword_inputs(tmp_path: Path) -> None:
    # GIVEN
    model = Forward(lambda x, scale: {"a": [x * 2, scale * 3], "b": None})
    x, scale = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)

    def run() -> None:
        a, b = model(x, scale=scale)["a"]
        (a * 5 + b * 7).sum().backward()

    # WHEN
    frames = record(model, tmp_path / "run", run, roles=["grad_input", "grad_output"])

    # THEN
    assert {context: one.abs_max for (_, context), one in rows(frames, "grad_output").items()} == {
        "grad_output[a][0]": 5.0,
        "grad_output[a][1]": 7.0,
    }
    assert {context: one.abs_max for (_, context), one in rows(frames, "grad_input").items()} == {
        "grad_input[0]": 10.0,
        "grad_input[scale]": 21.0,
    }


def test_a_weight_used_twice_has_one_gradient(tmp_path: Path) -> None:
    # GIVEN
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Tanh(), shared)

    # WHEN
    frames = record(model, tmp_path / "run", lambda: model(X).sum().backward(), roles=["weight_grad"])

    # THEN all uses summed
    assert shared.weight.grad is not None
    assert figures(rows(frames, "weight_grad")["0", "weight"]) == plain_figures(shared.weight.grad)


def test_a_sparse_gradient(tmp_path: Path) -> None:
    model = nn.Embedding(10, 3, sparse=True)
    frames = record(
        model, tmp_path / "run", lambda: model(torch.tensor([2, 2, 5])).sum().backward(), roles=["weight_grad"]
    )
    row = rows(frames, "weight_grad")["", "weight"]
    assert (row.layout, row.numel, row.abs_min, row.abs_max) == ("sparse_coo", 30, 0.0, 2.0)


def test_an_in_place_activation(tmp_path: Path) -> None:
    # GIVEN an activation that overwrites what it is given
    def made(inplace: bool) -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), nn.ReLU(inplace=inplace), nn.Linear(4, 2))

    found = []
    for inplace in (True, False):
        model = made(inplace)
        run = partial(backward, model)
        frames = record(model, tmp_path / str(inplace), run, roles=["grad_input", "grad_output"])
        both = {**rows(frames, "grad_input"), **rows(frames, "grad_output")}
        found.append({key: figures(one) for key, one in both.items()})

    # THEN the gradient of its input is the same as if it did not; that of the tensor is of what it has become
    in_place, plain = found
    assert in_place["1", "grad_input[0]"] == plain["1", "grad_input[0]"]
    assert in_place["1", "grad_output"] == plain["1", "grad_output"]


def test_an_infinite_gradient_of_a_step_that_is_skipped_is_recorded_and_is_no_alarm(tmp_path: Path) -> None:
    # GIVEN a loss scale that is too high, as it is at the start of any such training
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    weights = [parameter.clone() for parameter in model.parameters()]

    # WHEN
    with recording(model, tmp_path / "run", roles=EVERYTHING, on_nonfinite="raise") as (_, frames):
        for _ in range(2):
            scaler.scale(model(X * 1e3).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update(1.0)
            optimizer.zero_grad()

    # THEN
    assert any(not torch.equal(*pair) for pair in zip(weights, model.parameters(), strict=True))
    infinite = [frame for frame in frames if frame.nonfinite_entries]
    assert {(frame.batch_number, frame.phase, frame.optimizer_step) for frame in infinite} == {(0, "backward", 0)}
    scales = [frame for frame in frames if frame.module_class == "GradScaler"]
    assert [(frame.batch_number, entry(frame, "loss_scale").abs_max) for frame in scales] == [(0, 2.0**127), (1, 1.0)]


def test_a_scaler_that_is_off(tmp_path: Path) -> None:
    model, scaler = mlp(), torch.amp.GradScaler("cpu", enabled=False)
    frames = record(
        model, tmp_path / "run", lambda: scaler.scale(model(X).sum()).backward(), roles=["output", "weight_grad"]
    )
    assert len(rows(frames, "weight_grad")) == 4


def test_gradients_do_not_count_as_calls(tmp_path: Path) -> None:
    # GIVEN two forwards and backwards in one batch
    model = mlp()
    with recording(model, tmp_path / "run", roles=EVERYTHING) as (recorder, frames):
        recorder.begin_batch(0)
        for _ in range(2):
            model(X).sum().backward()

    # THEN
    forwards = [frame.call_index for frame in frames if frame.module_name == "0" and frame.phase == "train"]
    assert forwards == [0, 1]


def test_gradients_of_the_gradient(tmp_path: Path) -> None:
    # GIVEN a gradient penalty
    def penalized(path: Path | None) -> tuple[list[torch.Tensor], list[Frame]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        x = X.clone().requires_grad_()

        def run() -> None:
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            penalty: Any = gradient.square().sum()
            penalty.backward()

        frames = [] if path is None else record(model, path, run, roles=EVERYTHING)
        if path is None:
            run()
        return [parameter.grad for parameter in model.parameters() if parameter.grad is not None], frames

    # WHEN
    plain, _ = penalized(None)
    recorded, frames = penalized(tmp_path / "run")

    # THEN
    assert all(map(torch.equal, plain, recorded))
    assert rows(frames, "weight_grad")["0", "weight"].abs_max == plain[0].abs().max()


def test_a_backward_on_another_thread(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()

    def run() -> None:
        loss: Any = model(X).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()

    # THEN
    frames = record(model, tmp_path / "run", run, roles=["output", "weight_grad"])
    assert len(rows(frames, "weight_grad")) == 4


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "fused": lambda parameters: torch.optim.Adam(parameters, fused=True),
    "foreach": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_steps_in_one_batch_are_both_seen(optimizer: str, tmp_path: Path) -> None:
    # GIVEN optimizers that change their state in place
    model = mlp()
    made = OPTIMIZERS[optimizer](model.parameters())

    # WHEN
    with recording(model, tmp_path / "run", roles=["optimizer_state"]) as (recorder, frames):
        recorder.begin_batch(0)
        for _ in range(2):
            model(X).sum().backward()
            made.step()

    # THEN the second one's figures are of the second step
    key = "weight.momentum_buffer" if optimizer == "momentum" else "weight.exp_avg"
    found = [entry(frame, key) for frame in frames if frame.module_name == "0" and key in contexts(frame)]
    state: Any = made.state[next(model.parameters())]
    assert figures(found[1]) == plain_figures(state[key.partition(".")[2]]) != figures(found[0])
