from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_recorder import BatchLimitReached, RecorderArguments, cli
from overflow_recorder.launching import CannotStartError
from tests.recorder.subprocesses import output_of, output_without_torch

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


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    """Nothing is run: what would be is noted."""
    noted = Started()

    def recorded_run(output: Path, model: str | None, options: RecorderArguments) -> Started:
        noted.output, noted.model, noted.options = output, model, options
        return noted

    def runner(prefix: list[str]) -> Callable[..., None]:
        def run(name: str, arguments: list[str], *, before: Callable[[], None]) -> None:
            noted.program = [*prefix, name, *arguments]
            before()

        return run

    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").write_text("a script without a suffix")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/__main__.py").write_text("")
    monkeypatch.setattr(cli, "RecordedRun", recorded_run)
    monkeypatch.setattr(cli, "run_script", runner([]))
    monkeypatch.setattr(cli, "run_module", runner(["-m"]))
    for name in list(os.environ):
        if name.startswith(("OVERFLOW_RECORD_", "TORCHELASTIC_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    return noted


def _refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What ``main`` says where it does not start anything."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    out, err = capsys.readouterr()
    assert caught.value.code == 2
    assert out == ""
    return err


LINES: list[tuple[str, str, dict[str, Any]]] = [
    ("train.py", "train.py", {}),
    ("train.py --lr 1 --output x -m y", "train.py --lr 1 --output x -m y", {}),
    ("train.py --help --version", "train.py --help --version", {}),
    ("-m package.train --output x", "-m package.train --output x", {}),
    ("-mpackage a", "-m package a", {}),
    ("--max_frames_to_save 5 train.py 6", "train.py 6", {"max_frames_to_save": 5}),
    ("--max-frames-to-save=5 train.py", "train.py", {"max_frames_to_save": 5}),
    ("--trace_batch_nums 1 3 train.py 5", "train.py 5", {"trace_batch_nums": [1, 3]}),
    ("--trace_batch_nums 1 3 -m package 5", "-m package 5", {"trace_batch_nums": [1, 3]}),
    ("--trace_batch_nums 1 3 train 5", "train 5", {"trace_batch_nums": [1, 3]}),
    ("--trace_batch_nums 1 3 directory", "directory", {"trace_batch_nums": [1, 3]}),
    ("--trace_batch_nums 1 3 -- odd name", "odd name", {"trace_batch_nums": [1, 3]}),
    ("--roles weight output --statistics full x.py", "x.py", {"roles": ["weight", "output"], "statistics": "full"}),
    ("--ignore *:input[mask] a:b train.py", "train.py", {"ignore": ["*:input[mask]", "a:b"]}),
    ("--overwrite train.py", "train.py", {"overwrite": True}),
    ("--overwrite no train.py", "train.py", {"overwrite": False}),
    ("--no_overwrite train.py yes", "train.py yes", {"overwrite": False}),
    ("-- -m package", "-m package", {}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "program", "options"), LINES, ids=[line for line, *_ in LINES])
def test_a_line_is_split_where_the_program_begins(
    started: Started, line: str, program: str, options: dict[str, Any]
) -> None:
    code = cli.main(line.split())

    assert (code, started.begun) == (0, 1)
    assert started.program == program.split()
    assert started.options == RecorderArguments(**options)


OWN_OPTIONS = st.lists(
    st.sampled_from(
        [
            ["--max_frames_to_save", "3"],
            ["--trace_batch_nums", "1", "2"],
            ["--trace_batch_nums"],
            ["--roles", "weight", "output"],
            ["--ignore", "*:output"],
            ["--overwrite"],
            ["--overwrite", "False"],
            ["--no-overwrite"],
            ["-o", "elsewhere"],
            ["--output=elsewhere"],
            ["--model", "Net"],
        ]
    )
)


@given(OWN_OPTIONS, st.sampled_from([["train.py"], ["-m", "package"]]), st.lists(st.text()))
def test_everything_from_the_program_on_is_its_own(
    options: list[list[str]], program: list[str], arguments: list[str]
) -> None:
    own = [text for option in options for text in option]
    parser = cli.make_parser()

    assert cli.split_line(parser, [*own, *program, *arguments]) == (own, [*program, *arguments])


def test_the_defaults(started: Started, tmp_path: Path) -> None:
    cli.main(["train.py"])

    assert (started.output, started.model) == (tmp_path / "run.parquet", None)


def test_output_and_model(started: Started, tmp_path: Path) -> None:
    cli.main(["-o", "runs/1.parquet", "--model", "trainer.model", "train.py"])

    assert (started.output, started.model) == (tmp_path / "runs/1.parquet", "trainer.model")


def test_variables_are_options_and_the_line_has_the_last_word(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN
    variables = {
        "OUTPUT": "by-variable", "MODEL": "Net", "TRACE_BATCH_NUMS": "1 2", "OVERWRITE": "1", "MAX_FRAMES_TO_SAVE": "7",
    }  # fmt: skip
    for name, text in variables.items():
        monkeypatch.setenv(f"OVERFLOW_RECORD_{name}", text)

    # WHEN
    cli.main(["--trace_batch_nums", "3", "--no_overwrite", "--model", "Other", "train.py"])

    # THEN
    assert (started.output, started.model) == (tmp_path / "by-variable", "Other")
    assert started.options == RecorderArguments(trace_batch_nums=[3], max_frames_to_save=7)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--max_frames_to_save 0 train.py", "max_frames_to_save: 0 is less than 1"),
        ("--ignore attention train.py", "ignore: 'attention' is not MODULE:CONTEXT"),
        ("--max_bytes 1 train.py", "max_bytes: 1 is less than 65536"),
        ("--max_bytes many train.py", "RecorderArguments.max_bytes: expected int, got 'many'"),
        ("--roles weights train.py", "RecorderArguments.roles: expected one of weight, buffer"),
        ("--trace_batch_nums 1,3 train.py", "RecorderArguments.trace_batch_nums: element 0: expected int"),
    ],
)
def test_a_wrong_option_is_one_line(
    started: Started, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    said = _refusal(capsys, *line.split())

    assert said.startswith("overflow-record: error: ")
    assert said.count("\n") == 1
    assert message in said
    assert started.program == []


def test_a_wrong_variable_is_one_line(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERFLOW_RECORD_MAX_BYTE", "1")

    said = _refusal(capsys, "train.py")

    assert said == (
        "overflow-record: error: the environment variable OVERFLOW_RECORD_MAX_BYTE is no option's "
        "(did you mean OVERFLOW_RECORD_MAX_BYTES?)\n"
    )


def test_an_unknown_option_is_no_script(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    said = _refusal(capsys, "--modle", "Net", "train.py")

    assert "unrecognized arguments: --modle (did you mean --model?)" in said


@pytest.mark.parametrize("line", ["", "-m", "--overwrite", "--"])
def test_nothing_to_run(started: Started, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert "what is to be run? usage: overflow-record [options] train.py" in _refusal(capsys, *line.split())


def test_a_program_that_is_not_there(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object, **__: object) -> None:
        raise CannotStartError("cannot run 'train.py': no such file")

    monkeypatch.setattr(cli, "run_script", cannot)

    assert _refusal(capsys, "train.py") == "overflow-record: error: cannot run 'train.py': no such file\n"


def test_an_end_that_was_asked_for_is_none_of_the_scripts_failures(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise BatchLimitReached("stopped as asked: batch 3 has ended")

    monkeypatch.setattr(cli, "run_script", stopped)

    assert cli.main(["train.py"]) == 0
    assert capsys.readouterr().err == "overflow-record: stopped as asked: batch 3 has ended\n"


def test_what_the_script_raises_goes_on(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError("the script's")

    monkeypatch.setattr(cli, "run_script", fails)

    with pytest.raises(KeyError, match="the script's"):
        cli.main(["train.py"])


# What is at the output already.


def _trace(path: Path, rank: int = 0) -> None:
    (path / f"rank={rank}").mkdir(parents=True)
    (path / f"rank={rank}" / "_run.json").write_text("{}")


def test_a_trace_is_not_replaced_unless_asked(
    started: Started, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # GIVEN
    _trace(tmp_path / "run.parquet")

    # WHEN / THEN
    said = _refusal(capsys, "train.py")
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

    assert "a file is there" in _refusal(capsys, *overwrite, "-o", "file", "train.py")
    assert "holds something else (notes.txt)" in _refusal(capsys, *overwrite, "-o", "full", "train.py")


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
    assert "holds a trace" in _refusal(capsys, "train.py")


def test_ranks_of_a_larger_run_are_not_mixed_with_this_one(
    started: Started, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _trace(tmp_path / "run.parquet", rank=3)

    assert "holds a trace" in _refusal(capsys, "train.py")


def test_a_rank_that_makes_no_sense_is_refused(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert "RANK=2 is not below WORLD_SIZE=2" in _refusal(capsys, "train.py")


def test_workers_that_torchrun_starts_again_leave_the_crash_alone(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    _trace(tmp_path / "run.parquet")

    assert cli.main(["train.py"]) == 0
    assert started.output == tmp_path / "run-restart-2.parquet"


# Without torch, and without a program.


def test_torch_is_asked_for_in_one_line() -> None:
    said = output_without_torch(
        """
        import contextlib, pathlib, sys, tempfile
        from overflow_recorder.cli import main
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
        from overflow_recorder.cli import main
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
        from overflow_recorder.cli import main
        with contextlib.redirect_stderr(sys.stdout):
            main(["script.py"])
            import atexit; atexit._run_exitfuncs()
        """,
        cwd=tmp_path,
    )

    # THEN
    assert said == "False\noverflow-record: nothing was recorded: the script did not import torch\n"
    assert not (tmp_path / "run.parquet").exists()
