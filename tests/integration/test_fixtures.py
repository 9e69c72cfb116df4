"""The analyzer on the fixtures: traces that were recorded once, each named after its fault. No torch takes part."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from overflow_analyzer import UnknownVersionError, open_trace
from overflow_analyzer.format.columns import SCHEMA
from tests.analyzer.commands import analyze

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAMES = ["clean", "dropout-overflow", "future-version", "nan-weight", "truncated-part", "windowed"]


def trace_of(name: str) -> Path:
    return FIXTURES / name / "trace.parquet"


def finding(name: str) -> dict[str, Any]:
    ran = analyze("report", trace_of(name), "--format", "json")
    assert ran.code == 1, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_an_output_close_to_the_limit_and_the_dropout_that_pushes_it_over() -> None:
    found = finding("dropout-overflow")
    assert (found["module_name"], found["context"]) == ("dropout", "output")
    assert found["origin"]["module_name"] == "dropout"
    assert found["cause"]["name"] == "overflow"
    text = analyze(trace_of("dropout-overflow")).out
    assert text.startswith(
        "inf in dropout output (Dropout), batch 0 of 1, made in dropout (Dropout)\nCause: overflow ("
    )
    assert (
        "\n\nDetected inf/nan during batch_number=0\n"
        "Last 5 forward frames:\n"
        "abs min  abs max  metadata\n"
        "\n\n"
        "                  *** Starting batch number=0 ***\n"
        "abs min  abs max  metadata\n"
        "                  DenseReluDense.wi_0 Linear\n"
        "9.25e+00 9.25e+00 weight\n"
        "2.50e-01 1.00e+00 input[0]\n"
        "1.85e+01 1.85e+01 output\n"
        "                  DenseReluDense.wi_1 Linear\n"
        "6.40e+01 6.40e+01 weight\n"
        "2.50e-01 1.00e+00 input[0]\n"
        "1.28e+02 1.28e+02 output\n"
        "                  DenseReluDense.wo Linear\n"
        "6.62e+00 6.62e+00 weight\n"
        "2.37e+03 2.37e+03 input[0]\n"
        "6.27e+04 6.27e+04 output\n"
        "                  DenseReluDense GatedFeedForward\n"
        "2.50e-01 1.00e+00 input[0]\n"
        "6.27e+04 6.27e+04 output\n"
        "                  dropout Dropout\n"
        "6.27e+04 6.27e+04 input[0]\n"
        "     inf      inf output\n"
        "\n"
    ) in text


def test_a_weight_that_the_optimizer_made_nan() -> None:
    found = finding("nan-weight")
    assert (found["batch_number"], found["module_name"], found["role"]) == (1, "0", "weight")
    assert found["origin"] is None
    assert found["cause"]["name"] == "parameter-went-bad"  # its gradient and second moment were not recorded


def test_a_clean_trace_is_clean() -> None:
    ran = analyze(trace_of("clean"))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("No inf/nan in what was recorded: 36 rows, batches 0 to 2, 1 rank.\n")
    assert "Detected" not in ran.out


def test_a_window_claims_no_absolute_first() -> None:
    found = finding("windowed")
    assert (found["batch_number"], found["frame_number"], found["module_name"]) == (2, 12, "2")
    text = analyze(trace_of("windowed")).out
    assert "\n\nDetected inf/nan during batch_number=2\nLast 3 forward frames:\n" in text
    assert "First inf/nan among what was recorded\n" in text
    assert "Only the last 3 frames were kept of the 13 that ran" in text


def test_a_truncated_part_costs_its_own_frames_and_is_named() -> None:
    trace = open_trace(trace_of("truncated-part"))
    (rank,) = trace.ranks
    assert sorted({frame.batch_number for frame in rank.frames()}) == [0, 1]
    (lost,) = rank.lost
    assert "part-00000001.parquet" in lost
    ran = analyze(trace_of("truncated-part"))
    assert ran.code == 0
    assert "part-00000001.parquet" in ran.out + ran.err


def test_a_future_version_is_refused_by_name() -> None:
    with pytest.raises(UnknownVersionError, match="format version 2 is not known here"):
        open_trace(trace_of("future-version"))
    for command in ("report", "info"):
        ran = analyze(command, trace_of("future-version"))
        assert (ran.code, ran.out) == (3, "")
        assert len(ran.err.splitlines()) == 1
        assert "format version 2" in ran.err


@pytest.mark.parametrize("name", [name for name in NAMES if name != "future-version"])
def test_info_tells_how_the_run_ended(name: str) -> None:
    ran = analyze("info", trace_of(name), "--format", "json")
    assert ran.code == 0
    assert json.loads(ran.out)["format_version"] == 1
    assert open_trace(trace_of(name)).ranks[0].ended in {"closed", "detected"}


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_is_small(name: str) -> None:
    files = [path for path in trace_of(name).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 24_000


@pytest.mark.parametrize("name", [name for name in NAMES if name != "future-version"])
def test_a_script_makes_the_fixture_that_stands_beside_it(name: str, tmp_path: Path) -> None:
    # This is the one test here that records, and so needs torch.
    pytest.importorskip("torch")
    made = runpy.run_path(str(FIXTURES / name / "make.py"))
    with contextlib.redirect_stdout(io.StringIO()):
        made["train"](tmp_path / "trace.parquet")
    # Those of a detection were recorded before it kept all that there is of its batch.
    recorded = rows(trace_of(name))
    kept = set(recorded) if open_trace(trace_of(name)).ranks[0].ended == "detected" else None
    made_again = rows(tmp_path / "trace.parquet")
    assert [row for row in made_again if kept is None or row in kept] == recorded


def rows(path: Path) -> list[str]:
    """What was recorded, but for when."""
    (rank,) = open_trace(path).ranks
    columns = [field.name for field in SCHEMA if field.name != "time_ns"]
    # As text, in which a nan is equal to a nan.
    return [repr(row) for table in rank.tables(columns) for row in table.to_pylist()]
