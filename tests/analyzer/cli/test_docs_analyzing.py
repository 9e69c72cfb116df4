"""What the guide shows is what happens: ``--overwrite`` renews the outputs in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from overflow_analyzer.cli import COMMANDS
from tests.analyzer.commands import analyze
from tests.analyzer.samples import write_clean, write_ranks, write_well_known

GUIDE = Path(__file__).parents[3] / "docs" / "analyzing.md"
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
BLOCK = re.compile(r"```.*?```", re.DOTALL)
SIZES = re.compile(r"\d+ bytes|[\d.]+ k?B\b|[\d.]+ bytes a row| +(?=\d+\.\d kB)")


@pytest.fixture(autouse=True)
def _traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_well_known(tmp_path / "run.parquet")
    write_clean(tmp_path / "healthy.parquet")
    write_ranks(tmp_path / "ranks.parquet")
    monkeypatch.chdir(tmp_path)


def session(block: str) -> str:
    """A console block with what its commands really print."""
    lines = []
    for line in block.splitlines():
        if line.startswith("$ "):
            program, *arguments = shlex.split(line.removeprefix("$ "))
            assert program == "overflow-analyze"
            ran = analyze(*arguments)
            lines += [line, *(ran.out + ran.err).splitlines()]
    return "\n".join(lines) + "\n"


def test_the_guide_shows_what_happens(request: pytest.FixtureRequest) -> None:
    # GIVEN the guide WHEN each command in it is run
    text = GUIDE.read_text(encoding="utf-8")
    real = CONSOLE.sub(lambda block: f"```console\n{session(block[1])}```", text)
    if request.config.getoption("--overwrite"):
        GUIDE.write_text(real, encoding="utf-8")

    # THEN it prints what stands there, sizes of files aside
    assert SIZES.sub("", real) == SIZES.sub("", GUIDE.read_text(encoding="utf-8"))
    assert len(CONSOLE.findall(text)) >= len(COMMANDS)


def test_every_command_has_its_section_and_its_line() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"\n## {name}\n" in text
        assert f"[`{name}`](#{name})" in text
        assert f"$ overflow-analyze {name} " in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_that_the_guide_names_is_there(name: str) -> None:
    # GIVEN the section of a command
    section = GUIDE.read_text(encoding="utf-8").split(f"\n## {name}\n", 1)[1].split("\n## ", 1)[0]

    # THEN the options in its prose are the command's
    known = analyze(name, "--help").out
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", BLOCK.sub("", section)):
        assert option in known


def test_the_python_in_the_guide_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(block, str(GUIDE), "exec"), {})
    assert capsys.readouterr().out.splitlines()[0] == "encoder.block.2.layer.1.dropout overflow"


def test_the_sql_in_the_guide_runs() -> None:
    import duckdb

    (block,) = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    analyze("compact", "ranks.parquet", "-o", "all-ranks.parquet")
    with duckdb.connect() as connection:
        assert connection.execute(block).fetchone() == (0, "embed", "output", 3.0)
