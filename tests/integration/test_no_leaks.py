"""No tensor outlives its natural life, no graph is kept, and memory at its peak is what it is without a recorder."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from overflow_recorder import TraceRecorder
from tests.recorder.recordings import EVERYTHING, Forward, recording

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WIDTH = 4096


class Deep(nn.Module):
    """Many layers, each of which could free what the one before made."""

    def __init__(self, depth: int, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Forward(lambda inner, x: inner(x) * 1.5, nn.Sequential(nn.Tanh(), nn.Dropout(0.1))) for _ in range(depth)
        )
        self.checkpointed = checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


def alive_after(model: nn.Module, *, train: bool) -> list[int]:
    """Run, and after each module count those outputs of modules before it that are still alive."""
    born: list[weakref.ref[torch.Tensor]] = []
    counts: list[int] = []

    def watch(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        counts.append(sum(one() is not None for one in born))
        born.append(weakref.ref(output))

    handles = [module.register_forward_hook(watch) for module in model.modules()]
    with torch.set_grad_enabled(train):
        output = model(torch.ones(1, WIDTH, requires_grad=train))
        if train:
            output.sum().backward()
    del output
    counts.append(sum(one() is not None for one in born))
    for handle in handles:
        handle.remove()
    return counts


@pytest.fixture(autouse=True)
def _without_the_collector() -> Iterator[None]:
    """Reference counts alone: what needs the collector to die has outlived its natural life."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_activations_die_when_they_would(train: bool, checkpointed: bool, tmp_path: Path) -> None:
    # GIVEN
    model = Deep(20, checkpointed=checkpointed)
    alive_after(model, train=train)  # once, for what torch itself keeps of a first time
    expected = alive_after(model, train=train)

    # WHEN
    with recording(model, tmp_path / "run", roles=EVERYTHING, statistics="full", max_frames_to_save=1000):
        counts = alive_after(model, train=train)
        again = alive_after(model, train=train)

    # THEN at every moment
    assert counts == expected
    assert again == expected
    assert expected[-1] == 0


def peak_bytes(model: nn.Module, *, train: bool) -> int:
    """The most bytes that tensors held at one time, as torch's allocator counts them."""
    with torch.profiler.profile(profile_memory=True) as profile, torch.set_grad_enabled(train):
        output = model(torch.ones(8, WIDTH, requires_grad=train))
        if train:
            output.sum().backward()
    alive = peak = 0
    results: Any = profile.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


@pytest.mark.parametrize("train", [False, True])
def test_peak_memory_of_a_deep_model(train: bool, tmp_path: Path) -> None:
    # GIVEN
    model = Deep(30)
    plain = peak_bytes(model, train=train)
    assert plain > 8 * WIDTH * 4

    # WHEN
    with recording(model, tmp_path / "run", roles=EVERYTHING, statistics="full"):
        recorded = peak_bytes(model, train=train)

    # THEN no operation of ours made a tensor that stayed
    assert recorded <= plain + 4096


def test_no_graph_is_kept_after_the_loop_let_go_of_it(tmp_path: Path) -> None:
    # GIVEN
    class Probe:
        pass

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    graphs = []

    # WHEN some graphs are never run backward
    with recording(model, tmp_path / "run", roles=EVERYTHING) as (recorder, _):
        for step in range(4):
            output = model(torch.ones(1, 4, requires_grad=True))
            probe = Probe()
            output.grad_fn.metadata["probe"] = probe
            graphs.append(weakref.ref(probe))
            recorder.record("output", output=output)
            if step % 2:
                output.sum().backward()
            del output, probe

        # THEN
        assert [graph() for graph in graphs] == [None] * 4


def test_inputs_and_outputs_of_exceptions_are_not_kept(tmp_path: Path) -> None:
    # GIVEN
    def fail(x: torch.Tensor) -> None:
        raise LookupError("failed")

    model = nn.Sequential(nn.Identity(), Forward(fail))
    with recording(model, tmp_path / "run", roles=EVERYTHING):
        x = torch.ones(1, 4, requires_grad=True)
        alive = weakref.ref(x)
        with pytest.raises(LookupError):
            model(x)
        del x
        gc.collect()  # the exception's own traceback is a cycle
        assert alive() is None


def test_nothing_of_a_batch_is_kept_when_the_recorder_is_closed_or_off(tmp_path: Path) -> None:
    # GIVEN
    model = Deep(3)
    recorder = TraceRecorder(model, tmp_path / "run", roles=EVERYTHING, on_nonfinite="ignore").start()
    x = torch.ones(1, WIDTH, requires_grad=True)
    output = model(x)
    alive = weakref.ref(x), weakref.ref(output)

    # WHEN
    recorder.close()
    del x, output

    # THEN
    assert [one() for one in alive] == [None, None]


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    # GIVEN names and shapes that repeat
    model = Deep(3)

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    with recording(model, tmp_path / "run", roles=EVERYTHING, every_n_batches=None):
        for _ in range(30):
            model(torch.ones(1, 8, requires_grad=True)).sum().backward()
        before = objects()
        for _ in range(100):
            model(torch.ones(1, 8, requires_grad=True)).sum().backward()
        # THEN (some caches are filled by then)
        assert objects() - before < 100
