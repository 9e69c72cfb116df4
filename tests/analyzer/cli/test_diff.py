"""``overflow-analyze diff``: exit codes, options, streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.analyzer.commands import analyze, analyze_process
from tests.analyzer.diffing import FIXTURES, changed, training
from tests.traces import write_trace

if TYPE_CHECKING:
    from pathlib import Path

FRAMES = training(3)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "good.parquet", FRAMES)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "bad.parquet", changed(FRAMES, 8, 2, abs_max=50.0))


@pytest.fixture
def later(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "later.parquet", training(1, first_batch=90))


def test_exit_code_says_whether_they_differ(good: Path, bad: Path) -> None:
    assert (analyze("diff", good, good).code, analyze("diff", good, bad).code) == (0, 1)
    assert analyze("diff", good, bad, "--exit-zero").code == 0


def test_nothing_compared_is_neither_the_same_nor_let_pass(good: Path, later: Path) -> None:
    ran = analyze("diff", good, later, "--exit-zero")
    assert ran.code == 1
    assert ran.out.startswith("Nothing could be compared: no batch is in both")
    assert json.loads(analyze("diff", good, later, "--format", "json").out)["same"] is False


@pytest.mark.parametrize(
    "options",
    [
        ["--map", "encoder"],
        ["--map", "a.*=b"],
        ["--map", "="],
        ["--map", "nosuch=embed"],
        ["--map", "embed=nosuch"],
        ["--map", "embed=embed", "--map", "nosuch.*=embed.*"],
        ["--exact", "--rtol", "0.1"],
        ["--rtol", "-1"],
        ["--rtol", "nan"],
        ["--batch", "-1"],
        ["--offset", "one"],
        ["--rank", "7"],
        ["--batch", "7"],
        ["--module", "nothing.*"],
        ["--format", "yaml"],
    ],
)
def test_wrong_usage(good: Path, bad: Path, options: list[str]) -> None:
    ran = analyze("diff", good, bad, *options)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err


def test_a_trace_alone_is_wrong_usage(good: Path) -> None:
    assert analyze("diff", good).code == 2


def test_what_cannot_be_read_is_told(good: Path, tmp_path: Path) -> None:
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    for other in ("missing.parquet", "torn.parquet"):
        ran = analyze("diff", good, tmp_path / other)
        assert (ran.code, ran.out) == (3, "")
        assert other in ran.err


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--rtol", "1"], 0),
        (["--rtol", "0.9"], 1),
        (["--atol", "48"], 0),
        (["--atol", "47"], 1),
        (["--exact"], 1),
        (["--batch", "0"], 0),
        (["--batch", "1"], 1),
        (["--module", "embed"], 0),
        (["--module", "block.*"], 1),
        (["--rank", "0"], 1),
        (["--offset", "1", "--batch", "1"], 1),
        (["--map", "block.act=block.act"], 1),
    ],
)
def test_options(good: Path, bad: Path, options: list[str], code: int) -> None:
    assert analyze("diff", good, bad, *options).code == code


def test_json_is_strict_and_alone_on_stdout(good: Path, bad: Path) -> None:
    ran = analyze("diff", good, bad, "--format", "json")
    found = json.loads(ran.out, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    assert ran.err == ""
    assert found["first_divergence"]["module_name"] == "block.act"
    assert found["explanation"][0].startswith("In batch 1, module block.act (Linear) is the first to differ")


def test_nan_and_inf_are_strings_in_json() -> None:
    pair = FIXTURES / "diff-not-a-number"
    found = json.loads(analyze("diff", pair / "a.parquet", pair / "b.parquet", "--format", "json").out)
    assert found["first_divergence"]["largest"]["b"] == "nan"
    assert found["first_divergence"]["largest"]["relative"] == "inf"


def test_markdown_has_headings_tables_and_the_frames_in_a_fence(good: Path, bad: Path) -> None:
    out = analyze("diff", good, bad, "--format", "markdown").out
    assert out.startswith("### In batch 1, module block.act")
    assert "```text\nA: " in out
    assert "| `block.act` |" in out


def test_limit(good: Path, bad: Path) -> None:
    assert "(1 of 3)" in analyze("diff", good, bad, "--limit", "1").out
    assert "of 3)" not in analyze("diff", good, bad, "--limit", "0").out


def test_a_reader_that_goes_away_is_no_error(good: Path, bad: Path) -> None:
    whole = analyze_process("diff", good, bad, PYTHONUNBUFFERED="1")
    assert (whole.code, whole.err) == (1, "")


def test_no_torch_is_loaded(good: Path, bad: Path, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('the analyzer runs without torch')\n")
    ran = analyze_process("diff", good, bad, PYTHONPATH=str(tmp_path))
    assert (ran.code, ran.err) == (1, "")
