"""``_modules.json`` of real models: what stands in it, when it changes, and that extra_repr can do no harm."""

from __future__ import annotations

import random
import time
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from overflow_analyzer import diff_traces, open_trace
from overflow_analyzer.format.modules import MODULES_FILE, Modules, ModuleSettings
from overflow_recorder import RecorderWarning, TraceRecorder
from overflow_recorder.recording import module_states
from tests.recorder import recordings
from tests.recorder.recordings import Forward

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.1), nn.BatchNorm1d(8))


def modules_of(path: Path) -> Modules:
    found = open_trace(path).ranks[0].modules
    assert found is not None
    return found


def record(model: nn.Module, path: Path, *runs: Callable[[], Any], **options: Any) -> Modules:
    """Record runs of one batch each, of four features unless they call the model themselves."""
    with TraceRecorder(model, path, every_n_batches=1, **options):
        for run in runs or (lambda: None,):
            run()
            model(torch.ones(2, 4))
    return modules_of(path)


def test_what_every_module_is(tmp_path: Path) -> None:
    # GIVEN a model that is recorded WHEN its settings are read
    found = record(model(), tmp_path / "run")

    # THEN they are what print(model) shows, with what torch says of dtypes and devices, counted by hand
    (state,) = found.states
    assert (state.batch_number, state.after, state.removed, found.left_out) == (0, None, (), 0)
    package, one = "torch.nn.modules", {"dtypes": ("float32",), "devices": ("cpu",)}
    none: dict[str, Any] = {"dtypes": (), "devices": ()}
    bare = {"name": "", "module_class": "", "extra_repr": "", "attributes": {}, "training": True}
    assert [vars(module) for module in state.modules] == [
        {**bare, "module_class": f"{package}.container.Sequential", **none, "parameters": 0},
        {
            **bare,
            "name": "0",
            "module_class": f"{package}.linear.Linear",
            "extra_repr": "in_features=4, out_features=8, bias=True",
            **one,
            "parameters": 40,
        },
        {
            **bare,
            "name": "1",
            "module_class": f"{package}.normalization.LayerNorm",
            "extra_repr": nn.LayerNorm(8).extra_repr(),
            "attributes": {"normalized_shape": "(8,)"},
            **one,
            "parameters": 16,
        },
        {
            **bare,
            "name": "2",
            "module_class": f"{package}.dropout.Dropout",
            "extra_repr": "p=0.1, inplace=False",
            **none,
            "parameters": 0,
        },
        {
            **bare,
            "name": "3",
            "module_class": f"{package}.batchnorm.BatchNorm1d",
            "extra_repr": nn.BatchNorm1d(8).extra_repr(),  # type: ignore[no-untyped-call]
            "attributes": {"num_features": "8"},
            "dtypes": ("float32", "int64"),
            "devices": ("cpu",),
            "parameters": 16,
        },
    ]


