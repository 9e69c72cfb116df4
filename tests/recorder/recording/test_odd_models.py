"""Models that do what few do: each runs as it would without a recorder, and leaves its frames."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_analyzer import open_trace
from overflow_recorder import TraceRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame

X = torch.ones(1, 2)


def frames_of(model: nn.Module, path: Path, run: Callable[[], Any], **options: Any) -> list[Frame]:
    with TraceRecorder(model, path / "run.parquet", every_n_batches=1, on_nonfinite="ignore", **options):
        run()
    return list(open_trace(path / "run.parquet").rank(0).frames())


class Generating(nn.Module):
    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        return (x * factor for factor in (1, 2, 3))


def test_an_iterator_is_not_consumed(tmp_path: Path) -> None:
    model, found = Generating(), []
    (frame,) = frames_of(model, tmp_path, lambda: found.extend(model(X)))
    assert [one.tolist() for one in found] == [[[1, 1]], [[2, 2]], [[3, 3]]]
    assert [(one.role, one.kind) for one in frame.entries] == [("input", "tensor"), ("output", "other")]


class Shedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Identity(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        del self.first
        return self.second(x)  # type: ignore[no-any-return]


def test_a_submodule_may_be_deleted_in_the_forward(tmp_path: Path) -> None:
    model = Shedding()
    frames = frames_of(model, tmp_path, lambda: model(X))
    assert [frame.module_name for frame in frames] == ["first", "second", ""]


class Nesting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        return self(x * 2, depth - 1) if depth else self.inner(x)  # type: ignore[no-any-return]


def test_a_root_that_calls_itself_is_one_batch(tmp_path: Path) -> None:
    model = Nesting()
    frames = frames_of(model, tmp_path, lambda: model(X))
    assert [(frame.module_name, frame.batch_number) for frame in frames] == [("inner", 0), ("", 0), ("", 0), ("", 0)]
    assert [frame.entries[0].abs_max for frame in frames] == [4, 4, 2, 1]


def test_a_raising_hook_of_somebody_else_raises_what_it_raises(tmp_path: Path) -> None:
    model = nn.Identity()

    def theirs(*_: object) -> None:
        raise KeyError("theirs")

    model.register_forward_hook(theirs)

    def run() -> None:
        with pytest.raises(KeyError, match="theirs"):
            model(X)

    (frame,) = frames_of(model, tmp_path, run)
    assert frame.entries[0].abs_max == 1


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("look at nothing")


def test_a_subclass_that_refuses_everything_is_a_row(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, _: torch.Tensor) -> int:
            return 1

    model = Model()
    (frame,) = frames_of(model, tmp_path, lambda: model(X.as_subclass(Refusing)))
    assert [one.context for one in frame.entries] == ["input[0]", "output"]


def test_a_container_that_holds_itself_ends(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> list[Any]:
            found: list[Any] = [x]
            found.append(found)
            return found

    model = Model()
    (frame,) = frames_of(model, tmp_path, lambda: model(X))
    assert 2 <= len(frame.entries) <= 40
    assert frame.entries[1].abs_max == 1


def test_very_wide_outputs_are_bounded_and_say_so(tmp_path: Path) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {str(at): x for at in range(100_000)}

    model = Model()
    (frame,) = frames_of(model, tmp_path, lambda: model(X))
    assert len(frame.entries) <= 1000
    assert "more" in str(frame.entries[-1].note)


def test_threads_have_calls_of_their_own(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity())

    def run() -> None:
        threads = [threading.Thread(target=model, args=(X * at,)) for at in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    frames = frames_of(model, tmp_path, run)
    assert sorted(frame.module_name for frame in frames) == [""] * 6 + ["0"] * 6 + ["1"] * 6
    # What goes in comes out of an identity: no frame has another thread's input.
    assert all(frame.entries[0].abs_max == frame.entries[1].abs_max for frame in frames)


def test_weights_that_torchao_quantized(tmp_path: Path) -> None:
    quantization = pytest.importorskip("torchao.quantization")
    linear = nn.Linear(32, 8, bias=False)
    model = nn.Sequential(linear)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    frames = frames_of(model, tmp_path, lambda: model(torch.ones(1, 32)))
    weight = frames[0].entries[0]
    assert (weight.role, weight.note) == ("weight", "dequantized")
    assert weight.abs_max == linear.weight.dequantize().abs().max().item()
