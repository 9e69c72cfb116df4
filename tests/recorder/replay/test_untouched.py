"""A second run leaves the training as it was, and is refused where it could not be true or safe."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

from overflow_recorder.replay import origin as replay
from tests.recorder.replay.origins import Calling, operation_of, origin_of, reason_of

if TYPE_CHECKING:
    from overflow_analyzer.format.origin import Origin


def too_much(x: torch.Tensor) -> torch.Tensor:
    return x * 1e30 * 1e30


# What it leaves as it was.


class Everything(nn.Module):
    """Draws random numbers of every kind, has running statistics, attributes and a generator, and overflows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Identity()
        self.generator = torch.Generator().manual_seed(5)
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        self.seen.append(self.calls)
        x = self.drop(self.norm(x)) + torch.rand(4, generator=self.generator)
        noise = random.random() + np.random.rand()  # noqa: NPY002  the global one
        return self.last(too_much(x + noise))


def state_of(model: Everything) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]
    return [
        [None if one is None else one.clone() for one in tensors],
        [None if one is None else one._version for one in tensors],
        [id(one) for one in tensors],
        [torch.get_rng_state(), model.generator.get_state()],
        [random.getstate(), np.random.get_state()[1].tolist()],  # type: ignore[index]  # noqa: NPY002
        [model.calls, list(model.seen), model.training, model.norm.training],
        [torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()],
    ]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("autocast", [False, True])
def test_weights_buffers_gradients_random_states_and_modes_are_the_same_bit_for_bit(
    monkeypatch: pytest.MonkeyPatch, *, autocast: bool
) -> None:
    # GIVEN a model that has trained one step
    model = Everything()
    model(torch.randn(8, 4) * 1e-30).sum().nan_to_num().backward()
    states: list[list[Any]] = []
    search = replay._search

    def watched(*args: Any) -> Any:
        states.append(state_of(model))
        try:
            return search(*args)
        finally:
            states.append(state_of(model))

    monkeypatch.setattr(replay, "_search", watched)
    # WHEN
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = origin_of(model, torch.randn(8, 4))
    # THEN
    assert found.operation is not None, found.reason
    assert found.draws
    assert found.operation.name == "torch.mul"
    before, after = states
    assert equal(before, after)


def test_autocast_is_as_it_was() -> None:
    # GIVEN a product that overflows in float16 alone
    def function(x: torch.Tensor) -> torch.Tensor:
        return x @ x

    # WHEN it runs under autocast
    with torch.autocast("cpu", dtype=torch.float16):
        operation = operation_of(Calling(function), torch.full((4, 4), 200.0))
    # THEN
    assert operation.result.dtype == "float16"


def test_no_cast_is_left_in_autocasts_cache() -> None:
    # GIVEN under autocast, a second run without gradients casts the same weight
    model = nn.Sequential(nn.Linear(4, 4), Calling(too_much))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        origin_of(model, torch.ones(1, 4))
        # WHEN
        model[0](torch.ones(1, 4)).sum().backward()
    # THEN
    assert model[0].weight.grad is not None


def test_checkpointed_modules_run_again() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Calling(too_much)

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.block, x, use_reentrant=False)

    operation = operation_of(Checkpointed(), torch.ones(2, requires_grad=True))
    assert (operation.name, operation.module_name) == ("torch.mul", "block")


def test_hooks_of_others_do_not_run_again() -> None:
    # GIVEN hooks that count
    model = Calling(lambda x: too_much(model.kids[0](x)), nn.Linear(2, 2))
    counts = {"before": 0, "after": 0}
    model.kids[0].register_forward_pre_hook(lambda *_: counts.update(before=counts["before"] + 1))
    model.kids[0].register_forward_hook(lambda *_: counts.update(after=counts["after"] + 1))
    # WHEN
    operation_of(model, torch.ones(1, 2))
    # THEN
    assert counts == {"before": 1, "after": 1}
    assert len(model.kids[0]._forward_hooks) == 1


# What is refused.


def test_an_input_changed_in_place() -> None:
    assert reason_of(Calling(lambda x: x.mul_(1e30).mul_(1e30)), torch.ones(2)) == "it changes input[0] in place"


def test_an_input_changed_in_place_is_not_changed_twice() -> None:
    # GIVEN
    x = torch.ones(2)
    # WHEN
    origin_of(Calling(lambda x: x.add_(1) * 1e38 * 1e38), x)
    # THEN
    assert x.tolist() == [2.0, 2.0]


