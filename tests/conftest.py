"""What all tests share.

Golden outputs: ``pytest --overwrite`` rewrites them, and the change is read in the diff. Hypothesis: no deadlines,
since a busy machine is no failure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable

settings.register_profile("overflow-trace", deadline=None)
settings.load_profile("overflow-trace")

GOLDEN = Path(__file__).parent / "analyzer" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--overwrite", action="store_true", help="rewrite the golden outputs instead of comparing")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text is what the golden file of that name holds."""
    overwrite = bool(request.config.getoption("--overwrite"))

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if overwrite:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