class Norm(nn.Module):
    """A norm of somebody's, which does not say what it is."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.act, self.axes, self.name = eps, nn.functional.relu, [0, 1], "a\x1b\ud800" + "x" * 500
        self.config, self.history, self._hidden, self.large = object(), list(range(1000)), 1, 1 << 100_000
        self.dtype = torch.float16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.std() + self.eps)


def test_plain_attributes_speak_for_a_module_without_extra_repr(tmp_path: Path) -> None:
    (one,) = record(Norm(1e-6), tmp_path / "run").states[0].modules
    name = one.attributes.pop("name")
    assert one.attributes == {
        "eps": "1e-06",
        "act": "torch.nn.functional.relu",
        "axes": "[0, 1]",
        "large": "'integer of 100001 bits'",
        "dtype": "torch.float16",
    }
    assert name.startswith("'a\\x1b\\ud800xxx")
    assert len(name) == 100


def test_a_change_stores_what_changed(tmp_path: Path) -> None:
    # GIVEN a run in which a dropout gets another p, a module is added in batch 2 and one removed
    one = model()

    def weaker() -> None:
        one[2].p = 0.3  # type: ignore[assignment]

    def longer() -> None:
        one.append(nn.ReLU())

    def shorter() -> None:
        del one[4]

    found = record(one, tmp_path / "run", lambda: None, weaker, longer, shorter)

    # THEN what is new is seen where the modules become others, with the last look before it
    first, second, third = found.states
    assert (first.batch_number, len(first.modules)) == (0, 5)
    assert (second.batch_number, second.after, second.removed) == (2, 0, ())
    assert [(module.name, module.extra_repr) for module in second.modules] == [("2", "p=0.3, inplace=False"), ("4", "")]
    assert (third.batch_number, third.after, third.modules, third.removed) == (3, 2, (), ("4",))


def test_a_change_is_seen_at_the_end_at_last(tmp_path: Path) -> None:
    one = nn.Sequential(nn.Identity(), nn.ReLU())
    one[0].scale = nn.Parameter(torch.ones(3))
    found = record(one, tmp_path / "run", lambda: None, one[0].half)
    assert [(state.batch_number, state.after) for state in found.states] == [(0, None), (1, 0)]
    assert [(module.name, module.dtypes) for module in found.states[1].modules] == [("0", ("float16",))]


def test_what_train_and_eval_do_to_the_whole_model_is_no_change(tmp_path: Path) -> None:
    # GIVEN a model that is evaluated after its training THEN there is one state
    one = model()
    assert len(record(one, tmp_path / "whole", lambda: None, one.eval).states) == 1

    # GIVEN one module that stays in eval WHEN the model trains THEN that is a change
    one.train()
    found = record(one, tmp_path / "part", lambda: None, one[2].eval)
    assert [(module.name, module.training) for module in found.states[1].modules] == [("2", False)]


def test_a_lazy_module_is_looked_at_again(tmp_path: Path) -> None:
    # GIVEN a lazy module WHEN it has run THEN what it has become is known from the next batch on
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        one = nn.Sequential(nn.LazyLinear(3))
    found = record(one, tmp_path / "run", lambda: None, lambda: None, lambda: None)
    lazy, linear = (state.modules[-1] for state in found.states)
    assert (lazy.class_name, lazy.parameters, linear.class_name, linear.parameters) == ("LazyLinear", 0, "Linear", 15)
    assert found.states[1].batch_number == 1


def test_going_on_after_a_close(tmp_path: Path) -> None:
    one = model()
    recorder = TraceRecorder(one, tmp_path / "run", every_n_batches=1)
    with recorder:
        one(torch.ones(2, 4))
    one[2].p = 0.5  # type: ignore[assignment]
    with recorder:
        one(torch.ones(2, 4))
    assert [(state.batch_number, len(state.modules)) for state in modules_of(tmp_path / "run").states] == [
        (0, 5),
        (1, 1),
    ]


def test_without_a_path_nothing_is_asked() -> None:
    with TraceRecorder(Odd(lambda: pytest.fail("asked")), None) as recorder:
        recorder.model(torch.ones(1))


class Odd(nn.Module):
    """A module whose extra_repr is a function."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self._function = function
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def extra_repr(self) -> str:
        return self._function()  # type: ignore[no-any-return]


def fails() -> str:
    raise RuntimeError("no")


def recurses() -> str:
    return recurses()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (fails, None),
        (recurses, None),
        (lambda: 3, None),
        (lambda: None, None),
        (lambda: "\x1b[31m\0\ud800", "\x1b[31m\0\\ud800"),
        (lambda: "x" * 10_000_000, "x" * 997 + "..."),
    ],
)
def test_whatever_extra_repr_does_the_others_are_recorded(
    function: Callable[[], Any], said: str | None, tmp_path: Path
) -> None:
    root, linear = record(Odd(function), tmp_path / "run").states[0].modules
    assert root.extra_repr == said
    assert linear.extra_repr == "in_features=4, out_features=4, bias=True"


def test_random_numbers_that_it_draws_are_put_back(tmp_path: Path) -> None:
    # GIVEN an extra_repr that draws
    def draws() -> str:
        return f"{torch.rand(1)} {random.random()} {np.random.rand()}"  # noqa: NPY002  the global generator

    def states() -> list[Any]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]  # type: ignore[index]  # noqa: NPY002

    # WHEN it is recorded THEN the random states are as they were
    one = Odd(draws)
    before = states()
    assert record(one, tmp_path / "run").states[0].modules[0].extra_repr is not None
    assert states() == before


def test_it_is_not_called_where_reading_a_weight_computes_it(tmp_path: Path) -> None:
    # GIVEN a module with a spectral norm, whose extra_repr reads the weight: in training that changes a buffer
    class Own(nn.Linear):
        def extra_repr(self) -> str:
            return f"{self.weight.shape}"

    torch.manual_seed(0)
    own = nn.utils.parametrizations.spectral_norm(Own(4, 4))
    with TraceRecorder(own, tmp_path / "run", every_n_batches=1):
        kept = [buffer.clone() for buffer in own.buffers()]
        own._forward_pre_hooks.clear()
        recorded = modules_of_open(tmp_path / "run")

    # THEN it is not asked, and the buffers are the same
    assert len(kept) == 2
    assert recorded.extra_repr is None
    assert all(map(torch.equal, own.buffers(), kept))


def modules_of_open(path: Path) -> ModuleSettings:
    """The root of a run that has no frame yet."""
    return Modules.from_json((path / "rank=0" / MODULES_FILE).read_bytes(), path).states[0].modules[0]


