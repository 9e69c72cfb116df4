"""What is not seen is said plainly: never silently nothing."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_recorder import NonFiniteError, RecorderWarning, TraceRecorder
from tests.recorder.recordings import EVERYTHING, Forward, notes_of, record, recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

X = torch.ones(1, 2)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_child_is_skipped_with_one_warning(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(mlp()))

    # WHEN
    with pytest.warns(RecorderWarning, match="module '1' is a ScriptModule") as caught:
        frames = record(model, tmp_path / "run", lambda: [model(X) for _ in range(3)])

    # THEN
    assert len(caught) == 1
    assert [frame.module_name for frame in frames] == ["0", ""] * 3
    assert notes_of(tmp_path / "run") == [
        "1: a ScriptModule runs without Python; the modules inside it are not recorded"
    ]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_traced_child_is_recorded_from_outside(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.trace(mlp(), X))  # type: ignore[no-untyped-call]  # torch leaves it untyped

    # WHEN
    with pytest.warns(RecorderWarning, match="it is recorded from outside") as caught:
        frames = record(model, tmp_path / "run", lambda: model(X))

    # THEN
    assert len(caught) == 1
    assert [frame.module_name for frame in frames] == ["0", "1", ""]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_that_is_a_script(tmp_path: Path) -> None:
    model = torch.jit.script(mlp())
    with pytest.warns(RecorderWarning) as caught, TraceRecorder(model, tmp_path / "run"):
        model(X)
    assert len(caught) == 2
    assert str(caught[1].message) == ("nothing was recorded: the model is a ScriptModule, which runs without Python")


def test_a_model_without_any_batch_says_that_nothing_was_recorded(tmp_path: Path) -> None:
    with pytest.warns(RecorderWarning, match="^nothing was recorded: no forward of the model was seen") as caught:
        TraceRecorder(mlp(), tmp_path / "run").start().close()
    assert len(caught) == 1


def test_batches_that_were_asked_for_and_never_reached(tmp_path: Path) -> None:
    model = mlp()
    recorder = TraceRecorder(model, tmp_path / "run", trace_batch_nums=[7]).start()
    for _ in range(2):
        model(X)
    with pytest.warns(RecorderWarning, match=r"^nothing was recorded: the run ended in batch 1, before any batch"):
        recorder.close()


def test_modules_whose_weights_another_module_uses_are_named(tmp_path: Path) -> None:
    model = Forward(lambda unused, used, x: used(x) @ unused.weight, nn.Linear(2, 2), nn.Linear(2, 2))
    record(model, tmp_path / "run", lambda: model(X))
    (note,) = notes_of(tmp_path / "run")
    assert note.startswith("0: never called by itself")


def test_a_loop_that_never_calls_the_root_is_told_of_step(tmp_path: Path) -> None:
    model = mlp()
    record(model, tmp_path / "run", lambda: [model[0](X) for _ in range(2)])
    assert "the root's forward was never called, so every frame counts as batch 0" in notes_of(tmp_path / "run")


@contextlib.contextmanager
def said() -> Iterator[list[str]]:
    """What the recorder warns of; torch has warnings of its own."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(one.message) for one in caught if one.category is RecorderWarning]


def graph_of(traced: Any) -> str:
    """Its graph, without what torch counts through a process."""
    return re.sub(r"___torch_mangle_\d+\.", "", str(traced.inlined_graph))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("training", [True, False])
