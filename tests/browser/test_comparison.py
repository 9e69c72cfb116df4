"""The page of two runs in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.analyzer.commands import analyze

if TYPE_CHECKING:
    from tests.browser.chromium import Browser

FIXTURES = Path(__file__).parents[2] / "fixtures"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def skipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run and one in which the update before batch 2 was skipped."""
    page = tmp_path_factory.mktemp("pages") / "skipped.html"
    runs = [FIXTURES / "diff-update-skipped" / name for name in ("a.parquet", "b.parquet")]
    assert analyze("html", *runs, "-o", page).code == 0
    return page


def test_it_opens_without_a_complaint_or_a_request(browser: Browser, skipped: Path) -> None:
    browser.open(skipped)
    assert browser.complaints() == []
    assert browser.requests() == [skipped.resolve().as_uri()]
    assert "In batch 2, module 0 (Linear) is the first to differ" in browser.run(
        "return document.querySelector('h1').textContent"
    )


def test_the_map_begins_where_the_runs_part(browser: Browser, skipped: Path) -> None:
    browser.open(skipped)
    # WHEN cells of the first module are read, before the update and after it
    read = "overflow.showCell(overflow.state.rows.findIndex((row) => row.name === '0'), arguments[0] + 0.5);"
    shown = [browser.run(f"{read} return document.getElementById('figures').innerText", batch) for batch in (1, 2)]
    # THEN the one says that nothing differs and the other how much
    assert "equal bit for bit" in shown[0]
    assert "epsilons" in shown[1]


def test_both_runs_have_their_curves(browser: Browser, skipped: Path) -> None:
    browser.open(skipped)
    lines = browser.run("return overflow.views.curves.sources.lines.data.label")
    assert {line.partition(":")[0] for line in lines} == {"A", "B"}