def test_once_the_time_is_spent_none_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a module that takes all the time there is
    monkeypatch.setattr(module_states, "_SECONDS", 0.01)
    calls = []

    def slow() -> str:
        calls.append(1)
        time.sleep(0.02)
        return "slow=True"

    # WHEN the model is looked at twice THEN it was called once, and what it said then stays
    found = record(Odd(slow), tmp_path / "run")
    assert len(calls) == 1
    assert [[one.extra_repr for one in state.modules] for state in found.states] == [["slow=True", None]]


def test_it_stays_within_its_bytes(tmp_path: Path) -> None:
    # GIVEN room for a few modules WHEN a model has a thousand THEN the first ones are there, the others are counted
    one = nn.Sequential(*(nn.Dropout(0.0) for _ in range(1000)))
    found = record(one, tmp_path / "run", max_bytes=64 * 1024)
    assert (tmp_path / "run" / "rank=0" / MODULES_FILE).stat().st_size <= 64 * 1024 // 32 + 100
    kept = [module.name for module in found.states[0].modules]
    assert 5 < len(kept) < 20
    assert kept == [name for name, _ in one.named_modules()][: len(kept)]
    assert found.left_out == 1001 - len(kept)


def test_a_model_that_changes_in_every_batch_is_looked_at_for_so_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_states, "_MOST_LOOKS", 3)
    one = nn.Sequential(nn.Dropout(0.0))
    found = record(one, tmp_path / "run", *[lambda: one.append(nn.ReLU())] * 6)
    assert len(found.states) == 3


def test_a_disk_that_refuses_costs_the_settings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk that takes everything but this file
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("overflow_recorder.storage.directory.TraceDirectory.write_modules", full)

    # WHEN a run is recorded THEN one warning says it, and the frames are there
    one = model()
    with pytest.warns(RecorderWarning, match="the modules' settings are not recorded .*No space") as warned:
        frames = recordings.record(one, tmp_path / "run", lambda: one(torch.ones(2, 4)))
    (rank,) = open_trace(tmp_path / "run").ranks
    assert (len(warned), len(frames), rank.modules, rank.lost_modules) == (1, 5, None, None)


def test_a_fault_of_our_own_costs_the_settings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module_states.ModuleStates, "_settings", broken)
    one = model()
    with pytest.warns(RecorderWarning, match="the modules' settings are not recorded .*ZeroDivisionError") as warned:
        frames = recordings.record(one, tmp_path / "run", lambda: one(torch.ones(2, 4)))
    assert (len(warned), len(frames), open_trace(tmp_path / "run").ranks[0].ended) == (1, 5, "closed")


def test_overwriting_removes_the_earlier_ones(tmp_path: Path) -> None:
    # GIVEN a run with settings WHEN one without a model's modules overwrites it THEN they are the new run's
    record(model(), tmp_path / "run")
    found = record(nn.ReLU(), tmp_path / "run", overwrite=True)
    assert [module.class_name for module in found.states[0].modules] == ["ReLU"]


def test_a_module_that_calls_the_model_in_its_extra_repr(tmp_path: Path) -> None:
    # GIVEN an extra_repr that runs the model WHEN it is recorded THEN that ends
    one = Odd(lambda: f"{one(torch.ones(1)).item()}")
    assert record(one, tmp_path / "run").states[0].modules[0].extra_repr == "2.0"


@pytest.mark.parametrize("norm", [lambda eps: nn.LayerNorm(8, eps=eps), Norm])
def test_diff_names_the_setting_that_changed(norm: Callable[[float], nn.Module], tmp_path: Path) -> None:
    # GIVEN two runs of which the norm has another eps, whether or not its class says what it has
    for eps in (1e-5, 1e-3):
        torch.manual_seed(0)
        one = nn.Sequential(nn.Linear(4, 8), norm(eps), nn.Linear(8, 1))
        record(one, tmp_path / f"{eps}")

    # WHEN they are compared THEN the module that changed is named with it
    diff = diff_traces(open_trace(tmp_path / "1e-05"), open_trace(tmp_path / "0.001"))
    assert diff.first_divergence is not None
    assert (diff.first_divergence.module_name, diff.first_divergence.kind) == ("1", "module")
    assert [(one.setting, one.a, one.b) for one in diff.first_divergence.settings] == [("eps", "1e-05", "0.001")]


def test_a_scripted_module(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inner = torch.jit.script(nn.Linear(4, 4))
        found = record(Forward(lambda child, x: child(x), inner), tmp_path / "run")
    assert [(one.name, one.parameters) for one in found.states[0].modules] == [("", 0), ("0", 20)]
