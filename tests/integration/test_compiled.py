"""Under ``torch.compile``: the same results from the same graphs, and what is not seen is said."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from overflow_analyzer import open_trace
from overflow_analyzer.errors import EmptyTraceError
from overflow_recorder import RecorderWarning, TraceRecorder
from tests.recorder.recordings import EVERYTHING, frames_of, notes_of
from tests.recorder.subprocesses import output_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

REMEDY = "set TORCHDYNAMO_DISABLE=1 or do not compile"


class Block(nn.Module):
    """Code of one's own: torch compiles none that is its own, such as ``Sequential``'s."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(4, 4), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.linear(x))  # type: ignore[no-any-return]


class Model(nn.Module):
    """A layer and a block, with a graph break between them if asked for."""

    def __init__(self, *, breaks: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.block = Block()
        self.breaks = breaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return self.block(x)  # type: ignore[no-any-return]


class Way:
    """One way to compile a model: what to call, and what to attach to."""

    def __init__(self, model: Model, backend: Any, *, fullgraph: bool) -> None:
        self.model: Any = model
        self.call: Any = model
        self.options = {"backend": backend, "fullgraph": fullgraph}


def whole(way: Way) -> None:
    way.call = way.model = torch.compile(way.model, **way.options)


def whole_but_attached_inside(way: Way) -> None:
    way.call = torch.compile(way.model, **way.options)


def in_place(way: Way) -> None:
    way.model.compile(**way.options)


def a_region(way: Way) -> None:
    way.model.block = torch.compile(way.model.block, **way.options)


def a_region_in_place(way: Way) -> None:
    way.model.block.compile(**way.options)


def a_function(way: Way) -> None:
    model = way.model

    def function(x: torch.Tensor) -> Any:
        return model(x) * 1

    way.call = torch.compile(function, **way.options)


WAYS: dict[str, tuple[Callable[[Way], None], list[str], str]] = {
    # how it is compiled, names of what is seen, and where the sentence about the rest begins
    "whole": (whole, [""], "the model: compiled by torch.compile"),
    "whole, attached inside": (
        whole_but_attached_inside,
        [],
        "no forward of the model was seen: it was not called, or",
    ),
    "in place": (in_place, [], "no forward of the model was seen: it is compiled"),
    "a region": (a_region, ["layer", "block", ""], "block: compiled by torch.compile"),
    "a region in place": (a_region_in_place, ["layer", ""], "block: compiled by torch.compile"),
    "a function": (a_function, [], "no forward of the model was seen: it was not called, or"),
}
X = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler itself warns of this and that
        warnings.simplefilter("error", RecorderWarning)
        yield
    torch._dynamo.reset()


def train(way: Way, steps: int = 3) -> list[torch.Tensor]:
    results = []
    optimizer = torch.optim.SGD(way.model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        output = way.call(X)
        output.square().sum().backward()
        optimizer.step()
        results.append(output.detach())
    return [*results, *(parameter.grad for parameter in way.model.parameters() if parameter.grad is not None)]


def compiled(name: str, *, breaks: bool, fullgraph: bool, backend: str = "eager") -> tuple[Way, Any]:
    counting = CompileCounterWithBackend(backend)
    way = Way(Model(breaks=breaks), counting, fullgraph=fullgraph)
    WAYS[name][0](way)
    return way, counting


def graphs(backend: Any) -> tuple[int, int, int]:
    """How often it was compiled, of how many operations, with how many breaks."""
    breaks = sum(counters["graph_break"].values())
    counters.clear()
    return backend.frame_count, backend.op_count, breaks


@pytest.mark.parametrize(
    ("breaks", "fullgraph", "attached"), [(False, True, "before the first call"), (True, False, "after it")]
)
@pytest.mark.parametrize("name", WAYS)
def test_same_results_same_graphs_and_nothing_is_missing_silently(
    name: str, breaks: bool, fullgraph: bool, attached: str, tmp_path: Path
) -> None:
    # GIVEN
    way, backend = compiled(name, breaks=breaks, fullgraph=fullgraph)
    expected = [*(train(way, steps=1) if attached == "after it" else ()), *train(way)]
    expected_graphs = graphs(backend)
    torch._dynamo.reset()

    # WHEN
    way, backend = compiled(name, breaks=breaks, fullgraph=fullgraph)
    results = train(way, steps=1) if attached == "after it" else []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with TraceRecorder(way.model, tmp_path / "run", every_n_batches=1):
            results += train(way)

    # THEN
    assert all(map(torch.equal, results, expected))
    assert len(results) == len(expected)
    assert graphs(backend) == expected_graphs
    told = [str(one.message) for one in caught if issubclass(one.category, RecorderWarning)]
    assert_told(name, told, tmp_path / "run")


def assert_told(name: str, told: list[str], path: Path) -> None:
    """One warning, which says why and what to do; and a trace that never reads as if all were well."""
    _, seen, sentence = WAYS[name]
    (warning,) = told
    assert f": {sentence}" in warning
    assert REMEDY in warning
    if seen:
        assert [frame.module_name for frame in frames_of(path)] == seen * 3
        assert any(note.startswith(sentence) for note in notes_of(path))
    else:
        with pytest.raises(EmptyTraceError, match=f"nothing was recorded .*{sentence}"):
            open_trace(path)


@pytest.mark.parametrize("name", WAYS)
def test_with_the_compiler_off_everything_is_seen(name: str, tmp_path: Path) -> None:
    # GIVEN
    way, _ = compiled(name, breaks=False, fullgraph=False)

    # WHEN
    with torch.compiler.set_stance("force_eager"), TraceRecorder(way.model, tmp_path / "run", every_n_batches=1):
        way.call(X)

    # THEN no warning came
    assert len({frame.module_name.replace("_orig_mod.", "") for frame in frames_of(tmp_path / "run")}) >= 5
    assert not any("torch.compile" in note and not note.startswith("_orig") for note in notes_of(tmp_path / "run"))


def test_the_remedy_that_the_warning_names_works(tmp_path: Path) -> None:
    # GIVEN
    code = """
        import os, sys
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
        import torch
        from overflow_recorder import TraceRecorder
        from overflow_analyzer import open_trace
        model = torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), backend="eager")
        with TraceRecorder(model, sys.argv[1], every_n_batches=1):
            model(torch.ones(1, 2))
        print(*sorted({frame.module_class for frame in open_trace(sys.argv[1]).ranks[0].frames()}))
    """
    assert {"Linear", "ReLU"} <= set(output_of(code, tmp_path / "run").split())


@pytest.mark.parametrize("name", ["whole", "a region"])
def test_gradients_of_a_compiled_model(name: str, tmp_path: Path) -> None:
    # GIVEN
    way, backend = compiled(name, breaks=False, fullgraph=True, backend="aot_eager")
    expected = train(way)
    expected_graphs = graphs(backend)
    torch._dynamo.reset()

    # WHEN
    way, backend = compiled(name, breaks=False, fullgraph=True, backend="aot_eager")
    with (
        pytest.warns(RecorderWarning, match="compiled by torch.compile"),
        TraceRecorder(way.model, tmp_path / "run", every_n_batches=1, roles=EVERYTHING),
    ):
        results = train(way)

    # THEN weights have their gradients recorded, wherever they were computed
    assert all(map(torch.equal, results, expected))
    assert graphs(backend) == expected_graphs
    frames = frames_of(tmp_path / "run")
    assert len([frame for frame in frames if frame.batch_number == 2 and frame.of_roles("weight_grad")]) == 4


def test_outputs_go_into_a_compiled_loss_unchanged(tmp_path: Path) -> None:
    # GIVEN hooks on what a compiled function is given would break its graph
    backend = CompileCounterWithBackend("aot_eager")
    compile_it: Any = torch.compile(backend=backend, fullgraph=True)
    loss = compile_it(lambda logits: logits.square().sum())
    model = Model(breaks=False)

    # WHEN
    with TraceRecorder(model, tmp_path / "run", every_n_batches=1):
        for _ in range(3):
            loss(model(X)).backward()

    # THEN
    assert graphs(backend)[0] == 1
    assert len(frames_of(tmp_path / "run")) == 3 * 5


def test_training_steps_without_any_forward_that_was_seen_are_noticed_at_once(tmp_path: Path) -> None:
    # GIVEN a training that would run for days
    way, _ = compiled("in place", breaks=False, fullgraph=False)
    recorder = TraceRecorder(way.model, tmp_path / "run").start()

    # WHEN
    with pytest.warns(RecorderWarning, match="no forward of the model was seen"):
        train(way, steps=2)

    # THEN it is not said again
    recorder.close()
