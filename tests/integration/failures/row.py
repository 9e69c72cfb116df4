"""What a row of the table is, and the small models and inputs that its scripts are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from overflow_analyzer.first_nonfinite.causes import Confidence
    from overflow_recorder import TraceRecorder

Record = Callable[..., "AbstractContextManager[TraceRecorder]"]
"""Called with a model and the recorder's options: records what runs in its block."""

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
INF, NAN = float("inf"), float("nan")


class Row(NamedTuple):
    """A script whose cause is known by reasoning about it; the reason is the row's name."""

    right: tuple[str, ...]
    """The cause first; others that are right to name, too. "nothing" where there is no inf/nan to find."""
    place: str
    """The module in whose forward or backward it is made, or that holds it."""
    script: Callable[[Record], None]
    looks_like: tuple[str, ...] = ()
    """Causes that fit superficially, and are wrong."""
    at_most: Confidence = "likely"
    """What may be claimed without a replay: certain only where recorded figures alone imply it."""
    batch: int = 0
    seen: str | None = None
    """The module that receives it, where nothing recorded shows the one that made it."""


class Op(nn.Module):
    """A module whose forward is a function of what it is given, its children, parameters and buffers by name."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        self.names = tuple(parts)
        for name, part in parts.items():
            if isinstance(part, torch.Tensor):
                self.register_parameter(name, nn.Parameter(part.clone(), requires_grad=part.is_floating_point()))
            else:
                self.add_module(name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.function(*inputs, **named, **{name: getattr(self, name) for name in self.names})


def named(name: str, function: Callable[..., Any], **parts: Any) -> nn.Module:
    """An ``Op`` under a class name that says what it is not."""
    made: nn.Module = type(name, (Op,), {})(function, **parts)
    return made


def chain(*parts: Any) -> nn.Sequential:
    """Modules one after the other; functions become modules."""
    return nn.Sequential(*(part if isinstance(part, nn.Module) else Op(part) for part in parts))


def forward(model: Callable[[], nn.Module], *inputs: Any, **options: Any) -> Callable[[Record], None]:
    """One forward of a model in training."""

    def script(record: Record) -> None:
        made = model()
        with record(made, **options):
            made(*(one.clone() if isinstance(one, torch.Tensor) else one for one in inputs))

    return script


def evaluation(model: Callable[[], nn.Module], *inputs: Any) -> Callable[[Record], None]:
    """One forward of a model in evaluation, without gradients."""

    def script(record: Record) -> None:
        made = model().eval()
        with record(made), torch.no_grad():
            made(*(one.clone() if isinstance(one, torch.Tensor) else one for one in inputs))

    return script


def training(
    model: Callable[[], nn.Module],
    loss: Callable[..., Any],
    optimizer: Callable[[Any], torch.optim.Optimizer],
    *batches: Any,
    before: Callable[[nn.Module, int], None] = lambda model, batch: None,
    step: Callable[[torch.optim.Optimizer], Any] = lambda optimizer: optimizer.step(),
    **options: Any,
) -> Callable[[Record], None]:
    """A training loop: ``before`` is called with the model and the batch's number before each forward."""

    def script(record: Record) -> None:
        made = model()
        steps = optimizer(made.parameters())
        with record(made, **options):
            for number, batch in enumerate(batches):
                before(made, number)
                loss(made(batch)).backward()
                step(steps)
                steps.zero_grad()

    return script


def values(*numbers: Any, dtype: torch.dtype = F32) -> torch.Tensor:
    """A tensor of these numbers."""
    return torch.tensor(numbers, dtype=dtype)


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    """Normal random numbers, always the same."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def causal(size: int, dtype: torch.dtype = F32) -> torch.Tensor:
    """A mask that is -inf above the diagonal: no row of it is full."""
    return torch.zeros(size, size, dtype=dtype).masked_fill(torch.ones(size, size).triu(1).bool(), -INF)


def row_masked(size: int, row: int = 1, dtype: torch.dtype = F32) -> torch.Tensor:
    """A mask with one full row."""
    mask = causal(size, dtype)
    mask[row] = -INF
    return mask


def lowest(*shape: int, dtype: torch.dtype = F16) -> torch.Tensor:
    """A mask that holds the format's smallest number in its last column."""
    mask = torch.zeros(*shape, dtype=dtype)
    mask[..., -1] = torch.finfo(dtype).min
    return mask
