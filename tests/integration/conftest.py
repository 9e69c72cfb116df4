"""Fixtures of tests that run the product as its users do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.crew import Crew
from tests.integration.failing_disks import train

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    """Starts processes that record and die."""
    with Crew() as started:
        yield started


@pytest.fixture(scope="session")
def bits_without_a_recorder(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What ``failing_disks.train`` prints where nothing records and nothing fails."""
    ended = crew.run(train, tmp_path_factory.mktemp("plain") / "run.parquet", None, "none", "", "error")
    assert ended.status == 0, ended.output
    return ended.output.strip()
