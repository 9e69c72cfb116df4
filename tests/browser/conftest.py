"""One browser for all tests of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import WHY_NOT, Browser

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium; tests that ask for it are skipped where there is none."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    started = Browser()
    yield started
    started.close()
