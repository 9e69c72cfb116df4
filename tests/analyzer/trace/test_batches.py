"""One batch over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from overflow_analyzer.errors import NotRecordedError
from overflow_analyzer.trace.batches import batch_of
from overflow_analyzer.trace.opening import open_trace
from tests.analyzer.commands import analyze
from tests.analyzer.samples import two_batches, write_ranks
from tests.traces import write_trace

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    return write_ranks(tmp_path / "run.parquet")


@pytest.mark.parametrize(("batch", "rank", "found"), [(0, None, [0, 1, 3]), (2, None, [1]), (1, 3, [3])])
def test_the_ranks_that_have_a_batch(batch: int, rank: int | None, found: list[int], ranks: Path) -> None:
    assert [one.rank for one in batch_of(open_trace(ranks), batch, rank=rank)] == found


@pytest.mark.parametrize(
    ("batch", "rank", "message"),
    [
        (3, None, "batch 3 is not in it; what it holds lies between batch 0 and 2"),
        (2, 3, "batch 2 of rank 3 is not in it; what it holds lies between batch 0 and 1"),
        (0, 2, "has no rank 2"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(batch: int, rank: int | None, message: str, ranks: Path) -> None:
    with pytest.raises(NotRecordedError, match=message) as caught:
        batch_of(open_trace(ranks), batch, rank=rank)
    assert caught.value.exit_code == 2


def test_a_single_batch_and_an_empty_rank(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.parquet", two_batches()[:3])
    with pytest.raises(NotRecordedError, match="it holds batch 0 alone"):
        batch_of(open_trace(path), 1)


def test_a_batch_that_is_not_whole_is_noted_beside_the_result(tmp_path: Path) -> None:
    # GIVEN a window that begins in the middle of a batch
    path = write_trace(tmp_path / "run.parquet", two_batches()[1:])

    # WHEN the batch is printed
    ran = analyze("batch", path, 0)

    # THEN it has no marker of a start, and stderr says what is missing
    assert ran.code == 0
    assert "Starting batch" not in ran.out
    assert ran.err == "overflow-analyze: rank 0: 1 frame of batch 0 not in the trace\n"


def test_a_negative_batch_is_wrong_usage(ranks: Path) -> None:
    assert analyze("batch", ranks, "--", "-1").code == 2
