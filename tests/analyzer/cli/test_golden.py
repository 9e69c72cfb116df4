"""What every command prints, in every format, against files that are read in review; ``--overwrite`` rewrites them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import tabulate

from tests.analyzer import samples
from tests.analyzer.commands import analyze

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FORMATS = {"text": "txt", "json": "json", "markdown": "md"}
TRACES = {
    "well-known": samples.write_well_known,
    "clean": samples.write_clean,
    "ranks": samples.write_ranks,
    "hostile": samples.write_hostile,
}


def without_sizes(text: str) -> str:
    """Leave out what depends on the version of Arrow that wrote the parts."""
    text = re.sub(r'("bytes": )\d+', r"\1 0", text)
    text = re.sub(r"\d+\.\d bytes a row|\b\d+ bytes", "N bytes", text)
    return re.sub(r" +\d+(\.\d)? (B|kB)\b", " N kB", text)


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _with_characters_of_one_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where wcwidth is not installed, by which tabulate knows how wide 模 is."""
    monkeypatch.setattr(tabulate, "WIDE_CHARS_MODE", False)


def name_of(trace: str, command: str, kind: str) -> str:
    return f"{command}-{trace}.{FORMATS[kind]}"


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("command", ["report", "info", "batch", "top", "history"])
@pytest.mark.parametrize("trace", TRACES)
def test_golden_output(trace: str, command: str, kind: str, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    # GIVEN a trace
    TRACES[trace](tmp_path / "run.parquet")

    # WHEN a command is asked about it
    more = {"batch": ["0"], "history": ["*"]}.get(command, [])
    ran = analyze(command, "run.parquet", *more, "--format", kind)

    # THEN stdout holds the result alone, and it is the one that was reviewed
    assert ran.code == (command == "report" and trace != "clean")
    golden(name_of(trace, command, kind), without_sizes(ran.out))
    if kind == "json":
        json.loads(ran.out, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("a", "b", "code"), [("clean", "clean", 0), ("clean", "changed", 1), ("well-known", "hostile", 1)]
)
def test_golden_diff(
    *, a: str, b: str, code: int, kind: str, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    for name, trace in (("a.parquet", a), ("b.parquet", b)):
        {**TRACES, "changed": samples.write_changed}[trace](tmp_path / name)
    ran = analyze("diff", "a.parquet", "b.parquet", "--format", kind)
    assert ran.code == code
    golden(name_of(f"{a}-{b}", "diff", kind), ran.out)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("trace", TRACES)
def test_golden_export(trace: str, kind: str, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    TRACES[trace](tmp_path / "run.parquet")
    ran = analyze("export", "run.parquet", "--to", kind, "-o", "-")
    assert ran.code == 0
    assert ran.err == ""
    golden(f"export-{trace}.{kind}", ran.out)


@pytest.mark.parametrize("trace", TRACES)
def test_golden_watch(trace: str, tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    TRACES[trace](tmp_path / "run.parquet")
    ran = analyze("watch", "run.parquet", "--once")
    assert ran.code == (trace != "clean")
    golden(f"watch-{trace}.txt", ran.out)


def test_golden_compact(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    samples.write_ranks(tmp_path / "run.parquet")
    ran = analyze("compact", "run.parquet", "-o", "one.parquet")
    assert ran.code == 0
    golden("compact-ranks.txt", without_sizes(ran.out))
