"""Recording a few forwards and reading the frames back; and what they should hold, computed by plain torch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

from overflow_analyzer import open_trace
from overflow_recorder import TraceRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overflow_analyzer.format.frames import Entry, Frame

EVERYTHING = (
    "weight",
    "buffer",
    "input",
    "output",
    "grad_input",
    "grad_output",
    "weight_grad",
    "optimizer_state",
)
"""All roles that can be asked for."""


class Forward(nn.Module):
    """A module whose forward is a function of its children and what it is given."""

    def __init__(self, function: Callable[..., Any], *children: nn.Module) -> None:
        super().__init__()
        self.function = function
        for position, child in enumerate(children):
            self.add_module(str(position), child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*self.children(), *args, **kwargs)


def frames_of(path: Path) -> list[Frame]:
    """The frames of a trace's first rank, in order."""
    return list(open_trace(path).ranks[0].frames())


@contextlib.contextmanager
def recording(model: nn.Module, path: Path, **options: Any) -> Iterator[tuple[TraceRecorder, list[Frame]]]:
    """Record every batch of the block; the list has the frames once the block has ended."""
    frames: list[Frame] = []
    options = {"every_n_batches": 1, "on_nonfinite": "ignore", **options}
    with TraceRecorder(model, path, **options) as recorder:
        yield recorder, frames
    frames += frames_of(path)


def record(model: nn.Module, path: Path, run: Callable[[], Any], **options: Any) -> list[Frame]:
    """Run and return what was recorded."""
    with recording(model, path, **options) as (_, frames):
        run()
    return frames


def entry(frame: Frame, context: str) -> Entry:
    """The only entry of that context."""
    (found,) = (one for one in frame.entries if one.context == context)
    return found


def notes_of(path: Path) -> list[str]:
    """What RunInfo says was not seen."""
    return list(open_trace(path).ranks[0].run.notes)


# Hooks, as torch keeps them.


def hooks_on(model: nn.Module) -> list[Any]:
    """Every hook of torch's that is on a model or its parameters."""
    found = [hook for module in model.modules() for hooks in _dictionaries(module) for hook in hooks.values()]
    for parameter in model.parameters():
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found += (getattr(parameter, name, None) or {}).values()
    return found


def _dictionaries(module: nn.Module) -> list[dict[int, Any]]:
    return [value for key, value in vars(module).items() if key.endswith("hooks") and "hook" in key]


def global_hooks() -> list[Any]:
    """Every hook of torch's that is on all modules or optimizers."""
    names = [name for name in vars(torch_module) if name.startswith("_global_") and name.endswith("_hooks")]
    dictionaries = [getattr(torch_module, name) for name in names]
    names = [name for name in vars(torch_optimizer) if name.startswith("_global_optimizer_") and "_hooks" in name]
    dictionaries += [getattr(torch_optimizer, name) for name in names]
    assert len(dictionaries) > 5  # torch still calls them so
    return [hook for hooks in dictionaries for hook in hooks.values()]


# The oracle.


class Expected(NamedTuple):
    """What one row should say."""

    role: str
    context: str
    figures: tuple[Any, ...] | None
    """abs min, abs max, finite abs max, counts of nan, +inf, -inf; None for what is no tensor."""
    dtype: str | None
    shape: tuple[int, ...] | None


def plain_figures(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The figures of a strided tensor by plain torch in float64; of a complex one by magnitude, as torch rounds it."""
    tensor = tensor.detach().clone()
    wide = (tensor.abs() if tensor.is_complex() else tensor).to(torch.float64)
    size, finite = wide.abs(), wide[wide.isfinite()].abs()
    extrema = (size.min().item(), size.max().item()) if wide.numel() else (None, None)
    counts = wide.isnan(), wide == float("inf"), wide == float("-inf")
    return (*extrema, finite.max().item() if finite.numel() else None, *(int(count.sum()) for count in counts))


class PlainRecorder:
    """Keeps what each forward's rows should say, with hooks of its own, of a run of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.frames: list[tuple[str, list[Expected]]] = []
        self.overwritten = False
        """Whether any forward has changed what it was given."""
        self._inputs: list[list[Expected]] = []
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after(name), with_kwargs=True))

    def close(self) -> None:
        """Remove the hooks: a module may be part of other models too, as some of transformers' activations are."""
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inputs.append(_input_rows(args, kwargs))

    def _after(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            rows = [row for key, value in module.named_parameters(recurse=False) for row in _rows("weight", key, value)]
            rows += [row for key, value in module.named_buffers(recurse=False) for row in _rows("buffer", key, value)]
            inputs = self._inputs.pop()
            self.overwritten |= expected_rows(inputs) != expected_rows(_input_rows(args, kwargs))
            self.frames.append((name, [*rows, *inputs, *_rows("output", "output", output)]))

        return hook


def _input_rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Expected]:
    keywords = {name: value for name, value in kwargs.items() if _holds_tensor(value)}
    rows = [row for position, value in enumerate(args) for row in _rows("input", f"input[{position}]", value)]
    return rows + [row for name, value in keywords.items() for row in _rows("input", f"input[{name}]", value)]


def _holds_tensor(value: Any) -> bool:
    return any(row.figures is not None for row in _rows("", "", value))


def _rows(role: str, context: str, value: Any) -> list[Expected]:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return [Expected(role, context, plain_figures(value), dtype, tuple(value.shape))]
    if isinstance(value, Mapping) and value:
        return [row for key, child in value.items() for row in _rows(role, f"{context}[{key}]", child)]
    if isinstance(value, (list, tuple)) and value:
        return [row for key, child in enumerate(value) for row in _rows(role, f"{context}[{key}]", child)]
    return [Expected(role, context, None, None, None)]


def as_expected(frame: Frame) -> list[Expected]:
    """A recorded frame in the oracle's terms; nan is text, so that rows compare."""
    return [_comparable(_of_entry(one)) for one in frame.entries]


def expected_rows(rows: list[Expected]) -> list[Expected]:
    """The oracle's rows, comparable."""
    return [_comparable(row) for row in rows]


def _of_entry(one: Entry) -> Expected:
    if one.kind != "tensor":
        return Expected(one.role, one.context, None, None, None)
    figures = (one.abs_min, one.abs_max, one.finite_abs_max, one.nan_count, one.posinf_count, one.neginf_count)
    return Expected(one.role, one.context, figures, one.dtype, one.shape)


def _comparable(row: Expected) -> Expected:
    if row.figures is None:
        return row
    return row._replace(figures=tuple("nan" if value != value else value for value in row.figures))  # noqa: PLR0124  nan
