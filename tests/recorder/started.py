"""Command lines of ``overflow-record`` with nothing behind them: what would be run is noted instead."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from overflow_recorder import RecorderArguments
from overflow_recorder.launch import cli

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Started:
    """What ``main`` would have run, and how it would have recorded it."""

    program: list[str] = field(default_factory=list)
    output: Path = Path()
    model: str | None = None
    options: RecorderArguments = field(default_factory=RecorderArguments)
    begun: int = 0

    def begin(self) -> None:
        self.begun += 1


def start_nothing(monkeypatch: pytest.MonkeyPatch, directory: Path) -> Started:
    """From now on ``main`` starts nothing, in this directory and without variables that it would read."""
    noted = Started()

    def recorded_run(output: Path, model: str | None, options: RecorderArguments) -> Started:
        noted.output, noted.model, noted.options = output, model, options
        return noted

    def runner(prefix: list[str]) -> Callable[..., None]:
        def run(name: str, arguments: list[str], *, before: Callable[[], None]) -> None:
            noted.program = [*prefix, name, *arguments]
            before()

        return run

    monkeypatch.chdir(directory)
    monkeypatch.setattr(cli, "RecordedRun", recorded_run)
    monkeypatch.setattr(cli, "run_script", runner([]))
    monkeypatch.setattr(cli, "run_module", runner(["-m"]))
    for name in list(os.environ):
        if name.startswith(("OVERFLOW_RECORD_", "TORCHELASTIC_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    return noted


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What ``main`` says where it does not start anything."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert out == ""
    return err
