"""The command line as a whole: what stands where, exit codes, and streams that are odd."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from overflow_analyzer.cli import COMMANDS, group, main
from overflow_analyzer.cli.failures import exit_code_for
from tests.analyzer.commands import analyze, analyze_process, analyze_terminal
from tests.analyzer.samples import HOSTILE, WELL_KNOWN_REPORT, write_clean, write_hostile, write_well_known
from tests.traces import frame, tensor, write_trace

SCRIPT = [sys.executable, "-m", "overflow_analyzer"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_well_known(tmp_path / "run.parquet")


def test_a_trace_alone_is_reported_on(trace: Path) -> None:
    assert analyze(trace) == analyze("report", trace)
    assert WELL_KNOWN_REPORT in analyze(trace).out


@pytest.mark.parametrize("arguments", [("--frames", "2", "TRACE"), ("TRACE", "--frames", "2")])
def test_options_stand_before_or_after_the_trace(trace: Path, arguments: tuple[str, ...]) -> None:
    ran = analyze(*(str(trace) if one == "TRACE" else one for one in arguments))
    assert ran.code == 1
    assert "Last 2 forward frames:" in ran.out


def test_a_trace_called_like_a_command_is_given_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a trace whose name is a command's
    write_well_known(tmp_path / "info")
    monkeypatch.chdir(tmp_path)

    # WHEN it is named in one of the documented ways, THEN it is reported on
    assert analyze("./info").code == analyze("report", "info").code == analyze("--frames", "2", "info").code == 1


def test_a_misspelled_command_is_told(trace: Path) -> None:
    ran = analyze("reprot", trace)
    assert ran.code == 2
    assert "Did you mean 'report'?" in ran.err


def test_what_is_there_is_no_misspelled_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_well_known(tmp_path / "inf")
    monkeypatch.chdir(tmp_path)
    assert analyze("inf").code == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_and_help_for_each_option(name: str) -> None:
    # GIVEN a command WHEN its help is asked for
    ran = analyze(name, "--help")

    # THEN it shows a line that runs, and no option is left unexplained
    assert ran.code == 0
    assert ran.out.split("\n  Example:\n", 1)[1].startswith(f"    overflow-analyze {name} ")
    command = group.get_command(None, name)  # type: ignore[arg-type]  # the context is not used
    assert command is not None
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_help_is_the_table_of_commands() -> None:
    listed = analyze("--help").out.split("Commands:\n", 1)[1]
    # In a narrow terminal a command's line goes on further to the right.
    assert re.findall(r"^  (\S+)", listed, re.MULTILINE) == list(COMMANDS)


def test_help_imports_no_command_and_neither_arrow_nor_numpy() -> None:
    # GIVEN a fresh interpreter WHEN the group's help is shown
    source = "import sys, overflow_analyzer.cli as c; c.main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)

    # THEN nothing slow is loaded
    loaded = set(done.stderr.split())
    assert not loaded & {
        "numpy",
        "pyarrow",
        "tabulate",
        "torch",
        *(f"overflow_analyzer.cli.{name}" for name in COMMANDS),
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_runs_where_importing_torch_fails(name: str, tmp_path: Path) -> None:
    # GIVEN a torch that cannot be imported
    trace = write_clean(tmp_path / "run.parquet")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "torch.py").write_text("raise ImportError('torch was imported')\n")
    more: dict[str, list[object]] = {
        "batch": ["0"],
        "history": ["*"],
        "diff": [trace],
        "html": ["-o", tmp_path / "run.html"],
        "compact": ["-o", tmp_path / "one.parquet"],
        "watch": ["--once"],
        "export": ["--to", "tensorboard", "-o", tmp_path / "events"],
    }

    # WHEN the command runs
    ran = analyze_process(name, trace, *more.get(name, []), PYTHONPATH=str(broken))

    # THEN it does what it does
    assert ran.code in (0, 1), ran.err
    assert ran.err == ""


@pytest.mark.parametrize(
    "arguments", [("--nonsense",), ("report",), ("batch", "x", "one"), ("info", "x", "--format", "xml")]
)
def test_wrong_usage_exits_with_2_and_prints_nothing_on_stdout(arguments: tuple[str, ...]) -> None:
    ran = analyze(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage: overflow-analyze" in ran.err


def test_no_arguments_show_the_help_as_wrong_usage() -> None:
    assert analyze().code == 2


def test_version() -> None:
    assert analyze("--version").out.startswith("overflow-analyze, version ")


@pytest.mark.parametrize("command", [("report",), ("info",), ("batch", "0"), ("watch", "--once")])
def test_what_is_no_trace_is_one_line_on_stderr(command: tuple[str, ...], tmp_path: Path) -> None:
    # GIVEN nothing at all under the name, a line break in it
    path = tmp_path / "ab\nsent"

    # WHEN a command is asked about it
    ran = analyze(command[0], path, *command[1:])

    # THEN it says so in one line
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == f"overflow-analyze: {tmp_path}/ab\\nsent: there is no such file or directory\n"


def test_where_nothing_was_recorded_nothing_is_clean(tmp_path: Path) -> None:
    ran = analyze(write_trace(tmp_path / "run.parquet", []))
    assert (ran.code, ran.out) == (3, "")
    assert "nothing was recorded" in ran.err


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_a_reader_that_goes_away_is_no_error(unbuffered: str, tmp_path: Path) -> None:
    # GIVEN a report much larger than a pipe
    frames = [frame(at, 0, f"layer.{at}", tensor("output", "output"), in_batch=at) for at in range(5000)]
    path = write_trace(tmp_path / "run.parquet", frames)

    # WHEN its reader takes one line and closes
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen(
        [*SCRIPT, "batch", str(path), "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    # THEN nobody hears of it
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_the_exit_code_answers_though_nobody_reads_the_report(unbuffered: str, trace: Path) -> None:
    # GIVEN a pipe without a reader
    reading, writing = os.pipe()
    os.close(reading)

    # WHEN the report is written into it
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run([*SCRIPT, str(trace)], stdout=writing, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(writing)

    # THEN the code still says that something was found
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])  # refused when all is written, or at the first write
def test_a_stdout_that_refuses_is_one_line(unbuffered: str, trace: Path) -> None:
    command, variables = [*SCRIPT, str(trace)], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=variables)
    assert done.returncode == 3
    assert done.stderr == "overflow-analyze: No space left on device\n"


def test_closed_streams_leave_the_exit_code(trace: Path) -> None:
    done = subprocess.run(f"{sys.executable} -m overflow_analyzer {trace} >&- 2>&-", shell=True, check=False)
    assert done.returncode == 1


@pytest.mark.parametrize("command", [("report",), ("info",), ("batch", "0"), ("watch", "--once")])
@pytest.mark.parametrize(
    "locale", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_names_that_a_stream_cannot_show_are_escaped(
    command: tuple[str, ...], locale: dict[str, str], tmp_path: Path
) -> None:
    # GIVEN a module called 模块 and a terminal's control characters in its name
    path = write_hostile(tmp_path / "run.parquet")

    # WHEN stdout takes ASCII alone
    ran = analyze_process(command[0], path, *command[1:], **locale)

    # THEN the name is there, escaped, and nothing acts on a terminal
    assert ran.code in (0, 1)
    assert "\\u6a21\\u5757" in ran.out
    assert ran.out.isascii()
    assert "\x1b" not in ran.out
    assert ran.err == ""


@pytest.mark.parametrize("command", [("report",), ("info",), ("batch", "0"), ("watch", "--once")])
@pytest.mark.parametrize("kind", ["text", "json", "markdown"])
def test_no_name_acts_on_a_terminal_or_a_page(command: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    path = write_hostile(tmp_path / "run.parquet")
    formats = [] if command[0] == "watch" else ["--format", kind]
    ran = analyze(command[0], path, *command[1:], *formats)
    assert not {"\x1b", "\u202e"} & set(ran.out + ran.err)
    if kind == "markdown" and formats:
        outside_code = "".join(ran.out.split("```")[::2])
        assert "<script>" not in outside_code
        assert "<script>" in HOSTILE


def test_an_interrupt_has_no_traceback(monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("overflow_analyzer.trace.opening.open_trace", interrupted)
    ran = analyze("info", trace)
    assert (ran.code, ran.out, ran.err) == (130, "", "")


@pytest.mark.parametrize("asked", [True, False])
def test_an_unexpected_error_asks_for_a_report(asked: bool, monkeypatch: pytest.MonkeyPatch, trace: Path) -> None:
    # GIVEN a fault of the product
    def broken(_: object) -> None:
        raise ZeroDivisionError("a fault\nof ours")

    monkeypatch.setattr("overflow_analyzer.trace.opening.open_trace", broken)
    monkeypatch.setenv("OVERFLOW_ANALYZE_TRACEBACK", "1" if asked else "0")

    # WHEN a command meets it
    ran = analyze("info", trace)

    # THEN it is one line that says what to do, and the traceback only where it was asked for
    assert ran.code == 3
    assert ran.err.splitlines()[-1].startswith(
        "overflow-analyze: an error of its own (ZeroDivisionError: a fault\\nof ours)"
    )
    assert ("Traceback" in ran.err) is asked
    assert (len(ran.err.splitlines()) == 1) is not asked


@pytest.mark.parametrize(
    ("error", "code"),
    [(MemoryError(), 3), (SystemExit(7), 7), (SystemExit("text"), 3), (OSError(28, "No space left on device"), 3)],
)
def test_other_endings_have_an_exit_code(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_for(error) == code
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("command", [("report",), ("batch", "0")])
def test_colour_is_for_terminals_alone(command: tuple[str, ...], trace: Path) -> None:
    # GIVEN a report with an inf WHEN a terminal shows it, THEN the figures are red, unless NO_COLOR is set
    red = "\x1b[31m0.00e+00      inf\x1b[0m output\n"
    assert red in analyze_terminal(command[0], trace, *command[1:]).out
    assert "\x1b" not in analyze_terminal(command[0], trace, *command[1:], NO_COLOR="1").out
    assert "\x1b" not in analyze_terminal(command[0], trace, *command[1:], "--format", "markdown").out
    assert "\x1b" not in analyze_process(command[0], trace, *command[1:], NO_COLOR="").out


@pytest.mark.parametrize("command", ["info", "top"])
def test_tables_fit_a_terminal_and_are_whole_elsewhere(command: str, trace: Path) -> None:
    # GIVEN names longer than a terminal is wide
    narrow = analyze_terminal(command, trace, columns=72).out
    table = narrow.split("\n\n")[-1] if command == "info" else narrow
    assert all(len(line) <= 72 for line in table.splitlines()[-3:])
    if command == "top":
        assert "encoder.block.2.layer.1.DenseReluDense.wo" in analyze(command, trace).out


def test_main_takes_the_arguments_of_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = write_clean(tmp_path / "run.parquet")
    monkeypatch.setattr(sys, "argv", ["overflow-analyze", "report", str(path)])
    assert main() == 0


def _completed(*words: str) -> list[str]:
    """What bash is told for the last word."""
    line = {"COMP_WORDS": " ".join(["overflow-analyze", *words]), "COMP_CWORD": str(len(words))}
    done = subprocess.run(
        SCRIPT,
        env={**os.environ, **line, "_OVERFLOW_ANALYZE_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_shell_gets_its_script() -> None:
    # GIVEN the variable that click's users know WHEN bash reads what it gives
    source = f"_OVERFLOW_ANALYZE_COMPLETE=bash_source {shlex.join(SCRIPT)}"
    done = subprocess.run(
        ["bash", "-c", f'eval "$({source})" && complete -p'], capture_output=True, text=True, check=True
    )

    # THEN the command has completions
    assert done.stdout.endswith("-F _overflow_analyze_completion overflow-analyze\n")


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["com"], ["file,com", "plain,compact"]),
        (["run"], ["file,run"]),
        (["report", "--fo"], ["plain,--format"]),
        (["run.parquet", "--fo"], ["plain,--format"]),
        (["repor", "--fo"], ["plain,--format"]),
        (["report", "--format", "j"], ["plain,json"]),
        (["top", "run"], ["file,run"]),
    ],
    ids=" ".join,
)
def test_a_shell_completes_commands_options_and_traces(words: list[str], completions: list[str]) -> None:
    assert _completed(*words) == completions
