from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_recorder import BatchLimitReached, RecorderArguments
from overflow_recorder.launch import cli
from overflow_recorder.launch.launching import CannotStartError
from tests.recorder.started import Started, refusal, start_nothing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    """Nothing is run; a script without a suffix and a directory that is a program are there."""
    (tmp_path / "train").write_text("a script without a suffix")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/__main__.py").write_text("")
    return start_nothing(monkeypatch, tmp_path)


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
    said = refusal(capsys, *line.split())

    assert said.startswith("overflow-record: error: ")
    assert said.count("\n") == 1
    assert message in said
    assert started.program == []


def test_a_wrong_variable_is_one_line(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERFLOW_RECORD_MAX_BYTE", "1")

    said = refusal(capsys, "train.py")

    assert said == (
        "overflow-record: error: the environment variable OVERFLOW_RECORD_MAX_BYTE is no option's "
        "(did you mean OVERFLOW_RECORD_MAX_BYTES?)\n"
    )


def test_an_unknown_option_is_no_script(started: Started, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, "--modle", "Net", "train.py")

    assert "unrecognized arguments: --modle (did you mean --model?)" in said


@pytest.mark.parametrize("line", ["", "-m", "--overwrite", "--"])
def test_nothing_to_run(started: Started, capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert "no script is given; usage: overflow-record [options] train.py" in refusal(capsys, *line.split())


def test_a_program_that_is_not_there(
    started: Started, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object, **__: object) -> None:
        raise CannotStartError("cannot run 'train.py': no such file")

    monkeypatch.setattr(cli, "run_script", cannot)

    assert refusal(capsys, "train.py") == "overflow-record: error: cannot run 'train.py': no such file\n"


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
