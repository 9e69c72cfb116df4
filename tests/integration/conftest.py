"""Fixtures of tests that run the product as its users do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crew import Crew

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Starts processes that record and die."""
    with Crew() as started:
        yield started
