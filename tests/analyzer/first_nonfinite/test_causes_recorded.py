"""Each cause on a run that really has it: the fixtures, without torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer import open_trace
from overflow_analyzer.first_nonfinite.causes import CAUSES
from overflow_analyzer.first_nonfinite.finding import Finding, find_first_nonfinite
from overflow_analyzer.render.explanation import render_explanation

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]

# What each script does to its training:
# cause, confidence, module, role, context and batch of the first inf/nan.
EXPECTED = {
    "adam-square": ("optimizer-overflow", "likely", "", "optimizer_state", "weight.exp_avg_sq", 0),
    "adam-eps": ("optimizer-underflow", "likely", "0", "weight", "weight", 1),
    "bad-batch": ("bad-batch", "certain", "0", "input", "input[0]", 3),
    "diverging-weight": ("parameter-went-bad", "certain", "0", "weight", "weight", 1),
    "dropout-overflow": ("overflow", "possible", "dropout", "output", "output", 0),
    "flipped-bit": ("one-rank-only", "likely", "2", "weight", "weight", 2),
    "float16-count": ("divisor-overflow", "likely", "divide", "input", "input[1]", 0),
    "float32-to-float16": ("precision-cast", "possible", "2", "output", "output", 2),
    "gradient-applied": ("gradient-applied", "likely", "0", "weight", "weight", 3),
    "growing-activations": ("overflow", "possible", "2", "output", "output", 20),
    "ignored-labels": ("loss-outside-modules", "likely", "loss", "value", "loss", 2),
    "inf-minus-inf": ("inf-minus-inf", "certain", "weights", "output", "output", 0),
    "log-of-zero": ("out-of-domain", "possible", "2", "output", "output", 1),
    "masked-nan": ("absorbed", "likely", "0", "output", "output", 0),
    "masked-row": ("masked-row-softmax", "likely", "softmax", "output", "output", 2),
    "masks-added": ("masks-added", "possible", "masked", "output", "output", 0),
    "nan-weight": ("parameter-went-bad", "certain", "0", "weight", "weight", 1),
    "root-at-zero": ("nonfinite-gradient", "likely", "embed", "grad_output", "grad_output", 1),
    "running-variance": ("bad-buffer", "certain", "1", "buffer", "running_var", 2),
    "soft-labels": ("zero-times-inf", "possible", "loss", "input", "input[0]", 0),
    "tiny-norm": ("underflow", "possible", "1", "output", "output", 0),
    "unexplained": ("unknown", "unknown", "2", "output", "output", 2),
    "uninitialised-weight": ("bad-parameter-at-start", "certain", "2", "weight", "weight", 0),
    "unwritten-memory": ("unwritten-memory", "certain", "1", "output", "output", 2),
    "windowed": ("overflow", "likely", "2", "output", "output", 2),
    "written-infinity": ("literal", "certain", "1", "output", "output", 2),
    "zero-norm": ("division-by-zero", "possible", "1", "output", "output", 1),
}


def finding_of(name: str) -> Finding:
    finding = find_first_nonfinite(open_trace(ROOT / "fixtures" / name / "trace.parquet"))
    assert finding is not None
    return finding


@pytest.mark.parametrize("name", EXPECTED)
def test_the_cause_of_a_recorded_failure(name: str) -> None:
    finding = finding_of(name)
    frame, entry, cause = finding.frame, finding.entry, finding.cause
    found = (cause.name, cause.confidence, frame.module_name, entry.role, entry.context, frame.batch_number)
    assert found == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_explanation_of_a_recorded_failure(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"explanations/{name}.txt", render_explanation(finding_of(name)))


def test_every_cause_has_a_run_that_really_has_it() -> None:
    assert {cause for cause, *_ in EXPECTED.values()} == set(CAUSES)


def test_every_cause_is_documented_and_no_other() -> None:
    documented = re.findall(r"^## ([a-z0-9-]+)$", (ROOT / "docs" / "causes.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(CAUSES)


def test_the_documented_table_names_the_runs_of_each_cause() -> None:
    table = re.findall(r"^\| ([a-z0-9-]+) \| (`.*`) \|", (ROOT / "docs" / "causes.md").read_text(), re.MULTILINE)
    assert sorted(cause for cause, _ in table) == sorted(CAUSES)
    for cause, runs in table:
        assert {EXPECTED[run][0] for run in re.findall(r"`([^`]*)`", runs)} == {cause}


def test_a_healthy_run_has_no_finding() -> None:
    assert find_first_nonfinite(open_trace(ROOT / "fixtures" / "clean" / "trace.parquet")) is None


# --- figures, computed by hand from what the scripts do


def test_dropout_overflow_figures() -> None:
    # GIVEN wo's output of 62688 in float16, which is 62688 / 65504 = 95.701% of the limit; what rounds to inf is
    # 65504 + 16 = 65520, and 1 - 62688 / 65520 = 4.32%
    finding = finding_of("dropout-overflow")
    assert finding.cause.evidence == (
        "input[0]: 6.27e+04 is 95.7% of float16's 65504",
        "in training Dropout multiplies what it keeps by 1/(1-p): from there a p of 4.4% is enough",
    )
    assert [step.context for step in finding.growth][-1] == "output"
    assert finding.growth[-1].module_name == "DenseReluDense.wo"
    assert finding.growth[-1].abs_max == 62688.0


def test_zero_norm_shows_an_input_that_is_zero() -> None:
    assert finding_of("zero-norm").cause.evidence[0] == "input[0] is 0 everywhere (abs max 0.00e+00)"


def test_float16_count_shows_the_zero_fraction() -> None:
    assert "output is 0 in all 4 elements (zero fraction 1)" in finding_of("float16-count").cause.evidence


def test_the_masked_nan_is_found_with_its_count() -> None:
    entry = finding_of("masked-nan").entry
    assert (entry.nan_count, entry.numel) == (1, 1000)


def test_ignored_labels_leave_the_modules_clean() -> None:
    finding = finding_of("ignored-labels")
    assert finding.origin is None
    assert "the 4 module frames recorded in batch 2 before it are finite" in finding.cause.evidence


def test_the_growing_run_tells_its_rate() -> None:
    # THEN the last step of the growth is the sum that did not fit, and the rate is positive
    finding = finding_of("growing-activations")
    shares = [step.share for step in finding.growth]
    assert shares == sorted(shares)
    assert finding.growth[-1].module_name == "2.down"
    assert any("bits a batch" in sentence for sentence in finding.cause.evidence)


def test_the_flipped_bit_is_on_one_rank() -> None:
    finding = finding_of("flipped-bit")
    assert (finding.rank, finding.world_size, finding.other_ranks) == (1, 2, ())
