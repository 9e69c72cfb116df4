"""Each example runs as it stands, and what the analyzer says of its trace is what its docstring says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer import open_trace
from tests.analyzer.commands import analyze
from tests.integration.example_runs import EXAMPLES, run_again, run_example

if TYPE_CHECKING:
    from pathlib import Path

CLEAN = ["accelerate_loop", "gradscaler", "plain_loop"]
BAD = ["finetune_fp16", "t5_dropout_overflow"]


def finding(path: Path) -> dict[str, Any]:
    ran = analyze("report", path, "--format", "json")
    assert ran.code in {0, 1}, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    assert found["found"] == bool(ran.code)
    return found


def test_every_example_is_tested() -> None:
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(CLEAN + BAD)


@pytest.mark.parametrize("name", CLEAN)
def test_a_healthy_training_is_clean(name: str) -> None:
    run = run_example(name)
    assert run.code == 0, run.err
    assert str(run.trace.name) in run.out
    assert not finding(run.trace)["found"]


@pytest.mark.parametrize("name", CLEAN)
def test_a_second_run_replaces_the_first(name: str) -> None:
    # GIVEN an example that has run
    first = run_example(name)
    before = open_trace(first.trace).ranks[0].run.run_id
    # WHEN it runs again in the same place
    again = run_again(name, first.directory)
    # THEN its trace is the new run's
    assert again.code == 0, again.err
    assert open_trace(again.trace).ranks[0].run.run_id != before


def test_the_path_is_an_argument_and_what_is_no_trace_is_left_alone(tmp_path: Path) -> None:
    assert run_again("plain_loop", tmp_path, "elsewhere.parquet").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere.parquet"]
    (tmp_path / "thesis.txt").write_text("three years of work")
    refused = run_again("plain_loop", tmp_path, "thesis.txt")
    assert refused.code != 0
    assert "a file is there; choose another path" in refused.err
    assert (tmp_path / "thesis.txt").read_text() == "three years of work"


def test_the_plain_loop_records_the_batches_it_says() -> None:
    (rank,) = open_trace(run_example("plain_loop").trace).ranks
    frames = list(rank.frames())
    assert {0, 5, 10, 15} <= {frame.batch_number for frame in frames}
    whole = [frame.module_name for frame in frames if frame.batch_number == 10]
    assert whole == ["0", "1", "2", "3", "", "loss"]


def test_a_skipped_step_is_no_alarm_and_batches_are_optimizer_steps() -> None:
    run = run_example("gradscaler")
    # GIVEN steps that the scaler skipped for infinite gradients
    assert "step 0: infinite gradients, skipped" in run.out
    # THEN nothing was found, and the trace has ten batches of four forwards each
    (rank,) = open_trace(run.trace).ranks
    frames = list(rank.frames())
    assert max(frame.batch_number for frame in frames) == 9
    in_batch_2 = [frame.call_index for frame in frames if (frame.batch_number, frame.module_name) == (2, "")]
    assert in_batch_2 == [0, 1, 2, 3]


# Trainings that go wrong.


@pytest.mark.slow
def test_the_dropout_is_the_origin() -> None:
    run = run_example("t5_dropout_overflow")
    assert run.code == 0, run.err
    assert "Detected inf/nan during batch_number=0\nLast 21 forward frames:\n" in run.out
    assert run.err.splitlines()[-1].startswith(
        "training stopped: inf/nan detected in output of encoder.block.2.layer.1"
    )
    # WHEN the trace is analyzed
    found = finding(run.trace)
    # THEN the Dropout is where it began, and what it was given was close to float16's limit
    dropout = "encoder.block.2.layer.1.dropout"
    assert (found["module_name"], found["role"], found["context"]) == (dropout, "output", "output")
    assert found["origin"]["module_name"] == dropout
    assert found["cause"]["name"] == "overflow"
    text = analyze(run.trace).out
    assert "6.27e+04 is 95.7% of float16's 65504" in text
    assert "made there: all that it took in is finite" in text


@pytest.mark.slow
def test_the_embedding_went_bad_between_two_batches() -> None:
    run = run_example("finetune_fp16")
    assert run.code == 0, run.err
    # GIVEN a finite loss in batch 0, and one step of the optimizer
    assert run.out.startswith("step 0: loss 0.")
    # WHEN the trace is analyzed
    found = finding(run.trace)
    # THEN a weight is the first that is not finite; no module made it
    assert (found["batch_number"], found["role"], found["context"]) == (1, "weight", "weight")
    assert found["module_name"] == "embeddings.word_embeddings"
    assert found["origin"] is None
    # AND no cause is claimed: neither the optimizer's state nor the weight's earlier figures are in the window
    assert (found["cause"]["name"], found["cause"]["confidence"]) == ("parameter-went-bad", "possible")
    text = analyze(run.trace).out
    assert "no module made it: the weight itself is not finite" in text
    assert "no operation is named: the weight itself is non-finite (weight)" in text
