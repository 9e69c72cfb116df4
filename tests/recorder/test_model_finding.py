from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx, nn

from overflow_recorder import RecorderWarning, TraceRecorder
from overflow_recorder.model_finding import ModelFinder, label
from tests.recorder.recordings import Forward, entry, frames_of, global_hooks, hooks_on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

X = torch.ones(1, 2)


class Net(nn.Module):
    """Changes its input in place, and is given it by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, first: torch.Tensor = X, *, value: torch.Tensor = X) -> torch.Tensor:
        output: torch.Tensor = self.linear(first + value.relu_())
        return output


class Heard:
    """What a finder says."""

    def __init__(self) -> None:
        self.found: list[tuple[nn.Module, nn.Module]] = []
        self.settled: list[list[str]] = []
        self.when_found: Callable[[nn.Module], object] = lambda model: None

    def finder(self, name: str | None = None) -> ModelFinder:
        return ModelFinder(name, self._found, self.settled.append)

    def _found(self, model: nn.Module, called: nn.Module) -> None:
        self.found.append((model, called))
        self.when_found(model)


@pytest.fixture
def heard() -> Iterator[Heard]:
    before = global_hooks()
    yield Heard()
    assert global_hooks() == before, "a test has left its finder armed"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script's own module."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def _watched(finder: ModelFinder, *calls: Callable[[], Any]) -> None:
    finder.arm()
    try:
        for call in calls:
            call()
    finally:
        finder.disarm()


def _frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(requires_grad=False)


# Which one is the model.


def test_the_outermost_trainable_module_called_is_the_model(heard: Heard) -> None:
    # GIVEN an outer module, one without parameters and a frozen one, both called before it
    model, loss, teacher = nn.Sequential(Net()), nn.MSELoss(), _frozen(nn.Linear(2, 2))

    # WHEN
    _watched(heard.finder(), lambda: loss(X, X), lambda: teacher(X), lambda: model(X))

    # THEN
    assert heard.found == [(model, model)]


@pytest.mark.parametrize("name", ["Net", "tests.recorder.test_model_finding.Net"])
def test_a_class_is_found_inside_of_others(heard: Heard, script: ModuleType, name: str) -> None:
    inner = Net()
    wrapper = nn.Sequential(nn.Linear(2, 2), inner)

    _watched(heard.finder(name), lambda: wrapper(X))

    assert heard.found == [(inner, inner)]


@pytest.mark.parametrize("name", ["trainer.model", "__main__.trainer.model"])
def test_a_variable_of_the_script_names_one_of_two(heard: Heard, script: ModuleType, name: str) -> None:
    # GIVEN
    first, second = Net(), Net()
    script.trainer = type("Trainer", (), {"model": second})()  # type: ignore[attr-defined]

    # WHEN
    _watched(heard.finder(name), lambda: first(X), lambda: second(X))

    # THEN
    assert heard.found == [(second, second)]


def test_a_part_of_a_variable(heard: Heard, script: ModuleType) -> None:
    script.model = nn.Sequential(nn.Linear(2, 2), Net())  # type: ignore[attr-defined]

    _watched(heard.finder("model.1"), lambda: script.model(X))

    assert heard.found == [(script.model[1], script.model[1])]


def test_a_named_model_of_which_only_a_part_is_called(heard: Heard, script: ModuleType) -> None:
    script.model = nn.ModuleDict({"encoder": Net(), "decoder": Net()})  # type: ignore[attr-defined]

    _watched(heard.finder("model"), lambda: script.model["encoder"](X))

    assert heard.found == [(script.model, script.model["encoder"])]


def test_a_named_model_may_be_frozen(heard: Heard, script: ModuleType) -> None:
    model = _frozen(Net())

    _watched(heard.finder("Net"), lambda: model(X))

    assert heard.found == [(model, model)]


def test_a_name_that_nothing_has(heard: Heard, script: ModuleType) -> None:
    # GIVEN a script in which the name is something else
    script.model, finder = 3, heard.finder("model")  # type: ignore[attr-defined]
    net = Net()

    # WHEN
    _watched(finder, lambda: net(X), lambda: net(X))

    # THEN
    assert heard.found == []
    assert not finder.has_found
    assert finder.others == ["Net"]


# The others.


def test_a_gan_is_told_of_both(heard: Heard, script: ModuleType) -> None:
    # GIVEN
    script.generator, script.critic = nn.Sequential(nn.Linear(2, 2)), Net()  # type: ignore[attr-defined]
    generator, critic, loss = script.generator, script.critic, nn.MSELoss()
    finder = heard.finder()

    # WHEN the first is called, then the other, a loss, a frozen one, and the first again
    _watched(finder, lambda: generator(X), lambda: critic(generator.training * X), lambda: loss(X, X),
             lambda: _frozen(nn.Linear(2, 2))(X))  # fmt: skip
    before = list(heard.settled)
    _watched(again := heard.finder(), lambda: generator(X), lambda: critic(X), lambda: generator(X), lambda: critic(X))

    # THEN each trainable one is named once, and by then nothing is watched any more
    assert before == []
    assert finder.others == ["Net (critic)"]
    assert heard.settled == [["Net (critic)"]]
    assert not again.is_armed


def test_one_model_alone_has_no_others(heard: Heard) -> None:
    model = nn.Sequential(nn.Sequential(Net()), Net())

    _watched(heard.finder(), lambda: model(X), lambda: model(X))

    assert heard.settled == [[]]


def test_a_part_called_by_itself_before_is_another(heard: Heard, script: ModuleType) -> None:
    script.model = nn.Sequential(Net(), nn.Linear(2, 2))  # type: ignore[attr-defined]
    finder = heard.finder()

    _watched(finder, lambda: script.model[0](X), lambda: script.model[1](X))

    assert heard.found == [(script.model[0], script.model[0])]
    assert finder.others == ["Linear (model.1)"]


def test_labels(script: ModuleType) -> None:
    script.net, script.wrapped = Net(), nn.Sequential(Net())  # type: ignore[attr-defined]

    assert label(script.net) == "Net (net)"
    assert label(script.wrapped[0]) == "Net (wrapped.0)"
    assert label(nn.Linear(1, 1)) == "Linear"


def test_a_label_survives_a_model_that_cannot_be_walked(script: ModuleType) -> None:
    class Strange(nn.Module):
        def named_modules(self, *arguments: Any, **keywords: Any) -> Any:
            raise RuntimeError("not now")

    script.strange = Strange()  # type: ignore[attr-defined]

    assert label(nn.Linear(1, 1)) == "Linear"


# The first call itself.


def test_the_first_call_is_recorded_whole(heard: Heard, tmp_path: Path) -> None:
    # GIVEN a recorder that is attached when the model is found
    model, value = Net(), torch.tensor([[-9.0, 1.0]])
    recorders: list[TraceRecorder] = []
    heard.when_found = lambda model: recorders.append(TraceRecorder(model, tmp_path / "run", every_n_batches=1).start())

    # WHEN
    _watched(heard.finder(), lambda: model(value=value), lambda: model(X, value=X))
    recorders[0].close()

    # THEN both calls are batches with the same frames, and the first one's input is as it was before the forward
    frames = frames_of(tmp_path / "run")
    assert [(frame.batch_number, frame.module_name) for frame in frames] == [
        (0, "linear"), (0, ""), (1, "linear"), (1, ""),
    ]  # fmt: skip
    given = entry(frames[1], "input[value]")
    assert (given.abs_min, given.abs_max) == (1.0, 9.0)
    assert value.tolist() == [[0.0, 1.0]]


def test_nothing_remains_behind_on_the_model(heard: Heard) -> None:
    model = Net()

    _watched(heard.finder(), lambda: model(X), lambda: model(X))

    assert hooks_on(model) == []
    assert not model._forward_pre_hooks_with_kwargs


def test_hooks_that_were_there_before_are_called_once(heard: Heard) -> None:
    # GIVEN
    model, seen = Net(), list[str]()
    model.register_forward_pre_hook(lambda *_: seen.append("old"))
    heard.when_found = lambda model: model.register_forward_pre_hook(lambda *_: seen.append("new"), with_kwargs=True)

    # WHEN
    _watched(heard.finder(), lambda: model(X))

    # THEN the new one too, though torch had listed this call's hooks already
    assert sorted(seen) == ["new", "old"]


def test_what_a_hook_raises_on_purpose_goes_up(heard: Heard) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("on purpose")

    model = Net()
    heard.when_found = lambda model: model.register_forward_pre_hook(refuse, with_kwargs=True)

    with pytest.raises(ValueError, match="on purpose"):
        _watched(heard.finder(), lambda: model(X))


def test_a_fault_of_ours_is_a_warning_and_the_end_of_watching(heard: Heard) -> None:
    # GIVEN
    def fail(model: nn.Module) -> None:
        raise RuntimeError("broken")

    model, finder = Net(), heard.finder()
    heard.when_found = fail
    finder.arm()

    # WHEN
    with pytest.warns(RecorderWarning, match=r"the model could not be found \(RuntimeError: broken\); training goes"):
        output = model(X)

    # THEN
    assert torch.equal(output, model(X))
    assert not finder.is_armed


# What is no call.


def test_tracing_is_no_call(heard: Heard) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Forward(lambda value: value + 1))

    _watched(heard.finder(), lambda: fx.symbolic_trace(model), lambda: torch.jit.trace(model, X, check_trace=False))  # type: ignore[no-untyped-call]  # torch's own

    assert heard.found == []


def test_a_compiled_model_is_found_from_outside_without_a_word(heard: Heard) -> None:
    # GIVEN
    model = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    assert isinstance(model, nn.Module)

    # WHEN torch warns of hooks for all modules, and this is no concern of the user's
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _watched(heard.finder(), lambda: model(X), lambda: model(X))

    # THEN
    assert heard.found == [(model, model)]


def test_inside_a_compiled_function_nothing_is_seen_and_nothing_changes(heard: Heard) -> None:
    model = nn.Linear(2, 2)

    @torch.compile(backend="eager", fullgraph=True)
    def step(value: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = model(value) * 2
        return output

    outputs: list[torch.Tensor] = []
    _watched(heard.finder(), lambda: outputs.append(step(X)))

    assert torch.equal(outputs[0], model(X) * 2)
    assert heard.found == []
