"""``overflow-analyze top``: its tables, its JSON, its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.analyzer.commands import Ran, analyze, analyze_process
from tests.analyzer.findings import bad
from tests.analyzer.samples import HOSTILE
from tests.traces import frame, tensor, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from overflow_analyzer.format.frames import Frame

FIXTURES = Path(__file__).parents[3] / "fixtures"


def top(name: str, *options: object) -> Ran:
    return analyze("top", FIXTURES / name / "trace.parquet", *options)


@pytest.mark.parametrize("by", ["headroom", "growth", "underflow"])
@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_every_ranking_in_every_format(by: str, form: str, golden: Callable[[str, str], None]) -> None:
    ran = top("growing-activations", "--by", by, "--format", form)
    assert (ran.code, ran.err) == (0, "")
    golden(f"top/{by}.{form}", ran.out)


def test_json_is_strict_and_has_the_figures() -> None:
    def refuse(token: str) -> None:
        pytest.fail(f"{token} is not JSON")

    found = json.loads(top("growing-activations", "--format", "json").out, parse_constant=refuse)
    first = found["modules"][0]
    assert (first["module_name"], first["headroom_bits"], first["nearest"]["abs_max"]) == ("2", "-inf", "inf")
    assert found["modules_too_large"] == ["2", ""]


def test_would_it_fit_float16() -> None:
    # GIVEN a float32 run with a sum of 7.04e4
    ran = top("float32-to-float16", "--dtype", "float16")
    assert "float16 holds the recorded figures of 2 of 4 modules (up to 65504)" in ran.out
    assert "107.5%" in ran.out


def test_a_format_that_is_not_known_is_a_usage_error() -> None:
    ran = top("growing-activations", "--dtype", "half")
    assert (ran.code, ran.out) == (2, "")
    assert "'half' is not one of float16, bfloat16" in ran.err


def test_the_limit_says_what_it_leaves_out() -> None:
    ran = top("growing-activations", "--limit", 3)
    assert "10 more modules are not shown (--limit)" in ran.out
    assert json.loads(top("growing-activations", "--limit", 3, "--format", "json").out)["modules_left_out"] == 10


def test_a_run_with_full_statistics_shows_what_vanished() -> None:
    lines = top("float16-count", "--by", "underflow").out.splitlines()
    assert lines[2].split() == ["divide", "Divide", "output", "float16", "0", "0.00e+00", "-inf", "100.0%", "0.0%"]


def test_a_run_without_them_says_how_to_get_them() -> None:
    assert 'TraceRecorder(..., statistics="full")' in top("growing-activations", "--by", "underflow").out


def test_one_rank_can_be_asked_for() -> None:
    assert top("flipped-bit", "--rank", 0).code == 0
    ran = top("flipped-bit", "--rank", 9)
    assert (ran.code, ran.out) == (2, "")


def test_a_trace_with_no_float_in_it_has_an_empty_ranking(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.parquet", [frame(0, 0, "m", tensor("input", "ids", dtype="int64"), in_batch=0)])
    assert analyze("top", path).out.splitlines() == [
        "Modules by least headroom: how many times the largest figure can double"
    ]


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_names_cannot_act_on_a_terminal_or_a_page(tmp_path: Path, form: str) -> None:
    one = frame(0, 0, HOSTILE, bad("output", HOSTILE, inf=1), in_batch=0, module_class=HOSTILE)
    out = analyze("top", write_trace(tmp_path / "run.parquet", [one]), "--format", form).out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert form == "text" or "<script>" not in out


def test_the_last_batches_are_bars_that_rise_with_the_share_of_the_limit(tmp_path: Path) -> None:
    # GIVEN a weight that doubles from batch to batch, eight times, and one batch alone
    def batch(number: int) -> Frame:
        weight = tensor("weight", "weight", abs_max=2.0**number, finite_abs_max=2.0**number)
        return frame(number, number, "lin", weight)

    growing = write_trace(tmp_path / "growing", [batch(number) for number in range(8)])
    alone = write_trace(tmp_path / "alone", [batch(0)])
    # THEN each batch has a bar, in ASCII where the encoding lacks bars, and a single batch has none
    assert analyze("top", growing).out.splitlines()[2].endswith("  ▁▂▃▄▅▆▇█")
    plain = analyze_process("top", growing, PYTHONIOENCODING="ascii")
    assert plain.out.splitlines()[2].endswith("  _.-:=+*#")
    assert "last batches" not in analyze("top", alone).out