def test_tracing_makes_the_same_graph_and_no_frame(training: bool, tmp_path: Path) -> None:
    # GIVEN
    def make() -> nn.Module:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(2, 2, 4, dropout=0.0, batch_first=True)
        return nn.Sequential(mlp(), layer).train(training)

    x = torch.ones(1, 1, 2)
    trace: Any = torch.jit.trace
    with torch.no_grad():
        expected = trace(make(), x)

    # WHEN
    model = make()
    with said() as caught, recording(model, tmp_path / "run", roles=EVERYTHING) as (_, frames), torch.no_grad():
        model(x)
        traced = [trace(model, x, check_trace=False) for _ in range(2)]  # a check would run it for real
        model(x)

    # THEN
    (said_once,) = caught
    assert said_once.startswith("not everything is recorded: a forward under torch.jit.trace is neither measured nor")
    assert [graph_of(one) for one in traced] == [graph_of(expected)] * 2
    assert torch.equal(traced[0](x), expected(x))
    assert [frame.batch_number for frame in frames if frame.module_name == ""] == [0, 1]
    assert any(note.startswith("a forward under torch.jit.trace") for note in notes_of(tmp_path / "run"))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_that_is_only_traced(tmp_path: Path) -> None:
    trace: Any = torch.jit.trace
    model = mlp()
    with said() as caught, TraceRecorder(model, tmp_path / "run"):
        trace(model, X, check_trace=False)
    assert [one.partition(":")[0] for one in caught] == ["not everything is recorded", "nothing was recorded"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripting_a_recorded_model_says_what_to_do(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    recorder = TraceRecorder(model, tmp_path / "run").start()
    model(X)

    # WHEN, THEN
    with pytest.raises(AttributeError, match=r"close the recorder before torch\.jit\.script"):
        torch.jit.script(model)
    recorder.close()
    assert torch.equal(torch.jit.script(model)(X), model(X))


def test_what_had_no_turn_before_the_run_stopped_is_not_called_unused(tmp_path: Path) -> None:
    # GIVEN a model whose first module overflows
    first = nn.Linear(2, 2)
    nn.init.constant_(first.weight, float("inf"))
    model = nn.Sequential(first, nn.Linear(2, 2))
    # WHEN the recorder stops the run there
    with pytest.raises(NonFiniteError), TraceRecorder(model, tmp_path / "run.parquet"):
        model(X)
    # THEN nothing is said of the second one
    assert list(notes_of(tmp_path / "run.parquet")) == []


# Training that nobody sees.


def compiled(model: nn.Module) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="eager")


def unseen_training(model: nn.Module, steps: int, lr: float = 0.1) -> None:
    """Train a compiled model, whose hooks do not run."""
    run, optimizer = compiled(model), torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        run(X).square().sum().backward()
        optimizer.step()


def test_training_in_a_compiled_model_is_named_where_only_an_evaluation_was_seen(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    with said() as caught, TraceRecorder(model, tmp_path / "run"):
        # WHEN it is evaluated, and trained where no hook runs
        with torch.no_grad():
            model(X)
        unseen_training(model, steps=3)
    # THEN it is said once, at the first step, and in the trace
    where = "the model is trained where hooks do not run, such as inside torch.compile"
    seen = "no forward in training was seen before"
    (warned,) = caught
    assert warned.startswith(f"not everything is recorded: {seen} an optimizer step: {where}; ")
    assert notes_of(tmp_path / "run") == [f"{seen} 3 of 3 optimizer steps: {where}"]


class OwnForward(nn.Module):
    """A class of one's own: torch.compile makes code of its hooks and of its forward each by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


@pytest.mark.parametrize("kind", [mlp, OwnForward])
@pytest.mark.parametrize("around", [lambda model: model, lambda model: nn.Sequential(model, nn.ReLU())])
def test_a_forward_that_runs_compiled_is_named_at_once(
    kind: Callable[[], nn.Module], around: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    # GIVEN a model that something around it compiles
    model = kind()
    run = compiled(around(model))
    with TraceRecorder(model, tmp_path / "run"), torch.no_grad():
        # WHEN it is called, and never trained
        with said() as before:
            model(X)
        with said() as first:
            run(X)
        with said() as later:
            run(torch.ones(7, 2))
    # THEN that is named at the first compiled call, and once
    assert [len(caught) for caught in (before, first, later)] == [0, 1, 0]
    assert first[0].startswith("not everything is recorded: forwards of the model run inside torch.compile")
    # THEN in the trace too
    (note,) = notes_of(tmp_path / "run")
    assert note.startswith("forwards of the model run inside torch.compile")
    assert not torch._dynamo.callback.callback_handler.start_callbacks


def test_another_model_that_is_compiled_is_not_this_one(tmp_path: Path) -> None:
    model, other = mlp(), compiled(mlp())
    with said() as caught, TraceRecorder(model, tmp_path / "run"):
        model(X)
        other(X)
    assert caught == []


def test_a_weight_that_went_non_finite_there_is_found_at_the_next_look(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    with said(), torch.no_grad(), TraceRecorder(model, tmp_path / "run"):
        model(X)
        with torch.enable_grad():
            unseen_training(model, steps=1, lr=float("inf"))
        # WHEN the model is evaluated again, THEN
        with pytest.raises(NonFiniteError, match="weight of 0"):
            model(X)


def test_a_loss_that_went_non_finite_there_is_found_at_once(tmp_path: Path) -> None:
    # GIVEN a compiled training whose first step makes the weights non-finite
    model = mlp()
    with said(), TraceRecorder(model, tmp_path / "run"):
        model(X)
        # WHEN its second step begins, THEN
        with pytest.raises(NonFiniteError, match="loss"):
            unseen_training(model, steps=2, lr=float("inf"))


def two_optimizers(model: nn.Sequential) -> None:
    optimizers = [torch.optim.SGD(model[0].parameters()), torch.optim.SGD(model[2].parameters())]
    for _ in range(2):
        model(X).sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def in_evaluation_mode(model: nn.Sequential) -> None:
    optimizer = torch.optim.SGD(model.eval().parameters())
    for _ in range(2):
        model(X).sum().backward()
        optimizer.step()


def without_root(model: nn.Sequential) -> None:
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        model[2](model[0](X)).sum().backward()
        optimizer.step()


def with_closure(model: nn.Sequential) -> None:
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def of_a_copy(model: nn.Sequential) -> None:
    other = mlp()
    optimizer = torch.optim.SGD(other.parameters())
    for _ in range(2):
        other(X).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(X)


@pytest.mark.parametrize("options", [{}, {"trace_batch_nums": [0]}])
@pytest.mark.parametrize("train", [two_optimizers, in_evaluation_mode, without_root, with_closure, of_a_copy])
def test_training_that_was_seen_is_not_called_unseen(train: Any, options: dict[str, Any], tmp_path: Path) -> None:
    model = mlp()
    with said() as caught, TraceRecorder(model, tmp_path / "run", **options):
        with torch.no_grad():
            model(X)
        train(model)
    assert caught == []
    assert not any("in training" in note for note in notes_of(tmp_path / "run"))
