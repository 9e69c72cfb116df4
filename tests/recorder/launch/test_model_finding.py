from __future__ import annotations

import copy
import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import fx, nn

from overflow_recorder.launch.model_finding import label
from tests.recorder.finding import Heard, Net, X, frozen, watched
from tests.recorder.recordings import Forward, global_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator


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


# Which one is the model.


def test_the_outermost_trainable_module_called_is_the_model(heard: Heard) -> None:
    # GIVEN an outer module, one without parameters and a frozen one, both called before it
    model, loss, teacher = nn.Sequential(Net()), nn.MSELoss(), frozen(nn.Linear(2, 2))

    # WHEN
    watched(heard.finder(), lambda: loss(X, X), lambda: teacher(X), lambda: model(X))

    # THEN
    assert heard.found == [(model, model)]


@pytest.mark.parametrize("name", ["Net", "tests.recorder.finding.Net"])
def test_a_class_is_found_inside_of_others(heard: Heard, script: ModuleType, name: str) -> None:
    inner = Net()
    wrapper = nn.Sequential(nn.Linear(2, 2), inner)

    watched(heard.finder(name), lambda: wrapper(X))

    assert heard.found == [(inner, inner)]


@pytest.mark.parametrize("name", ["trainer.model", "__main__.trainer.model"])
def test_a_variable_of_the_script_names_one_of_two(heard: Heard, script: ModuleType, name: str) -> None:
    # GIVEN
    first, second = Net(), Net()
    script.trainer = type("Trainer", (), {"model": second})()  # type: ignore[attr-defined]

    # WHEN
    watched(heard.finder(name), lambda: first(X), lambda: second(X))

    # THEN
    assert heard.found == [(second, second)]


def test_a_part_of_a_variable(heard: Heard, script: ModuleType) -> None:
    script.model = nn.Sequential(nn.Linear(2, 2), Net())  # type: ignore[attr-defined]

    watched(heard.finder("model.1"), lambda: script.model(X))

    assert heard.found == [(script.model[1], script.model[1])]


def test_a_named_model_of_which_only_a_part_is_called(heard: Heard, script: ModuleType) -> None:
    script.model = nn.ModuleDict({"encoder": Net(), "decoder": Net()})  # type: ignore[attr-defined]

    watched(heard.finder("model"), lambda: script.model["encoder"](X))

    assert heard.found == [(script.model, script.model["encoder"])]


def test_a_named_model_may_befrozen(heard: Heard, script: ModuleType) -> None:
    model = frozen(Net())

    watched(heard.finder("Net"), lambda: model(X))

    assert heard.found == [(model, model)]


def test_a_name_that_nothing_has(heard: Heard, script: ModuleType) -> None:
    # GIVEN a script in which the name is something else
    script.model, finder = 3, heard.finder("model")  # type: ignore[attr-defined]
    net = Net()

    # WHEN
    watched(finder, lambda: net(X), lambda: net(X))

    # THEN
    assert heard.found == []
    assert not finder.has_found
    assert finder.called == ["Net"]


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_that_nothing_has_the_name_is_said_once_as_soon_as_a_model_is_called_again(
    heard: Heard, script: ModuleType, calls: int
) -> None:
    # GIVEN a model of several modules, and a loss that is called once a batch as the model is
    model, loss = nn.Sequential(Net(), Net()), nn.MSELoss()

    # WHEN
    watched(heard.finder("GPT"), *[lambda: loss(X, X), lambda: model(X)] * calls)

    # THEN
    assert heard.missing == ([["MSELoss", "Sequential"]] if calls > 1 else [])


def test_a_model_that_is_called_later_is_found_all_the_same(heard: Heard, script: ModuleType) -> None:
    first, second = nn.Linear(2, 2), Net()

    watched(heard.finder("Net"), lambda: first(X), lambda: first(X), lambda: second(X))

    assert heard.missing == [["Linear"]]
    assert heard.found == [(second, second)]
    assert heard.others == ["Linear"]


# Models that only a function of the script knows.


MAIN = """
def main(call):
    net = make()
    big = Big()
    train(net, call)
    del big
    assert Big.gone

def train(model, call):
    call(model)

class Big:
    gone = False
    def __del__(self):
        Big.gone = True
"""


@pytest.mark.parametrize("name", ["net", "model", "model.linear"])
def test_a_variable_of_a_function_names_the_model(heard: Heard, script: ModuleType, name: str) -> None:
    # GIVEN
    made = Net()
    script.make = lambda: made  # type: ignore[attr-defined]
    exec(MAIN, vars(script))
    finder = heard.finder(name)
    finder.arm()

    # WHEN
    script.main(lambda model: model(X))
    finder.disarm()

    # THEN it is found, and the function's variables live no longer than without us
    expected = made.linear if name.endswith("linear") else made
    assert heard.found == [(expected, expected)]


