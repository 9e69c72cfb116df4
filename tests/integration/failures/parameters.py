"""Weights, gradients, optimizer state, several ranks; and what no figures explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from tests.integration.failures.row import BF16, F16, INF, NAN, Op, Row, chain, forward, normal, training, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.failures.row import Record

START: Final = ("bad-parameter-at-start",)
WENT: Final = ("parameter-went-bad",)
APPLIED: Final = ("gradient-applied",)
GRADIENT: Final = ("nonfinite-gradient",)
UNDERFLOW: Final = ("optimizer-underflow",)
OVERFLOW: Final = ("optimizer-overflow",)
UNKNOWN: Final = ("unknown",)
ALL_ROLES: Final[dict[str, Any]] = {
    "roles": ("weight", "buffer", "input", "output", "weight_grad", "grad_input", "grad_output", "optimizer_state")
}
STATE: Final[dict[str, Any]] = {"roles": ("weight", "output", "weight_grad", "optimizer_state")}
GRADIENTS: Final[dict[str, Any]] = {"roles": ("weight", "input", "output", "weight_grad")}


def half_linear() -> nn.Module:
    return nn.Linear(2, 1).half()


def total(output: torch.Tensor, scale: float = 1.0) -> Any:
    return (output.float() * scale).sum()


def sgd(lr: float = 0.1, **options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **options)


def adam(**options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, foreach=False, **options)


def ones(count: int = 3, size: int = 2, dtype: torch.dtype = F16, rows: int = 16) -> tuple[torch.Tensor, ...]:
    return (torch.ones(rows, size, dtype=dtype),) * count


def spoilt(value: float, name: str = "weight", dtype: torch.dtype = torch.float32) -> Callable[[], nn.Module]:
    """A model of which one element of a parameter is not finite."""

    def model() -> nn.Module:
        made = chain(nn.Linear(2, 2), nn.LayerNorm(2)).to(dtype)
        with torch.no_grad():
            getattr(made[0], name).view(-1)[1] = value
        return made

    return model


def overwritten(value: float, at: int) -> Callable[[nn.Module, int], None]:
    """Writes into a weight before a batch."""

    def before(model: nn.Module, batch: int) -> None:
        if batch == at:
            with torch.no_grad():
                next(model.parameters()).fill_(value)

    return before


def attached_late(record: Record) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
    for _ in range(5):
        model(torch.ones(1, 2)).square().mean().backward()
        optimizer.step()
    with record(model):
        model(torch.ones(1, 2))


def wide_weights() -> nn.Module:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, 1e5)
    return chain(model.half())


def unscaled(
    scaler_type: str = "cpu", init_scale: float = 2.0**15, dtype: torch.dtype = F16, **options: Any
) -> Callable[[Record], None]:
    """A GradScaler scales, but the loop steps by itself."""

    def script(record: Record) -> None:
        model = chain(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
        optimizer = (
            torch.optim.SGD(model.parameters(), lr=1e-4)
            if "lr" not in options
            else torch.optim.Adam(model.parameters(), **options)
        )
        scaler = torch.amp.GradScaler(scaler_type, init_scale=init_scale)
        with record(model, **GRADIENTS):
            for size in (1e-3, 1e-3, 2.0, 0.0):
                scaler.scale(total(model(normal(8, 4, scale=size, dtype=dtype)), size)).backward()
                optimizer.step()
                optimizer.zero_grad()

    return script


def skipped(record: Record) -> None:
    """A GradScaler that does skip the first step."""
    model = chain(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with record(model, **GRADIENTS):
        for _ in range(3):
            scaler.scale(model(torch.full((2, 4), 100.0)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def skipped_then_overwritten(record: Record) -> None:
    """No step is ever taken: the scale is too large for all of them."""
    model = chain(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    with record(model, **GRADIENTS):
        for batch in range(5):
            if batch == 4:
                model.get_parameter("1.weight").data.fill_(NAN)
            scaler.scale(model(torch.full((2, 4), 100.0)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def clipped(record: Record) -> None:
    """Clipping by the norm makes each gradient nan of one that is."""
    model = distance(lambda x: x.square().sum(-1).sqrt())()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model, **GRADIENTS):
        for _ in range(2):
            total(model(torch.zeros(3, 2))).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def distance(between: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], nn.Module]:
    """A model whose last module has no derivative at 0."""
    return lambda: chain(nn.Linear(2, 2, bias=False), between)


def averaged(record: Record) -> None:
    """An average of weights with one of another run, written back between two batches."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model):
        for batch in range(3):
            model(normal(4, 2)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if batch == 1:
                model.load_state_dict({name: value / 0 for name, value in model.state_dict().items()})


class Silent(torch.autograd.Function):
    """Its gradient is nan, though all that it has is ordinary."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * NAN


def silent(x: torch.Tensor) -> Any:
    return Silent.apply(x)  # type: ignore[no-untyped-call]


def foreign(x: torch.Tensor) -> torch.Tensor:
    """A kernel outside of torch: it writes nan into its result."""
    array = x.detach().numpy().copy()
    array[-1] = NAN
    return torch.from_numpy(array)


ROWS: Final[dict[str, Row]] = {
    # not finite at the first look
    "a weight that is nan from its checkpoint": Row(
        START, "0", forward(spoilt(NAN), normal(3, 2)), ("bad-batch", "parameter-went-bad"), "certain"
    ),
    "a bias of -inf": Row(
        START,
        "0",
        forward(spoilt(-INF, "bias", BF16), normal(3, 2, dtype=BF16)),
        ("overflow", "bad-buffer", "masks-added"),
        "certain",
    ),
    "weights of 1e5, converted to float16": Row(
        START, "0", forward(wide_weights, normal(3, 2, dtype=F16)), ("overflow", "precision-cast"), "certain"
    ),
    "a model that diverged before the recorder was attached": Row(
        START, "", attached_late, ("parameter-went-bad", "optimizer-overflow", "gradient-applied"), "certain"
    ),
    # went bad, and no record says why
    "a step of SGD with lr 1e38": Row(
        WENT,
        "",
        training(lambda: nn.Linear(2, 1), lambda y: (y - 5).square().sum(), sgd(1e38), *ones(2, dtype=torch.float32)),
        ("optimizer-overflow", "overflow", "optimizer-underflow"),
        "certain",
        1,
    ),
    "a float16 step of SGD: lr x gradient does not fit": Row(
        WENT,
        "",
        training(
            lambda: nn.Linear(4, 1).half(),
            lambda y: (y.float() - 40).square().sum(),
            sgd(200.0),
            *(normal(64, 4, dtype=F16),) * 2,
        ),
        ("optimizer-underflow", "optimizer-overflow", "gradient-applied"),
        "certain",
        1,
    ),
    "a weight overwritten with nan, no step between": Row(
        WENT,
        "",
        training(
            half_linear, total, sgd(1e-3), *ones(2), before=overwritten(NAN, 1), step=lambda optimizer: None, **STATE
        ),
        ("optimizer-underflow", "gradient-applied", "bad-parameter-at-start"),
        "certain",
        1,
    ),
    "a weight overwritten with inf after two steps": Row(
        WENT,
        "",
        training(
            lambda: nn.Linear(2, 1), total, adam(), *ones(3, dtype=torch.float32), before=overwritten(INF, 2), **STATE
        ),
        ("optimizer-overflow", "nonfinite-gradient", "bad-parameter-at-start"),
        "certain",
        2,
    ),
    "a checkpoint of inf and nan loaded between two batches": Row(
        WENT, "", averaged, ("gradient-applied", "bad-parameter-at-start", "one-rank-only"), "certain", 2
    ),
    "a momentum of 0 in float16, and a weight overwritten": Row(
        WENT,
        "",
        training(
            half_linear, lambda y: total(y, 0.0), sgd(1e-3, momentum=0.9), *ones(3), before=overwritten(NAN, 2), **STATE
        ),
        ("optimizer-underflow",),
        "certain",
        2,
    ),
    "a second moment of 0 in float16 under an eps that float16 holds, and a weight overwritten": Row(
        WENT,
        "",
        training(half_linear, lambda y: total(y, 0.0), adam(eps=1e-4), *ones(3), before=overwritten(INF, 2), **STATE),
        ("optimizer-underflow",),
        "certain",
        2,
    ),
    "each step is skipped for an inf gradient, and a weight is overwritten": Row(
        WENT, "1", skipped_then_overwritten, ("gradient-applied", "nonfinite-gradient"), "certain", 4
    ),
    # a gradient that was applied although its loss was scaled
    "a scaled float16 gradient is applied by hand": Row(
        (*APPLIED, *GRADIENT), "0", unscaled(), ("parameter-went-bad", "optimizer-overflow"), "likely", 3
    ),
    "the same with Adam": Row(
        (*APPLIED, *GRADIENT),
        "0",
        unscaled(lr=1e-4, eps=1e-3),
        ("optimizer-underflow", "parameter-went-bad"),
        "likely",
        3,
    ),
    "a float32 gradient under a scale of 2^127 is applied by hand": Row(
        (*APPLIED, *GRADIENT),
        "0",
        unscaled(init_scale=2.0**127, dtype=torch.float32, lr=1e-4),
        ("optimizer-overflow", "parameter-went-bad"),
        "likely",
        3,
    ),
    "a scale of 2^127 whose step is skipped": Row(
        ("nothing",), "", skipped, ("gradient-applied", "nonfinite-gradient", "overflow")
    ),
    # gradients
    "the root of a distance of 0": Row(
        GRADIENT,
        "1",
        training(distance(lambda x: x.square().sum(-1).sqrt()), total, sgd(), *(torch.zeros(3, 2),) * 2, **ALL_ROLES),
        ("division-by-zero", "gradient-applied", "parameter-went-bad"),
        "likely",
    ),
    "the norm of a vector of 0, to the power of 1.5": Row(
        GRADIENT,
        "1",
        training(distance(lambda x: (x.norm(dim=-1)) ** 0.5), total, sgd(), *(torch.zeros(3, 2),) * 2, **ALL_ROLES),
        ("division-by-zero", "out-of-domain"),
        "likely",
    ),
    "where keeps the value of 1 / 0 out, but not its gradient": Row(
        GRADIENT,
        "1",
        training(
            distance(lambda x: torch.where(x != 0, 1 / x, 0.0)), total, sgd(), *(torch.zeros(3, 2),) * 2, **ALL_ROLES
        ),
        ("division-by-zero", "absorbed"),
        "likely",
    ),
    "a backward of the user's own that gives nan": Row(
        GRADIENT,
        "1",
        training(
            lambda: chain(nn.Linear(2, 2), silent, nn.Linear(2, 1)),
            total,
            sgd(),
            *ones(2, dtype=torch.float32),
            **ALL_ROLES,
        ),
        ("parameter-went-bad", "unknown"),
        "likely",
    ),
    "a float16 gradient overflows without a scaler": Row(
        GRADIENT,
        "",
        training(half_linear, lambda y: total(y, 30000.0), sgd(1e-4), *ones(2), **GRADIENTS),
        ("overflow", "optimizer-overflow", "gradient-applied"),
        "likely",
    ),
    "a gradient of nan is clipped": Row(GRADIENT, "0", clipped, ("parameter-went-bad", "gradient-applied"), "likely"),
    "a gradient of nan, seen by the weights alone": Row(
        (*WENT, *GRADIENT),
        "0",
        training(distance(lambda x: x.square().sum(-1).sqrt()), total, sgd(), *(torch.zeros(3, 2),) * 2),
        ("optimizer-underflow", "bad-parameter-at-start", "one-rank-only"),
        "certain",
        1,
    ),
    # optimizers
    "Adam's eps of 1e-8 is 0 in float16": Row(
        UNDERFLOW,
        "",
        training(half_linear, lambda y: total(y, 1e-6), adam(), *ones(2), **STATE),
        ("optimizer-overflow", "parameter-went-bad", "gradient-applied"),
        "likely",
        1,
    ),
    "the same with AdamW in the foreach form": Row(
        UNDERFLOW,
        "",
        training(
            half_linear, lambda y: total(y, 1e-6), lambda p: torch.optim.AdamW(p, foreach=True), *ones(2), **STATE
        ),
        ("optimizer-overflow", "division-by-zero"),
        "likely",
        1,
    ),
    "the same with RMSprop": Row(
        UNDERFLOW,
        "",
        training(half_linear, lambda y: total(y, 1e-6), lambda p: torch.optim.RMSprop(p, lr=1e-2), *ones(2), **STATE),
        ("optimizer-overflow", "underflow"),
        "likely",
        1,
    ),
    "the square of a gradient of 16000 overflows in Adam": Row(
        OVERFLOW,
        "",
        training(half_linear, lambda y: total(y, 1000.0), adam(eps=1e-4), *ones(3), **STATE),
        ("optimizer-underflow", "nonfinite-gradient", "gradient-applied"),
        "likely",
    ),
    "the same in RMSprop": Row(
        OVERFLOW,
        "",
        training(
            half_linear, lambda y: total(y, 1000.0), lambda p: torch.optim.RMSprop(p, eps=1e-4), *ones(3), **STATE
        ),
        ("optimizer-underflow", "overflow"),
        "likely",
    ),
    "the same in Adagrad": Row(
        OVERFLOW,
        "",
        training(
            half_linear, lambda y: total(y, 1000.0), lambda p: torch.optim.Adagrad(p, eps=1e-4), *ones(3), **STATE
        ),
        ("parameter-went-bad", "nonfinite-gradient"),
        "likely",
    ),
    "the same where the gradient was not recorded": Row(
        OVERFLOW,
        "",
        training(
            half_linear, lambda y: total(y, 1000.0), adam(eps=1e-4), *ones(3), roles=("weight", "optimizer_state")
        ),
        ("nonfinite-gradient",),
        "possible",
    ),
    "a momentum of SGD grows past float16: 32000, 63680, 95043": Row(
        OVERFLOW,
        "",
        training(half_linear, lambda y: total(y, 2000.0), sgd(0.0, momentum=0.99), *ones(3), **STATE),
        ("nonfinite-gradient", "optimizer-underflow"),
        "likely",
        2,
    ),
    # nothing explains it
    "a kernel outside of torch writes nan": Row(
        (*UNKNOWN,),
        "1",
        forward(lambda: chain(nn.Linear(2, 2), foreign), normal(3, 2)),
        ("out-of-domain", "literal", "unwritten-memory", "division-by-zero"),
    ),
    "the same beside an input of zeros": Row(
        (*UNKNOWN,),
        "",
        forward(lambda: Op(lambda x, y: foreign(x) + y), normal(3, 2), torch.zeros(2)),
        ("division-by-zero", "zero-times-inf", "out-of-domain"),
    ),
    "the same beside figures near the limit": Row(
        (*UNKNOWN,),
        "0",
        forward(lambda: chain(foreign), values([6e4, 1.0], [2.0, 3.0], dtype=F16)),
        ("overflow", "precision-cast"),
    ),
}
