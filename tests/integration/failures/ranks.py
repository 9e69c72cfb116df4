"""Trainings of several ranks, run one after the other in this process: what one of them alone has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import torch
from torch import nn

from tests.integration.failures.row import BF16, F16, F32, INF, NAN, Row, chain, normal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.failures.row import Record

ONE_RANK: Final = ("one-rank-only",)


def ranks(
    *spoil: Callable[[nn.Module], Any] | None,
    batches: tuple[Any, ...] | None = None,
    seeds: tuple[int, ...] = (0, 0, 0),
    dtype: torch.dtype = F32,
) -> Callable[[Record], None]:
    """Three batches on each rank, with the same gradients; before the last a rank's model is spoilt."""

    def script(record: Record) -> None:
        for rank, spoils in enumerate(spoil):
            environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(spoil))}
            torch.manual_seed(seeds[rank])
            model = chain(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 1)).to(dtype)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            with mock.patch.dict(os.environ, environment), record(model):
                for batch in range(3):
                    if batch == 2 and spoils is not None:
                        spoils(model)
                    x = normal(4, 4, dtype=dtype) if batch < 2 or batches is None else batches[rank]
                    model(x).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()

    return script


def writes(name: str, value: float) -> Callable[[nn.Module], None]:
    """One element of a parameter is overwritten."""

    def spoils(model: nn.Module) -> None:
        model.get_parameter(name).data.view(-1)[1] = value

    return spoils


ROWS: Final[dict[str, Row]] = {
    "a bit flips in one of two replicas": Row(
        ONE_RANK, "2", ranks(None, writes("2.weight", NAN)), ("parameter-went-bad", "bad-parameter-at-start"), batch=2
    ),
    "a bias becomes inf in one of three replicas, in bfloat16": Row(
        ONE_RANK, "0", ranks(writes("0.bias", INF), None, None, dtype=BF16), ("overflow", "optimizer-overflow"), batch=2
    ),
    "a norm's weight becomes -inf in the last of three replicas, in float16": Row(
        ONE_RANK, "1", ranks(None, None, writes("1.weight", -INF), dtype=F16), ("overflow", "bad-buffer"), batch=2
    ),
    "the same weight becomes nan on all ranks": Row(
        ("parameter-went-bad",), "2", ranks(writes("2.weight", NAN), writes("2.weight", NAN)), ONE_RANK, "certain", 2
    ),
    "one rank's batch has a nan": Row(
        ("bad-batch",), "0", ranks(None, None, batches=(normal(4, 4), torch.full((4, 4), NAN))), ONE_RANK, "certain", 2
    ),
    "one rank's values overflow in float16": Row(
        ("overflow",),
        "0",
        ranks(None, lambda model: model.get_parameter("0.weight").data.fill_(6e4), dtype=F16),
        ONE_RANK,
        batch=2,
    ),
    "a weight becomes nan on one of two ranks that were never replicas": Row(
        ("parameter-went-bad",), "2", ranks(None, writes("2.weight", NAN), seeds=(0, 1)), ONE_RANK, "certain", 2
    ),
}
