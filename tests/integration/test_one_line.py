"""Unchanged scripts under ``overflow-record``: the finding is the planted fault, and the training is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from overflow_analyzer import cli, find_first_nonfinite, open_trace

SCRIPTS = Path(__file__).parent / "scripts"
SECONDS = 300

# A fork for each run: the libraries are imported once, torch._dynamo because the first step of an optimizer does it.
# Whether the recorder comes in before or behind torch is another test's concern.
RUN = """
import atexit, json, os, runpy, sys
import accelerate, lightning, torch, torch._dynamo
from transformers import BertModel, GPT2LMHeadModel, Trainer
from overflow_recorder.cli import main
for script, outputs, line in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{outputs}/{name}", os.O_WRONLY | os.O_CREAT), number)
        sys.argv[:] = [script]
        code = main(line) if line else runpy.run_path(script, run_name="__main__") and 0
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)  # tearing so many modules down takes longer than the script
    with open(f"{outputs}/code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
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


@dataclass
class Ended:
    """How a run ended."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each script, run alone and recorded; a directory each."""
    directory = tmp_path_factory.mktemp("runs")
    plan = []
    for name, planted in PLANTED.items():
        script = str(SCRIPTS / f"{name}.py")
        options = ("-o", str(directory / name / "run.parquet"), "--on_nonfinite", "ignore")
        for kind, line in (("plain", ()), ("recorded", (*options, script, *planted.arguments))):
            (directory / name / kind).mkdir(parents=True)
            plan.append((script, str(directory / name / kind), line))
    subprocess.run([sys.executable, "-c", RUN, json.dumps(plan)], check=True, timeout=SECONDS)
    return directory


def _ended(directory: Path) -> Ended:
    code, stdout, stderr = ((directory / name).read_text(encoding="utf-8") for name in ("code", "stdout", "stderr"))
    return Ended(int(code), stdout, stderr)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_a_script_is_recorded_without_a_line(name: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN
    planted, trace = PLANTED[name], runs / name / "run.parquet"

    # WHEN it has run alone and recorded
    plain, recorded = _ended(runs / name / "plain"), _ended(runs / name / "recorded")

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
