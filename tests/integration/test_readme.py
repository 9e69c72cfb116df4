"""What the README shows, done: commands print what it quotes, Python runs, links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from overflow_analyzer.cli import COMMANDS
from tests.analyzer.commands import analyze
from tests.integration.example_runs import run_example

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)

# Set-up takes a network and minutes; the last step of each line is what is run here, and .ci/run runs the second whole.
SET_UP = ("python3 -m venv", ". ", "pip install", "pytest", "python examples/")

FIGURE = r"\d\.\d\de[+-]\d\d"


class Shown(NamedTuple):
    """A command in a console block, and what the block says it prints."""

    command: str
    output: list[str]


def console() -> list[Shown]:
    found = []
    for language, text in BLOCKS:
        if language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append(Shown(command, output.splitlines()))
    return found


def test_every_console_block_begins_with_a_prompt() -> None:
    assert all(text.startswith("$ ") for language, text in BLOCKS if language == "console")
    assert len(console()) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("shown", console(), ids=lambda shown: shown.command[-40:])
def test_a_command_prints_what_is_quoted(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the repository as the current directory, and the example's trace in it under its name
    monkeypatch.chdir(ROOT)
    steps = [step for step in shown.command.split(" && ") if not step.startswith(SET_UP)]
    for step in steps:
        program, *arguments = shlex.split(step)
        assert program == "overflow-analyze"
        arguments = [in_place(argument) for argument in arguments]
        # WHEN the command runs
        ran = analyze(*arguments)
        # THEN it prints what the README says
        assert ran.code in {0, 1}, ran.err
        if shown.output:
            assert_same(shown.output, ran.out.replace(arguments[0], shlex.split(step)[1]).splitlines())


def in_place(argument: str) -> str:
    return str(run_example("t5_dropout_overflow").trace) if argument == "t5.parquet" else argument


def assert_same(quoted: list[str], printed: list[str]) -> None:
    """Compare line by line; ``...`` alone stands for lines left out, and figures may differ as processors do."""
    at = 0
    skipping = False
    for line in quoted:
        if line == "...":
            skipping = True
            continue
        while skipping and at < len(printed) and not alike(line, printed[at]):
            at += 1
        assert at < len(printed), f"not printed: {line!r}"
        assert alike(line, printed[at]), f"quoted  {line!r}\nprinted {printed[at]!r}"
        at, skipping = at + 1, False
    assert skipping or at == len(printed), f"printed, but not quoted: {printed[at:]}"


def alike(quoted: str, printed: str) -> bool:
    """The same text, and figures within 10%: processors differ in how they round float16's matrix products."""
    if quoted == printed:
        return True
    words = [re.split(rf"({FIGURE}|\d+(?:\.\d+)?)", line) for line in (quoted, printed)]
    if len(words[0]) != len(words[1]) or words[0][::2] != words[1][::2]:
        return False
    # The smallest absolute value, first in an entry's line, is a difference of large numbers: no digit of it is sure.
    numbers = slice(3, None, 2) if re.match(rf"{FIGURE} ", quoted) else slice(1, None, 2)
    pairs = zip(words[0][numbers], words[1][numbers], strict=True)
    return all(abs(float(a) - float(b)) <= 0.1 * abs(float(a)) for a, b in pairs)


def test_the_comparison_can_fail() -> None:
    assert_same(["a", "...", "1.00e+00 6.27e+04 output"], ["a", "b", "c", "9.99e-03 6.28e+04 output"])
    for quoted, printed in (
        (["a"], ["a", "b"]),
        (["a", "b"], ["a"]),
        (["1.00e+00 6.27e+04 output"], ["1.00e+00 9.27e+04 output"]),
        (["1.00e+00 6.27e+04 output"], ["1.00e+00      inf output"]),
        (["...", "b"], ["a", "b", "c"]),
    ):
        with pytest.raises(AssertionError):
            assert_same(quoted, printed)


def test_both_set_up_commands_are_there() -> None:
    commands = [shown.command for shown in console() if "pip install" in shown.command]
    assert len(commands) == 2
    assert all("-c constraints.txt" in command for command in commands)
    assert re.search(r"&& python examples/\w+\.py && overflow-analyze \S+", commands[0])
    assert commands[1].endswith("&& pytest -n 2")


def test_the_python_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a model, a training function, and the fixtures where the README says
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    namespace: dict[str, Any] = {"model": nn.Linear(2, 1), "train": train}
    # WHEN the blocks run one after the other
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for language, text in BLOCKS:
            if language == "python":
                exec(text, namespace)
    # THEN each has left its trace
    assert {path.name for path in tmp_path.glob("*.parquet")} == {"run.parquet", "traced.parquet", "loss.parquet"}
    assert "2 2 [16.0, 3200.0, inf]" in out.getvalue()


def train(model: nn.Module) -> torch.Tensor:
    for _ in range(5):
        loss: torch.Tensor = model(torch.ones(3, 2)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
    return loss


def test_every_command_is_in_the_table() -> None:
    assert re.findall(r"^\| `(\w+)`", README, re.MULTILINE) == list(COMMANDS)


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
