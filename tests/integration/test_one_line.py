"""Unchanged scripts under ``overflow-record``, and the examples of docs/integrations.md."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from overflow_analyzer import cli, find_first_nonfinite, open_trace
from tests.integration.one_line_runs import Command, Ended, run_all

SCRIPTS = Path(__file__).parent / "scripts"
PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
FILES = re.findall(r'^```python title="(\S+)"\n(.*?)^```', PAGE, flags=re.MULTILINE | re.DOTALL)
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
LINES = re.findall(r"^\$ (.*\S) +# exit code (\d)$", PAGE, flags=re.MULTILINE)


@dataclass
class Planted:
    """A script's fault, counted in it by hand."""

    model: str
    batch_number: int
    module_name: str
    role: str
    phase: str = "train"
    arguments: tuple[str, ...] = ()
    """What makes the script do the same in another way."""


PLANTED = {
    # Of the discriminator's three calls a step, the first of the third step.
    "gan": Planted("Discriminator (discriminator)", 6, "main.0", "output"),
    # The seventh micro-batch. Its samples come from another process here, which records nothing.
    "gradient_accumulation": Planted("Net (model)", 6, "embed", "output", arguments=("--workers", "1")),
    # Three batches of training and three of evaluation, then the second of training.
    "accelerate_loop": Planted("Sequential (model)", 7, "0", "input"),
    # The fourth micro-batch.
    "trainer_run": Planted("Classifier (model)", 3, "age.1", "output"),
    # Two batches of sanity check, then the third of training.
    "lightning_run": Planted("Classifier (module)", 4, "encoder.0", "input"),
    # Two prompts of three tokens each, then the first of the third.
    "generate": Planted("GPT2LMHeadModel (model)", 6, "transformer.h.1.mlp.c_proj", "output", "eval"),
}


@dataclass
class Runs:
    """How everything ended."""

    plain: dict[str, Ended]
    recorded: dict[str, Ended]
    examples: list[Ended]
    lines: list[Ended]
    directory: Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Each script run alone and recorded, and then the page from its beginning to its end."""
    directory = tmp_path_factory.mktemp("runs")
    (directory / "outputs").mkdir()
    for name, text in [*FILES, *((f"{number}.py", text) for number, text in enumerate(EXAMPLES))]:
        (directory / name).write_text(text, encoding="utf-8")
    plain = [Command(["python", str(SCRIPTS / f"{name}.py")], str(directory)) for name in PLANTED]
    recorded = [Command(_recorded(name), str(directory)) for name in PLANTED]
    examples = [Command(["python", f"{number}.py"], str(directory)) for number in range(len(EXAMPLES))]
    lines = [_command(line, directory) for line, _ in LINES]

    ended = run_all([*plain, *recorded, *examples, *lines], directory / "outputs")
    count = len(PLANTED)
    return Runs(
        plain=dict(zip(PLANTED, ended[:count], strict=True)),
        recorded=dict(zip(PLANTED, ended[count : 2 * count], strict=True)),
        examples=ended[2 * count :][: len(examples)],
        lines=ended[-len(lines) :],
        directory=directory,
    )


def _recorded(name: str) -> list[str]:
    options = ["-o", f"{name}.parquet", "--on_nonfinite", "ignore"]
    return ["overflow-record", *options, str(SCRIPTS / f"{name}.py"), *PLANTED[name].arguments]


def _command(line: str, directory: Path) -> Command:
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words if re.match("[A-Z_]+=", word))
    return Command(words[len(variables) :], str(directory), variables)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_script_is_recorded_without_a_line(name: str, runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN
    planted, trace = PLANTED[name], runs.directory / f"{name}.parquet"

    # WHEN it has run alone and recorded
    plain, recorded = runs.plain[name], runs.recorded[name]

    # THEN it has printed the same: every loss, and the hash of the weights
    assert (plain.code, recorded.code) == (0, 0), recorded.stderr
    assert len(plain.stdout.splitlines()[-1]) == 64
    assert recorded.stdout == plain.stdout
    assert f"overflow-record: recording {planted.model}, the first module called that has" in recorded.stderr

    # AND the finding is the fault that it has
    found = find_first_nonfinite(open_trace(trace))
    assert found is not None
    frame = found.frame
    assert (frame.batch_number, frame.module_name, found.entry.role, frame.phase) == (
        planted.batch_number,
        planted.module_name,
        planted.role,
        planted.phase,
    )
    origin = None if found.origin is None else found.origin.module_name
    assert origin == (planted.module_name if planted.role == "output" else None)

    # AND so says the command
    assert cli.main([str(trace)]) == 1
    report = capsys.readouterr().out
    assert f"Detected inf/nan during batch_number={planted.batch_number}\n" in report
    assert f" of {planted.module_name} (" in report


# The page.


def test_the_page_has_its_examples() -> None:
    assert [name for name, _ in FILES] == ["train.py"]
    assert len(EXAMPLES) == 3
    assert len(LINES) == PAGE.count("\n$ ") == 5


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, runs: Runs) -> None:
    ended = runs.examples[number]

    assert ended.code == 0, ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(LINES)), ids=[line for line, _ in LINES])
def test_a_line_ends_as_the_page_says(number: int, runs: Runs) -> None:
    ended = runs.lines[number]

    assert ended.code == int(LINES[number][1]), ended.stderr


@pytest.mark.slow
def test_the_page_shows_what_it_says(runs: Runs) -> None:
    # The first two lines: the script's end, and what explains it.
    assert "Detected inf/nan during batch_number=" in runs.lines[0].stdout
    assert runs.lines[0].stderr.splitlines()[-1].startswith("overflow_recorder.errors.NonFiniteError: ")
    assert "First inf/nan among what was recorded" in runs.lines[1].stdout
    # The model by its variable, by its class, and the outputs named on the lines.
    assert "recording Sequential (net), as --model says" in runs.lines[2].stderr
    assert "recording Linear (net.0), as --model says" in runs.lines[3].stderr
    for name in ("net", "first", "warned", "trainer", "lightning", "loop"):
        assert open_trace(runs.directory / f"{name}.parquet").ranks[0].ended in ("closed", "aborted")
