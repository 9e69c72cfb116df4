"""What ``overflow-record`` says before it starts anything: of what is at its output, and where torch is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from overflow_recorder.launch import cli
from tests.recorder.started import Started, refusal, start_nothing
from tests.recorder.subprocesses import output_of, output_without_torch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    """Nothing is run."""
    return start_nothing(monkeypatch, tmp_path)


def _trace(path: Path, rank: int = 0) -> None:
    (path / f"rank={rank}").mkdir(parents=True)
    (path / f"rank={rank}" / "_run.json").write_text("{}")


def test_a_trace_is_not_replaced_unless_asked(
    started: Started, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # GIVEN
    _trace(tmp_path / "run.parquet")

    # WHEN / THEN
    said = refusal(capsys, "train.py")
    assert said == (
        f"overflow-record: error: {tmp_path}/run.parquet holds a trace: "
        "choose another --output, or --overwrite to replace it\n"
    )
    assert cli.main(["--overwrite", "train.py"]) == 0


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_what_is_no_trace_is_never_replaced(
    started: Started, capsys: pytest.CaptureFixture[str], tmp_path: Path, overwrite: list[str]
) -> None:
    (tmp_path / "file").write_text("important")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("important")

    assert "a file is there" in refusal(capsys, *overwrite, "-o", "file", "train.py")
    assert "holds something else (notes.txt)" in refusal(capsys, *overwrite, "-o", "full", "train.py")


def test_another_rank_of_the_same_run_may_have_begun(
    started: Started, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    _trace(tmp_path / "run.parquet", rank=0)

    # WHEN / THEN
    assert cli.main(["train.py"]) == 0
    _trace(tmp_path / "run.parquet", rank=1)
    assert "holds a trace" in refusal(capsys, "train.py")


def test_ranks_of_a_larger_run_are_not_mixed_with_this_one(
    started: Started, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _trace(tmp_path / "run.parquet", rank=3)

    assert "holds a trace" in refusal(capsys, "train.py")


def test_a_rank_that_makes_no_sense_is_refused(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert "RANK=2 is not below WORLD_SIZE=2" in refusal(capsys, "train.py")


def test_workers_that_torchrun_starts_again_leave_the_crash_alone(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    _trace(tmp_path / "run.parquet")

    assert cli.main(["train.py"]) == 0
    assert started.output == tmp_path / "run-restart-2.parquet"


def test_torch_is_asked_for_in_one_line() -> None:
    said = output_without_torch(
        """
        import contextlib, pathlib, sys, tempfile
        from overflow_recorder.launch.cli import main
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(sys.stdout):
            script = pathlib.Path(directory, "train.py")
            script.write_text("print('started')")
            try:
                main(["-o", directory + "/run.parquet", str(script)])
            except SystemExit as end:
                print(end.code)
        """
    )

    assert said == ("overflow-record: error: torch is not installed here: pip install 'overflow-trace[recorder]'\n2\n")


def test_help_needs_no_torch_and_shows_everything() -> None:
    said = output_without_torch(
        """
        from overflow_recorder.launch.cli import main
        try:
            main(["--help"])
        except SystemExit as end:
            assert end.code == 0
        """
    )

    for text in ("--model NAME", "--output PATH", "trace recorder:", "OVERFLOW_RECORD_OUTPUT", "torchrun"):
        assert text in said


def test_a_script_that_uses_no_torch_costs_no_torch(tmp_path: Path) -> None:
    # GIVEN
    (tmp_path / "script.py").write_text("import sys; print('torch' in sys.modules)")

    # WHEN
    said = output_of(
        """
        import contextlib, sys
        from overflow_recorder.launch.cli import main
        with contextlib.redirect_stderr(sys.stdout):
            main(["script.py"])
            import atexit; atexit._run_exitfuncs()
        """,
        cwd=tmp_path,
    )

    # THEN
    assert said.startswith(
        "False\noverflow-record: nothing was recorded: the script did not import torch (child processes"
    )
    assert not (tmp_path / "run.parquet").exists()