def test_a_label_names_the_variable_of_a_function(script: ModuleType) -> None:
    labels: list[str] = []
    script.make = Net  # type: ignore[attr-defined]
    exec(MAIN, vars(script))

    script.main(lambda model: labels.extend(map(label, (model, model.linear))))

    assert labels == ["Net (model)", "Linear (model.linear)"]


# The others.


def test_a_gan_is_told_of_both(heard: Heard, script: ModuleType) -> None:
    # GIVEN
    script.generator, script.critic = nn.Sequential(nn.Linear(2, 2)), Net()  # type: ignore[attr-defined]
    generator, critic, loss = script.generator, script.critic, nn.MSELoss()

    # WHEN the first is called, then the other, a loss, a frozen one, and all of them again
    calls = [lambda: generator(X), lambda: critic(X), lambda: loss(X, X), lambda: frozen(nn.Linear(2, 2))(X)]
    watched(heard.finder(), *calls, *calls)

    # THEN the trainable one is named once
    assert heard.others == ["Net (critic)"]


def test_a_model_that_is_made_or_called_later_is_named(heard: Heard, script: ModuleType) -> None:
    # GIVEN a script that trains a model for each fold, and evaluates a copy
    finder = heard.finder()
    finder.arm()

    # WHEN each is thrown away before the next one is made
    for fold in range(3):
        script.model = nn.Sequential(nn.Linear(2, 2))  # type: ignore[attr-defined]
        for _ in range(3):
            script.model(X)
        if fold == 0:
            script.average = copy.deepcopy(script.model)  # type: ignore[attr-defined]
            script.average(X)
    finder.disarm()

    # THEN
    assert len(heard.found) == 1
    assert heard.others == ["Sequential (average)", "Sequential (model)", "Sequential (model)"]


def test_what_was_called_before_a_named_model_is_named(heard: Heard, script: ModuleType) -> None:
    script.critic, script.maker = nn.Linear(2, 2), Net()  # type: ignore[attr-defined]

    watched(heard.finder("maker"), lambda: script.critic(X), lambda: script.maker(X))

    assert heard.others == ["Linear (critic)"]


def test_one_model_alone_has_no_others(heard: Heard) -> None:
    model = nn.Sequential(nn.Sequential(Net()), Net())

    watched(heard.finder(), lambda: model(X), lambda: model[0](X), lambda: model(X))

    assert heard.others == []


def test_a_wrapper_of_the_model_is_another_only_with_weights_of_its_own(heard: Heard) -> None:
    # GIVEN the wrapper of a library, and a pretrained model under a new head
    model = Net()
    wrapper, tuned = nn.Sequential(model), nn.Sequential(model, nn.Linear(2, 2))

    # WHEN
    watched(heard.finder(), lambda: model(X), lambda: wrapper(X), lambda: tuned(X))

    # THEN
    assert heard.others == ["Sequential"]


def test_a_part_called_by_itself_before_is_another(heard: Heard, script: ModuleType) -> None:
    script.model = nn.Sequential(Net(), nn.Linear(2, 2))  # type: ignore[attr-defined]

    watched(heard.finder(), lambda: script.model[0](X), lambda: script.model[1](X))

    assert heard.found == [(script.model[0], script.model[0])]
    assert heard.others == ["Linear (model.1)"]


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


# What is no call.


def test_tracing_is_no_call(heard: Heard) -> None:
    model = nn.Sequential(nn.Linear(2, 2), Forward(lambda value: value + 1))

    watched(heard.finder(), lambda: fx.symbolic_trace(model), lambda: torch.jit.trace(model, X, check_trace=False))  # type: ignore[no-untyped-call]  # torch's own

    assert heard.found == []


def test_a_compiled_model_is_found_from_outside_without_a_word(heard: Heard) -> None:
    # GIVEN
    model = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    assert isinstance(model, nn.Module)

    # WHEN torch warns of hooks for all modules, and this is no concern of the user's
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched(heard.finder(), lambda: model(X), lambda: model(X))

    # THEN
    assert heard.found == [(model, model)]


def test_inside_a_compiled_function_nothing_is_seen_and_nothing_changes(heard: Heard) -> None:
    model = nn.Linear(2, 2)

    @torch.compile(backend="eager", fullgraph=True)
    def step(value: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = model(value) * 2
        return output

    outputs: list[torch.Tensor] = []
    watched(heard.finder(), lambda: outputs.append(step(X)))

    assert torch.equal(outputs[0], model(X) * 2)
    assert heard.found == []
