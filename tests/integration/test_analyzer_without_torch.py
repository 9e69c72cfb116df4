"""The analyzer runs where nothing is installed but its own four dependencies: no torch, no recorder, no pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from overflow_analyzer.cli import COMMANDS
from tests.analyzer.commands import Ran, analyze_process
from tests.recorder.subprocesses import output_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
OVERFLOW = FIXTURES / "dropout-overflow" / "trace.parquet"
CLEAN = FIXTURES / "clean" / "trace.parquet"

ABSENT = ("torch", "overflow_recorder", "transformers", "pandas", "polars", "duckdb", "scipy", "yaml")

# One call of every command, and its exit code.
CALLS: dict[str, tuple[list[object], int]] = {
    "report": ([OVERFLOW], 1),
    "batch": ([CLEAN, 1], 0),
    "info": ([CLEAN], 0),
    "top": ([CLEAN], 0),
    "history": ([CLEAN, "*"], 0),
    "diff": ([CLEAN, CLEAN], 0),
    "html": ([CLEAN, "-o", "run.html"], 2),  # its extra needs yaml: it says what to install
    "compact": ([CLEAN, "-o", "compacted.parquet"], 0),
    "watch": ([CLEAN], 0),
    "export": ([CLEAN, "--to", "csv", "-o", "rows.csv"], 0),
}


@pytest.fixture
def without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory; what an analyst's machine lacks fails to import, ahead of the real ones on the path."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    for name in ABSENT:
        (blocked / f"{name}.py").write_text(f"raise ImportError('{name} was imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(blocked))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_block_works(without_torch: Path) -> None:
    done = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True, check=False)
    assert "ImportError: torch was imported" in done.stderr


def test_every_command_is_called_here() -> None:
    assert list(CALLS) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command: str, without_torch: Path) -> None:
    arguments, code = CALLS[command]
    ran = analyze_process(command, *arguments)
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_gives_help(command: str, without_torch: Path) -> None:
    ran = analyze_process(command, "--help")
    assert ran.code == 0, ran.err
    assert f"overflow-analyze {command} " in ran.out.partition("Example")[2]


def test_the_finding_is_the_same_as_with_torch(without_torch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = analyze_process(OVERFLOW)
    monkeypatch.delenv("PYTHONPATH")
    assert analyze_process(OVERFLOW) == blocked == Ran(1, blocked.out, "")
    assert "  output of dropout (Dropout): " in blocked.out


def test_no_module_of_the_analyzer_imports_torch() -> None:
    imported = output_of("""
        import importlib, pkgutil, sys
        import overflow_analyzer
        for module in pkgutil.walk_packages(overflow_analyzer.__path__, "overflow_analyzer."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        print(sorted({"torch", "overflow_recorder"} & set(sys.modules)))
    """)
    assert imported == "[]\n"
