"""What a recorder has sealed, of a run that was closed or killed, is read by other tools as it lies there."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from overflow_analyzer.trace.opening import open_trace
from overflow_recorder import TraceRecorder
from tests.analyzer.trace.test_other_readers import READERS
from tests.integration.runs import ROWS, input_of, make_model, make_the_ring_small, wait_as_long_as_it_takes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crew import Crew

BATCHES = 150


def record(path: str, ending: str) -> None:
    """Record batches, some with an inf and a nan, in parts of a few batches each; close, or be killed."""
    make_the_ring_small()
    wait_as_long_as_it_takes()
    model = make_model()
    with TraceRecorder(model, path, every_n_batches=1, on_nonfinite="ignore"), torch.no_grad():
        for batch in range(BATCHES):
            inputs = input_of(batch)
            inputs[0, :2] = torch.tensor([torch.inf, torch.nan]) if batch % 7 == 3 else 0.0
            model(inputs)
        if ending == "killed":
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def traces(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that was closed, and one that was killed."""
    folder = tmp_path_factory.mktemp("traces")
    for ending, status in {"closed": 0, "killed": -signal.SIGKILL}.items():
        ended = crew.run(record, folder / f"{ending}.parquet", ending)
        assert ended.status == status, ended.output
    return {ending: folder / f"{ending}.parquet" for ending in ("closed", "killed")}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_the_parts_are_read_directly(reader: str, ending: str, traces: dict[str, Path]) -> None:
    # GIVEN a trace; a killed run's last rows are in its ring and in no part
    (rank,) = open_trace(traces[ending]).ranks
    in_ring = rank.ring.num_rows
    assert rank.rows == BATCHES * ROWS
    assert (in_ring > 0) == (ending == "killed")
    assert len(rank.footers) > 3
    expected = [row for table in rank.tables() for row in table.to_pylist()][: rank.rows - in_ring]

    # WHEN another tool reads the directory as it is
    rows = READERS[reader](traces[ending])

    # THEN it has all that is sealed: as many rows, of the same frames, with the same figures
    assert len(rows) == len(expected)
    for column in ("frame_number", "module_name", "context", "nan_count"):
        assert [row[column] for row in rows] == [row[column] for row in expected]
    largest, same = ([row["abs_max"] for row in some] for some in (rows, expected))
    assert np.array_equal(np.array(largest, float), np.array(same, float), equal_nan=True)
    assert np.isnan(np.array(largest, float)).any()
