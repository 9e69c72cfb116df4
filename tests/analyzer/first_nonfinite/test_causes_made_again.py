"""The scripts in the fixtures still make the failures that their traces show."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer import open_trace
from overflow_analyzer.first_nonfinite.finding import find_first_nonfinite
from tests.analyzer.first_nonfinite.test_causes_recorded import EXPECTED, ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")

# Its script starts two processes.
ALONE = sorted(set(EXPECTED) - {"flipped-bit"})

# The fixtures were recorded without running the origin module again. Where a detection ends the run and that is done,
# the operation proves the cause. A norm that underflows to 0 is a division by zero when the operation is seen.
PROVEN = {
    "dropout-overflow": "overflow",
    "float32-to-float16": "precision-cast",
    "log-of-zero": "out-of-domain",
    "masks-added": "masks-added",
    "tiny-norm": "division-by-zero",
    "windowed": "overflow",
    "zero-norm": "division-by-zero",
}


@pytest.mark.parametrize("name", ALONE)
def test_the_script_makes_the_failure_again(name: str, tmp_path: Path) -> None:
    # GIVEN the training of a fixture
    train = runpy.run_path(str(ROOT / "fixtures" / name / "make.py"))["train"]
    # WHEN it is recorded anew
    train(tmp_path / "trace.parquet")
    # THEN the finding is the same, or proven
    finding = find_first_nonfinite(open_trace(tmp_path / "trace.parquet"))
    assert finding is not None
    frame, entry, cause = finding.frame, finding.entry, finding.cause
    found = (cause.name, cause.confidence, frame.module_name, entry.role, entry.context, frame.batch_number)
    expected = EXPECTED[name]
    assert found == ((PROVEN[name], "certain", *expected[2:]) if name in PROVEN else expected)
