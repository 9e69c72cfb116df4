"""At a detection that ends the run the operation is printed, kept in the trace, and read by every report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_analyzer import find_first_nonfinite, open_trace, render_explanation
from overflow_analyzer.format.origin import ORIGIN_FILE, Origin
from overflow_analyzer.render.finding import finding_as_json, render_finding
from overflow_recorder import DebugUnderflowOverflow, NonFiniteError, RecorderWarning, TraceRecorder, builtin_callbacks

if TYPE_CHECKING:
    from pathlib import Path


class Scores(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).softmax(-1)


X = torch.full((2, 4), 200.0, dtype=torch.float16)


def run(path: Path | None, **options: Any) -> None:
    model = Scores()
    with pytest.raises(NonFiniteError), TraceRecorder(model, path, **options):
        model(X)


def test_it_is_printed_behind_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    run(None)
    report, _, made_by = capsys.readouterr().out.partition("\nMade by\n")
    assert "Detected inf/nan during batch_number=0" in report
    assert made_by.startswith("  torch.matmul (aten.mm), ")
    assert "in Scores.forward: return (x @ x.mT).softmax(-1)\n" in made_by
    assert "4 +inf of 4; in float32 the same operation gives at most 1.60e+05, 244.3% of float16's 65504\n" in made_by


def test_it_is_in_the_trace_and_in_each_report(tmp_path: Path) -> None:
    # GIVEN
    path = tmp_path / "run.parquet"
    run(path)
    # WHEN
    finding = find_first_nonfinite(open_trace(path))
    # THEN
    assert finding is not None
    assert finding.replay == Origin.from_json((path / "rank=0" / ORIGIN_FILE).read_bytes(), ORIGIN_FILE)
    assert finding.replay.operation is not None
    assert finding_as_json(finding, ())["operation"] is finding.replay.operation
    # THEN it is the first of the evidence
    text = render_explanation(finding)
    assert text.index("Made by\n  torch.matmul") < text.index("Cause: ")
    assert "**Made by**\n\n- torch.matmul (aten.mm)" in render_finding(finding, markdown=True)


def test_replay_false_switches_it_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.parquet"
    run(path, replay=False)
    assert "Made by" not in capsys.readouterr().out
    finding = find_first_nonfinite(open_trace(path))
    assert finding is not None
    assert finding_as_json(finding, ())["operation"] is None
    assert finding_as_json(finding, ())["no_operation_because"] == "replay=False"


@pytest.mark.parametrize("options", [{"on_nonfinite": "warn"}, {"on_nonfinite": "ignore"}, {"trace_batch_nums": [0]}])
@pytest.mark.filterwarnings("ignore:inf/nan detected")
def test_where_training_goes_on_nothing_runs_again(options: dict[str, Any], tmp_path: Path) -> None:
    calls = []

    class Counting(Scores):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(x)
            return super().forward(x)

    model = Counting()
    with TraceRecorder(model, tmp_path / "run.parquet", **options):
        model(X)
    assert len(calls) == 1
    assert not (tmp_path / "run.parquet" / "rank=0" / ORIGIN_FILE).exists()


@pytest.mark.parametrize("replay", [True, False])
def test_the_drop_in_class(capsys: pytest.CaptureFixture[str], *, replay: bool) -> None:
    model = Scores()
    DebugUnderflowOverflow(model, replay=replay)
    with pytest.raises(NonFiniteError):
        model(X)
    assert ("torch.matmul (aten.mm)" in capsys.readouterr().out) == replay


def test_a_fault_of_ours_is_a_warning_and_the_run_ends_as_it_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(builtin_callbacks, "find_operation", broken)
    with pytest.warns(RecorderWarning, match="could not be named"):
        run(tmp_path / "run.parquet")
    assert open_trace(tmp_path / "run.parquet").ranks[0].ended == "detected"


def test_an_origin_of_an_earlier_run_goes_with_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    run(path)
    with TraceRecorder(nn.Identity(), path, overwrite=True) as recorder:
        recorder.model(X)
    assert not (path / "rank=0" / ORIGIN_FILE).exists()


def test_a_damaged_origin_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    run(path)
    origin = path / "rank=0" / ORIGIN_FILE
    found = json.loads(origin.read_text())
    origin.write_text(json.dumps({**found, "batch_number": "0"}))
    trace = open_trace(path)
    assert trace.ranks[0].origin is None
    assert trace.ranks[0].lost[0].startswith(f"{origin}: does not describe an origin")
    assert find_first_nonfinite(trace) is not None


def test_what_is_in_the_source_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN a line of source with an escape sequence
    code = compile("def forward(self, x):\n    return (x @ x.mT).softmax(-1)  # \x1b[2J\n", "\x1b[2J.py", "exec")
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    model = type("Evil", (nn.Module,), {"forward": namespace["forward"]})()
    with pytest.raises(NonFiniteError), TraceRecorder(model, None):
        model(X)
    assert "\x1b" not in capsys.readouterr().out
