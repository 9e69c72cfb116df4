"""Trainings that go wrong as they do in life, each recorded by ``overflow-record`` without options.

What stands above the frames in the report has to name the batch, the module or the line, the cause and what changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.one_line_runs import Command, Ended, run_all

EPSILONS = ("1e-05", "0.001")
SCRIPTS = Path(__file__).parent / "alarms"


class Wrong(NamedTuple):
    """What is wrong with a training, as its script shows."""

    script: str
    first: str
    """What the first line begins with."""
    made: str
    """The line of the script that made it, as its code begins; empty where no operation of the training did."""
    cause: str
    changed: str
    """How the first line of "What changed" begins; empty where nothing grew."""


WRONG = [
    # The spiked weight of n1 makes its output 1e5: autocast's float16 cannot hold what goes into qkv.
    Wrong(
        "attention_spike",
        "nan, inf, -inf in blocks.4.a.qkv output (Linear), batch 20 of 21, made in blocks.4.a.qkv (Linear)",
        "q, k, v = self.qkv(x)",
        "precision-cast (certain)",
        "weight of blocks.4.n1 (LayerNorm): 1.0",
    ),
    # Sample 5 is padding alone: a sum of 0 over 0 tokens.
    Wrong(
        "zero_divisor",
        "nan in pool output (Normalize), batch 12 of 13, made in pool (Normalize)",
        "return x.sum(1) / lengths[:, None]",
        "division-by-zero (certain)",
        "",
    ),
    # exp(0.5 * logvar) passes float32's limit: e ** 88.7.
    Wrong(
        "vae_logvar", "", "z = mu + torch.exp(0.5 * logvar)", "overflow (certain)", "input[0] of encoder.0 (Linear): "
    ),
    # Sample 6 has length 0: a softmax over -inf alone.
    Wrong(
        "masked_row",
        "nan in a output (Attn), batch 9 of 10, made in a (Attn)",
        "return scores.softmax(-1)",
        "masked-row-softmax (certain)",
        "",
    ),
    # The teacher grows by 2.9 a step.
    Wrong(
        "ema_decay",
        "",
        "return self.student(x), self.teacher(x)",
        "overflow (certain)",
        "weight of teacher.0 (Linear): ",
    ),
    # The optimizer's steps grow by themselves.
    Wrong(
        "high_lr",
        "-inf in 2 output (Linear), batch 3 of 4, made in 2 (Linear)",
        "loss = nn.functional.mse_loss",
        "overflow (certain)",
        "weight of 0 (Linear): ",
    ),
    Wrong(
        "bad_checkpoint",
        "nan in 2 weight (Linear), batch 0 of 1",
        "",
        "bad-parameter-at-start (certain)",
        "",
    ),
    # No label is kept.
    Wrong(
        "empty_batch",
        "nan in loss of the training step, batch 13 of 14",
        "loss = nn.functional.cross_entropy(logits[keep], y[keep])",
        "division-by-zero (certain)",
        "",
    ),
    # Inputs of 1e4 make a mean square of millions, which float16 cannot hold.
    Wrong(
        "loss_scale",
        "inf in loss of the training step, batch 10 of 11",
        "loss = (logits.float() - 1).pow(2).mean().half()",
        "precision-cast (certain)",
        "input[0] of 0 (Linear): ",
    ),
]


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Ended, list[str]]]:
    """How each training ended, and what its report prints above the frames."""
    here = tmp_path_factory.mktemp("alarms")
    commands = []
    for one in WRONG:
        path = f"{one.script}.parquet"
        script = str(SCRIPTS / f"{one.script}.py")
        commands += [
            Command(["overflow-record", "-o", path, script], str(here)),
            Command(["overflow-analyze", "report", path], str(here)),
        ]
    for eps in EPSILONS:
        line = ["overflow-record", "-o", f"{eps}.parquet", str(SCRIPTS / "wrong_eps.py"), eps]
        commands.append(Command(line, str(here)))
    commands.append(Command(["overflow-analyze", "diff", *(f"{eps}.parquet" for eps in EPSILONS)], str(here)))
    *ended, first, second, compared = run_all(commands, here)
    assert (first.code, second.code, compared.code) == (0, 0, 1)
    found = {"wrong_eps": (compared, compared.stdout.splitlines())}
    for one, recorded, reported in zip(WRONG, ended[::2], ended[1::2], strict=True):
        assert (recorded.code, reported.code) == (1, 1), recorded.stderr + reported.stderr
        found[one.script] = recorded, reported.stdout.split("\n\nDetected inf/nan during batch_number=")[0].splitlines()
    return found


def under(lines: list[str], title: str) -> list[str]:
    """The lines of a section."""
    if title not in lines:
        return []
    rest = lines[lines.index(title) + 1 :]
    end = next((at for at, line in enumerate(rest) if not line.startswith("  ")), len(rest))
    return [line.removeprefix("  ") for line in rest[:end]]


@pytest.mark.parametrize("wrong", WRONG, ids=[one.script for one in WRONG])
def test_the_first_screen_tells_the_story(wrong: Wrong, screens: dict[str, tuple[Ended, list[str]]]) -> None:
    recorded, lines = screens[wrong.script]
    assert lines[0].startswith(wrong.first)
    if wrong.made:
        source = (SCRIPTS / f"{wrong.script}.py").read_text(encoding="utf-8").splitlines()
        (line,) = (at for at, text in enumerate(source, 1) if wrong.made in text)
        assert lines[0].endswith(f"at {wrong.script}.py:{line}")
    assert lines[1] == f"Cause: {wrong.cause}"
    assert wrong.made in under(lines, "Made by")[0]
    changed = under(lines, "What changed")
    assert [*changed, ""][0].startswith(wrong.changed)
    assert bool(changed) == bool(wrong.changed)
    # THEN the run said the same when it stopped, and its traceback ends in the script
    assert lines[-1] in recorded.stdout or not changed
    assert "overflow_recorder.errors.NonFiniteError: inf/nan detected in " in recorded.stderr


def test_two_runs_that_differ_in_one_setting(screens: dict[str, tuple[Ended, list[str]]]) -> None:
    _, lines = screens["wrong_eps"]
    assert any("eps" in line and all(eps in line for eps in EPSILONS) for line in lines)
