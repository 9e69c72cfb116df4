"""A few of the pairs that ``python -m tests.verification.honest_pairs`` tries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.verification.honest_pairs import FORMATS, PERTURBATIONS, compare_honest, compare_perturbed, verdict

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", range(len(FORMATS)))
def test_an_honest_run_in_another_format_is_not_blamed_on_a_module(seed: int, tmp_path: Path) -> None:
    precision, diff = compare_honest(seed, tmp_path)
    assert precision == FORMATS[seed]
    assert diff.compared.tolerated > 0
    assert verdict(diff) != "module"


@pytest.mark.parametrize("seed", range(len(PERTURBATIONS)))
def test_a_perturbed_run_is_found(seed: int, tmp_path: Path) -> None:
    perturbation, diff = compare_perturbed(seed, tmp_path)
    assert perturbation == PERTURBATIONS[seed]
    assert diff.first_divergence is not None
