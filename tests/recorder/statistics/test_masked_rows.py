"""Rows that are -inf throughout, counted by hand and against a plain comparison."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from overflow_recorder.statistics import masked_rows
from tests.recorder.recordings import frames_of, record

if TYPE_CHECKING:
    from pathlib import Path

INF = math.inf


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_rows_are_counted_over_all_dimensions_before_the_last(dtype: torch.dtype) -> None:
    # GIVEN two full rows of six; one row has a nan, one another inf, and one is full but for an element
    mask = torch.tensor([[[-INF, -INF], [0, -INF], [-INF, math.nan]], [[-INF, -INF], [-INF, INF], [1, 2]]], dtype=dtype)
    assert masked_rows(mask) == 2
    assert masked_rows(mask.transpose(0, 1)) == 2
    assert masked_rows(mask.transpose(1, 2)) == int((mask.transpose(1, 2) == -INF).all(-1).sum())


def test_an_expanded_mask_counts_each_repetition() -> None:
    mask = torch.tensor([[-INF, -INF], [0.0, -INF]])
    assert masked_rows(mask.expand(3, 4, 2, 2)) == 12
    assert masked_rows(torch.tensor(-INF).expand(5, 2)) == 5


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor([0.0, -INF]).to_sparse(), torch.tensor([-INF]).to(torch.float8_e5m2), torch.tensor(-INF)],
    ids=["sparse", "float8", "no dimension"],
)
def test_where_it_cannot_be_had_it_is_none_or_right(tensor: torch.Tensor) -> None:
    assert masked_rows(tensor) in (None, 1)


def test_it_is_recorded_where_there_is_an_inf_and_is_null_elsewhere(tmp_path: Path) -> None:
    model = nn.Softmax(-1)
    record(model, tmp_path / "run", lambda: model(torch.tensor([[-INF, -INF], [0.0, -INF]])))
    (frame,) = frames_of(tmp_path / "run")
    assert [(one.context, one.neginf_row_count) for one in frame.entries] == [("input[0]", 1), ("output", None)]
