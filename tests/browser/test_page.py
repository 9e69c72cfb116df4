"""The page of a run in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer import find_first_nonfinite, open_trace, render_report
from tests.analyzer.commands import analyze

if TYPE_CHECKING:
    from tests.browser.chromium import Browser

FIXTURES = Path(__file__).parents[2] / "fixtures"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run in which activations grow until one overflows."""
    page = tmp_path_factory.mktemp("pages") / "growing.html"
    assert analyze("html", FIXTURES / "growing-activations" / "trace.parquet", "-o", page).code == 0
    return page


def test_it_opens_without_a_complaint_or_a_request(browser: Browser, growing: Path) -> None:
    browser.open(growing)
    assert browser.complaints() == []
    assert browser.requests() == [growing.resolve().as_uri()]


def test_without_scripts_the_verdict_and_the_report_are_there(browser: Browser, growing: Path) -> None:
    finding = find_first_nonfinite(open_trace(FIXTURES / "growing-activations" / "trace.parquet"))
    assert finding is not None
    # WHEN the browser runs no scripts
    browser.open(growing, scripts=False)
    root = browser.send("DOM.getDocument", depth=-1)["root"]["nodeId"]

    def html(selector: str) -> str:
        node = browser.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        return str(browser.send("DOM.getOuterHTML", nodeId=node)["outerHTML"])

    assert "inf/nan in output of 2 (Block), batch 20" in html("h1")
    assert "Cause: overflow (possible)" in html("#verdict")
    report = html("#frames pre")
    assert render_report(finding.window, 20).splitlines()[-1] in report
