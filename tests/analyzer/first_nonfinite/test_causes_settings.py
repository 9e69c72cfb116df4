"""What the settings of the module that made an inf/nan add to the evidence: its own p, its own eps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer.first_nonfinite.finding import Finding, find_first_nonfinite
from overflow_analyzer.format.modules import Modules, ModuleSettings, ModulesState
from overflow_analyzer.render.explanation import render_explanation
from overflow_analyzer.trace.opening import open_trace
from tests.analyzer.commands import analyze
from tests.analyzer.findings import bad
from tests.analyzer.samples import HOSTILE, write_well_known
from tests.traces import frame, modules, settings, tensor, write_modules, write_trace

if TYPE_CHECKING:
    from pathlib import Path

DROPOUT = "encoder.block.2.layer.1.dropout"
ZERO = tensor("input", "input[0]", 0.0, 0.0)


def found(path: Path) -> Finding:
    finding = find_first_nonfinite(open_trace(path))
    assert finding is not None
    return finding


def well_known(path: Path, *states: ModulesState) -> Path:
    """The T5 whose Dropout took 6.27e+04 in and gave an inf out, in batch 0."""
    return write_modules(write_well_known(path), Modules(states))


def first(*of: ModuleSettings) -> ModulesState:
    return modules(*of).states[0]


def dropout(extra_repr: str | None) -> ModuleSettings:
    return settings(DROPOUT, "dropout.Dropout", extra_repr)


def test_the_dropouts_own_p(tmp_path: Path) -> None:
    # GIVEN a Dropout of p=0.1: it multiplies by 1/0.9, and 6.27e+04/0.9 is 69667, 1.0635 times 65504
    path = well_known(tmp_path / "run", first(settings("", "Model"), dropout("p=0.1, inplace=False")))
    finding = found(path)

    # THEN the evidence says so, and the report quotes the settings where it names the module
    sentence = (
        "in training Dropout p=0.1 multiplies what it keeps by 1/(1-p), here by 1.11: "
        "6.97e+04 is 106.4% of float16's 65504"
    )
    assert sentence in finding.cause.evidence
    lines = analyze("report", path).out.splitlines()
    assert f"  settings of {DROPOUT} (Dropout): p=0.1, inplace=False" in lines
    assert f"  {sentence}" in lines
    shown = json.loads(analyze("report", path, "--format", "json").out)["settings"]
    assert (shown["extra_repr"], shown["module_class"]) == ("p=0.1, inplace=False", "torch.nn.modules.dropout.Dropout")


@pytest.mark.parametrize("extra_repr", [None, "", "p=", "p=nan", "p=0", "p=1.0", "p=-1", "p=half", "p=1e999"])
def test_a_p_that_is_none_is_not_quoted(tmp_path: Path, extra_repr: str | None) -> None:
    evidence = found(well_known(tmp_path / "run", first(dropout(extra_repr)))).cause.evidence
    assert "in training Dropout multiplies what it keeps by 1/(1-p): from there a p of 4.4% is enough" in evidence


def test_settings_that_may_have_changed_by_then_are_not_quoted(tmp_path: Path) -> None:
    # GIVEN a p that was another one when the run ended, in batch 5 THEN in batch 0 it is the first one
    later = ModulesState(5, 0, (dropout("p=0.5"),), ())
    assert "p=0.1" in render_explanation(found(well_known(tmp_path / "1", first(dropout("p=0.1")), later)))
    # GIVEN that nobody looked at it between batch -1 and 5 THEN it is not known
    later = ModulesState(5, -1, (dropout("p=0.5"),), ())
    finding = found(well_known(tmp_path / "2", first(dropout("p=0.1")), later))
    assert finding.settings is None
    assert "p=0" not in render_explanation(finding)


def division(path: Path, *of: ModuleSettings, dtype: str = "float16") -> Finding:
    """A norm that took zeros in and gave nan out."""
    entries = tensor("input", "input[0]", 0.0, 0.0, dtype=dtype), bad("output", "output", nan=4, dtype=dtype)
    trace = write_trace(path, [frame(0, 0, "norm", *entries, in_batch=0, module_class="Norm")])
    return found(write_modules(trace, modules(*of)))


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("eps=0.0", "eps of norm (Norm) is 0"),
        ("eps=1e-8", "eps of norm (Norm) is 1e-08, which is 0 in float16, whose smallest value is 5.96e-08"),
        ("(4,), eps=1e-05", "eps of norm (Norm) is 1e-05"),
        ("variance_epsilon=1e-06", "variance_epsilon of norm (Norm) is 1e-06"),
        ("layer_norm_eps=1e-06", "layer_norm_eps of norm (Norm) is 1e-06"),
        ("steps=3", "an eps of 1e-08 is 0 in float16, whose smallest value is 5.96e-08"),
        ("eps=small", "an eps of 1e-08 is 0 in float16, whose smallest value is 5.96e-08"),
    ],
)
def test_the_modules_own_eps(tmp_path: Path, setting: str, sentence: str) -> None:
    finding = division(tmp_path / "run", settings("norm", "Norm", setting, package="models"))
    assert finding.cause.name == "division-by-zero"
    assert finding.cause.evidence[-1] == sentence


def test_an_eps_among_the_attributes(tmp_path: Path) -> None:
    own = settings("norm", "Norm", package="models", attributes={"eps": "1e-12"})
    assert division(tmp_path / "run", own, dtype="float32").cause.evidence[-1] == "eps of norm (Norm) is 1e-12"


def test_another_modules_settings_are_not_quoted(tmp_path: Path) -> None:
    finding = division(tmp_path / "run", settings("other", "Norm", "eps=0.5"))
    assert finding.settings is None
    assert "0.5" not in render_explanation(finding)


def test_what_no_module_made_has_no_settings(tmp_path: Path) -> None:
    # GIVEN a weight that is nan THEN the module's settings made nothing
    frames = [frame(0, 0, "norm", bad("weight", "weight", nan=1), tensor("output", "output"), in_batch=0)]
    trace = write_modules(write_trace(tmp_path / "run", frames), modules(settings("norm", "Norm", "eps=0.5")))
    assert found(trace).settings is None


def test_long_and_hostile_settings(tmp_path: Path) -> None:
    text = render_explanation(division(tmp_path / "1", settings("norm", "Norm", "x" * 1000)))
    (line,) = (line for line in text.splitlines() if line.startswith("  settings of norm"))
    assert len(line) < 250
    text = render_explanation(division(tmp_path / "2", settings("norm", "Norm", HOSTILE)))
    assert not {"\x1b", "\u202e"} & set(text)


def test_a_damaged_file_costs_the_quotation_alone(tmp_path: Path) -> None:
    path = well_known(tmp_path / "run", first(dropout("p=0.1")))
    (path / "rank=0" / "_modules.json").write_text("[")
    assert found(path).settings is None
    assert analyze("report", path).code == 1
