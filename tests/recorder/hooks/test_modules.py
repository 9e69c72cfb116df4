"""Attaching to modules and letting go of them."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_recorder import RecorderWarning, TraceRecorder
from tests.recorder.recordings import EVERYTHING, entry, frames_of, global_hooks, hooks_on, record, recording
from tests.recorder.subprocesses import output_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

X = torch.ones(1, 2)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))


def train(model: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()


# Leaving nothing behind.


def test_no_hook_remains_after_close(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    prompt = nn.Parameter(torch.ones(1, 2))  # a leaf that is an input
    before = global_hooks()

    # WHEN
    with recording(model, tmp_path / "run", roles=EVERYTHING):
        train(model)
        output = model(prompt)
        assert hooks_on(model)
        assert global_hooks() != before

    # THEN, and the graph that is still there does nothing any more
    assert hooks_on(model) == []
    assert not prompt._backward_hooks
    assert global_hooks() == before
    frames = len(frames_of(tmp_path / "run"))
    output.sum().backward()
    assert len(frames_of(tmp_path / "run")) == frames


def test_a_leaf_that_is_an_input_gets_one_hook_however_often(tmp_path: Path) -> None:
    # GIVEN
    model, prompt = mlp(), nn.Parameter(torch.ones(1, 2))

    # WHEN
    with recording(model, tmp_path / "run", roles=["input", "grad_input"]) as (_, frames):
        for _ in range(5):
            model(prompt).sum().backward()
        hooks = dict(prompt._backward_hooks or {})

    # THEN one of the first module's and one of the root's
    assert len(hooks) == 2
    arrived = [frame.batch_number for frame in frames if frame.module_name == "" and frame.phase == "backward"]
    assert arrived == [0, 1, 2, 3, 4]


def test_the_models_own_hooks_stay_and_keep_their_order(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    calls: list[str] = []
    model.register_forward_hook(lambda *_: calls.append("first"))

    # WHEN
    with recording(model, tmp_path / "run"):
        model.register_forward_hook(lambda *_: calls.append("second"))
        model(X)
    model(X)

    # THEN
    assert calls == ["first", "second"] * 2
    assert len(hooks_on(model)) == 2


def test_close_twice_and_start_twice(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    recorder = TraceRecorder(model, tmp_path / "run", every_n_batches=1)

    # WHEN
    recorder.start()
    attached = len(hooks_on(model))
    recorder.start()
    assert len(hooks_on(model)) == attached
    model(X)
    recorder.close()
    recorder.close()

    # THEN
    assert hooks_on(model) == []
    assert len(frames_of(tmp_path / "run")) == 4


@pytest.mark.parametrize("warnings_are_errors", [False, True])
def test_a_second_recorder_on_a_model_takes_over(
    warnings_are_errors: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN
    model = mlp()
    first = TraceRecorder(model, tmp_path / "first", every_n_batches=1).start()
    model(X)
    hooks = len(hooks_on(model))

    # WHEN
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error" if warnings_are_errors else "always")
        second = TraceRecorder(model, tmp_path / "second", every_n_batches=1).start()
        model(X)
        second.close()

    # THEN the first one is complete, and no frame came twice
    assert not first.is_attached
    told = capsys.readouterr().err.splitlines() if warnings_are_errors else [str(one.message) for one in caught]
    assert len(told) == 1
    assert "another recorder is on this model" in told[0]
    assert len(hooks_on(model)) == 0 < hooks
    assert [len(frames_of(tmp_path / name)) for name in ("first", "second")] == [4, 4]


def test_recorders_on_a_model_and_on_a_part_of_it(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()

    # WHEN
    with recording(model, tmp_path / "whole") as (_, whole), recording(model[0], tmp_path / "part") as (_, part):
        train(model, steps=1)

    # THEN each has its own names
    assert [frame.module_name for frame in whole] == ["0", "1", "2", ""]
    assert [frame.module_name for frame in part] == [""]


class Refusing(nn.Linear):
    """Refuses hooks, as a module may that is implemented elsewhere."""

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("no hooks here")


def test_attaching_that_fails_halfway_is_rolled_back(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Sequential(nn.Linear(2, 2), Refusing(2, 2))
    before = global_hooks()

    # WHEN
    with pytest.warns(RecorderWarning, match="could not start .*no hooks here") as caught:
        recorder = TraceRecorder(model, tmp_path / "run", roles=EVERYTHING).start()

    # THEN training starts all the same
    assert len(caught) == 1
    assert hooks_on(model) == []
    assert global_hooks() == before
    assert not recorder.is_attached
    train(model)
    recorder.record("loss", loss=1.0)
    recorder.step()
    recorder.close()


def test_a_callback_that_raises_at_the_start_is_heard_and_leaves_nothing(tmp_path: Path) -> None:
    # GIVEN
    class Refuses:
        def on_batch_begin(self, recorder: Any, event: Any) -> None:
            raise LookupError("not today")

    model = mlp()
    with pytest.raises(LookupError, match="not today"):
        TraceRecorder(model, tmp_path / "run", callbacks=[Refuses]).start()
    assert hooks_on(model) == []


# Modules that come and go.


def added_by_name(model: nn.Sequential) -> None:
    model.add_module("3", nn.Tanh())


def inserted(model: nn.Sequential) -> None:
    model.insert(3, nn.Tanh())  # writes where no hook of torch's sees it


def inside_another(model: nn.Sequential) -> None:
    model.append(nn.Sequential(nn.Tanh()))


@pytest.mark.parametrize("after_batches", [0, 1])
@pytest.mark.parametrize("add", [added_by_name, inserted, inside_another])
def test_modules_added_after_attaching(
    add: Callable[[nn.Sequential], None], after_batches: int, tmp_path: Path
) -> None:
    # GIVEN
    model = mlp()

    # WHEN
    with recording(model, tmp_path / "run", roles=EVERYTHING) as (_, frames):
        for _ in range(after_batches):
            model(X)
        add(model)
        model(X)

    # THEN
    last = [frame.module_name for frame in frames if frame.batch_number == after_batches]
    assert "3" in last
    assert len(last) == len(list(model.modules()))
    assert hooks_on(model) == []


def test_a_module_replaced_by_another_at_its_address(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Sequential(nn.Linear(2, 2))

    # WHEN
    with recording(model, tmp_path / "run", roles=EVERYTHING) as (_, frames):
        for _ in range(5):
            model(X).sum().backward()
            del model[0]
            gc.collect()
            model.append(nn.Linear(2, 2))
        model(X).sum().backward()

    # THEN each has been seen, and its gradients
    of_module = [frame for frame in frames if frame.module_name == "0"]
    assert [frame.batch_number for frame in of_module if frame.phase == "train"] == list(range(6))
    assert sorted({frame.batch_number for frame in of_module if entry_of(frame, "weight_grad")}) == list(range(6))


def entry_of(frame: Any, role: str) -> bool:
    return any(one.role == role for one in frame.entries)


def test_a_removed_module_is_not_kept_alive(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    removed = weakref.ref(model[2])
    weight = weakref.ref(model[2].weight)

    # WHEN
    with recording(model, tmp_path / "run", roles=EVERYTHING):
        train(model)
        del model[2]
        model(X)
        gc.collect()

        # THEN
        assert removed() is None
        assert weight() is None


def test_parameters_thawed_while_recording_have_their_gradients_recorded(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    model[0].requires_grad_(requires_grad=False)

    # WHEN
    with recording(model, tmp_path / "run", roles=["output", "weight_grad"]) as (_, frames):
        model(X).sum().backward()
        model[0].requires_grad_(requires_grad=True)
        model(X).sum().backward()

    # THEN
    found = [(frame.batch_number, frame.module_name) for frame in frames if entry_of(frame, "weight_grad")]
    assert sorted(set(found)) == [(0, "2"), (1, "0"), (1, "2")]


def test_lazy_modules(tmp_path: Path) -> None:
    # GIVEN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a new feature
        model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())

    # WHEN
    frames = record(model, tmp_path / "run", lambda: model(torch.ones(2, 4)), roles=EVERYTHING)

    # THEN
    assert entry(frames[0], "weight").shape == (3, 4)
    assert [frame.module_name for frame in frames] == ["0", "1", ""]


# Copies.


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))  # type: ignore[no-any-return]


def through_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle, through_save])
def test_a_copy_has_no_living_hook(copied: Callable[[nn.Module], nn.Module], tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    with recording(model, tmp_path / "run", roles=EVERYTHING) as (_, frames):
        train(model, steps=1)

        # WHEN
        twin = copied(model)
        twin(X).sum().backward()

    # THEN the copy was not recorded, and nothing of the recorder went with it
    assert torch.equal(twin(X), model(X))
    assert {frame.batch_number for frame in frames} == {0}
    assert all(hook.func.__module__ == "sys" for hook in hooks_on(twin))
    assert [list(twin.state_dict()), list(vars(twin))] == [list(model.state_dict()), list(vars(model))]


def test_a_pickled_model_is_read_where_this_package_is_not(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    with recording(model, tmp_path / "run"):
        model(X)
        torch.save(model, tmp_path / "model.pt")

    # THEN
    code = """
        import sys, torch
        sys.modules["overflow_recorder"] = sys.modules["overflow_analyzer"] = None
        print(torch.load(sys.argv[1], weights_only=False)(torch.ones(1, 2)).shape)
    """
    assert output_of(code, tmp_path / "model.pt") == "torch.Size([1, 2])\n"


def test_state_dict_and_attributes_are_unchanged(tmp_path: Path) -> None:
    # GIVEN
    model = mlp()
    before = list(model.state_dict()), [list(vars(module)) for module in model.modules()]

    # WHEN
    with recording(model, tmp_path / "run", roles=EVERYTHING):
        train(model)
        during = list(model.state_dict()), [list(vars(module)) for module in model.modules()]

    # THEN
    assert before == during
    assert before == (list(model.state_dict()), [list(vars(module)) for module in model.modules()])


@pytest.mark.parametrize("save", [copy.copy, pickle.dumps, lambda tensor: torch.save(tensor, io.BytesIO())])
def test_tensors_that_went_through_the_model_are_saved_without_a_warning(save: Any, tmp_path: Path) -> None:
    # GIVEN
    model, prompt = mlp(), torch.ones(1, 2, requires_grad=True)

    # THEN (a warning fails the test)
    with recording(model, tmp_path / "run", roles=EVERYTHING):
        output = model(prompt)
        save(output)
        save(prompt)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("a\udc80\x1b[31m模块", nn.Identity())
    frames = record(model, tmp_path / "run", lambda: model(X))
    assert frames[0].module_name == "a\\udc80\x1b[31m模块"