def test_an_input_changed_in_place_is_looked_for_further_out() -> None:
    # GIVEN the inner module changes what the outer one has made
    inner = Calling(lambda x: x.mul_(1e30).mul_(1e30))
    # WHEN
    origin = origin_of(Calling(lambda x: inner(x + 1), inner), torch.ones(2))
    # THEN
    assert origin.replayed == ""
    assert origin.operation is not None
    assert origin.operation.name == "torch.Tensor.mul_"


class Cache:
    """Grows at each call, as a key-value cache does."""

    def __init__(self) -> None:
        self.keys = torch.ones(1)


def test_a_cache_that_grows_is_refused_and_left_alone() -> None:
    # GIVEN
    def function(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        cache.keys = torch.cat([cache.keys, x])
        return cache.keys * 1e30 * 1e30

    cache = Cache()
    # WHEN
    reason = reason_of(Calling(function), torch.ones(1), cache)
    # THEN
    assert reason == "it changes an object that it was given, such as a cache"
    assert len(cache.keys) == 2


def test_a_list_among_the_arguments_is_left_alone() -> None:
    def function(x: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        seen.append(x)
        return too_much(x)

    seen: list[torch.Tensor] = []
    origin_of(Calling(function), torch.ones(1), seen)
    assert len(seen) == 1


def test_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(replay, "_forward", full)
    assert reason_of(Calling(too_much), torch.ones(2)) == "the second run does not fit in memory"


def test_no_memory_on_the_host() -> None:
    # GIVEN a function that asks for 4 EB the second time
    asked = iter([1, 1 << 60])
    reason = reason_of(Calling(lambda x: too_much(x.new_empty(next(asked)).fill_(1))), torch.ones(2))
    assert reason == "the second run does not fit in memory"


def test_no_second_occurrence() -> None:
    factors = iter([1e30, 1.0])
    reason = reason_of(Calling(lambda x: x * next(factors) * 1e30), torch.ones(2))
    assert reason == "it did not become non-finite again when the root module (Calling) was run a second time"


def test_other_random_states_are_tried_where_it_draws_random_numbers() -> None:
    # GIVEN it overflows for about one draw in two
    model = Calling(lambda x: x * (1e38 * torch.rand(1).round() * 10))
    for seed in range(20):
        torch.manual_seed(seed)
        if torch.rand(1).round():
            torch.manual_seed(seed)
            # WHEN the next draw may be another one
            assert operation_of(model, torch.ones(2)).name == "torch.mul"


def test_no_more_than_eight_other_random_states_are_tried() -> None:
    draws = iter([1e30, *[1.0] * 20])
    model = Calling(lambda x: (x + torch.rand(1)) * next(draws) * 1e30)
    assert reason_of(model, torch.ones(2)).endswith("with 8 other random states neither")
    assert len(list(draws)) == 20 - 9


def test_an_exception_in_the_second_run() -> None:
    factors = iter([1e30])
    assert reason_of(Calling(lambda x: x * next(factors) * 1e30), torch.ones(2)).startswith(
        "the second run raised StopIteration"
    )


def test_a_second_run_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_SECONDS", -1.0)
    assert reason_of(Calling(too_much), torch.ones(2)) == "the second run took longer than 30 seconds"


def test_under_a_transform_of_torch_func() -> None:
    model = Calling(too_much)
    found: list[Origin] = []
    found.append(origin_of(model, run=lambda: torch.func.vmap(model)(torch.ones(3, 2))))
    assert found[0].reason == "a transform of torch.func is running around it"


def test_a_hook_on_all_modules() -> None:
    handle = torch_module.register_module_forward_hook(lambda *_: None)
    try:
        reason = reason_of(Calling(too_much), torch.ones(2))
    finally:
        handle.remove()
    assert reason == "a hook on all modules (register_module_forward_hook) would see the second run"


def test_a_hook_on_all_modules_of_our_own_is_off_in_the_second_run() -> None:
    # GIVEN overflow-record's watch for models, a method, and a function of this package
    calls: list[nn.Module] = []

    def ours(module: nn.Module, *_: object) -> None:
        calls.append(module)

    ours.__module__ = "overflow_recorder.launch.somewhere"
    handle = torch_module.register_module_forward_pre_hook(ours)
    try:
        model = Calling(too_much)
        found = origin_of(model, run=lambda: model(torch.ones(2)))
        registered = list(torch_module._global_forward_pre_hooks.values())
    finally:
        handle.remove()

    # THEN the operation is named, the hook saw the training's call alone, and it is still there
    assert found.operation is not None
    assert calls == [model, model.last]
    assert registered == [ours]
