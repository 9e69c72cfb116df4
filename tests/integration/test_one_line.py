"""Unchanged scripts under ``overflow-record``: the finding is the planted fault, and the training is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer import cli, find_first_nonfinite, open_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPTS = Path(__file__).parent / "scripts"
SECONDS = 300

RUN_PLAINLY = """
import contextlib, io, json, runpy, sys
outputs = {}
for path in sys.argv[1:]:
    sys.argv = [path]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(path, run_name="__main__")
    outputs[path] = output.getvalue()
print(json.dumps(outputs))
"""


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
    "gradient_accumulation": Planted("Net", 6, "embed", "output", arguments=("--workers", "1")),
    # Three batches of training and three of evaluation, then the second of training.
    "accelerate_loop": Planted("Sequential", 7, "0", "input"),
    # The fourth micro-batch.
    "trainer_run": Planted("Classifier", 3, "age.1", "output"),
    # Two batches of sanity check, then the third of training.
    "lightning_run": Planted("Classifier", 4, "encoder.0", "input"),
    # Two prompts of three tokens each, then the first of the third.
    "generate": Planted("GPT2LMHeadModel", 6, "transformer.h.1.mlp.c_proj", "output", "eval"),
}


@pytest.fixture(scope="module")
def plain() -> Iterator[subprocess.Popen[str]]:
    """All scripts without us, in one process beside the tests."""
    command = [sys.executable, "-c", RUN_PLAINLY, *(str(SCRIPTS / f"{name}.py") for name in PLANTED)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def plain_outputs(plain: subprocess.Popen[str]) -> dict[str, str]:
    """What they print, the hash of the trained weights last."""
    output, errors = plain.communicate(timeout=SECONDS)
    assert plain.returncode == 0, errors
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return {Path(path).stem: text for path, text in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_script_is_recorded_without_a_line(
    name: str, tmp_path: Path, plain: subprocess.Popen[str], request: pytest.FixtureRequest, capsys: Any
) -> None:
    # GIVEN
    planted, trace = PLANTED[name], tmp_path / "run.parquet"

    # WHEN
    done = record("-o", str(trace), "--on_nonfinite", "ignore", str(SCRIPTS / f"{name}.py"), *planted.arguments)

    # THEN the script has printed what it prints alone: every loss, and the weights' hash
    outputs: dict[str, str] = request.getfixturevalue("plain_outputs")
    assert done.returncode == 0, done.stderr
    assert done.stdout == outputs[name]
    assert f"overflow-record: recording {planted.model}, the first module called that has" in done.stderr

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


def record(
    *arguments: str, options: tuple[str, ...] = (), cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run ``overflow-record``, as the module that it is."""
    command = [sys.executable, *options, "-m", "overflow_recorder", *arguments]
    return subprocess.run(
        command,
        env={**os.environ, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
