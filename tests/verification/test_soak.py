"""The short form of ``soak.py``: a dozen kills, and proof that what it looks for it would find."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.crew import Crew
from tests.integration.runs import FRAMES
from tests.verification.soak import CONFIGURATIONS, PRELOADED, soak, table_of
from tests.verification.soak_checking import Acknowledged, Control, check_rank
from tests.verification.soak_training import train

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCHES = 20
OPTIONS: dict[str, Any] = {"every_n_batches": 1, "max_frames_to_save": 21}


@pytest.fixture(scope="module")
def ready_crew() -> Iterator[Crew]:
    with Crew(*PRELOADED) as started:
        yield started


@pytest.mark.slow
def test_a_kill_of_every_configuration(ready_crew: Crew, tmp_path: Path) -> None:
    # WHEN each configuration's run is killed once
    outcomes = soak(len(CONFIGURATIONS), 2, ready_crew, tmp_path / "kept")

    # THEN every trace opens, with every frame that was acknowledged and is to be kept, once, and true
    assert [outcome.complaints for outcome in outcomes] == [[] for _ in CONFIGURATIONS]
    assert sum(outcome.kills for outcome in outcomes) == len(CONFIGURATIONS)
    assert sum(outcome.figures.found for outcome in outcomes) > 1000
    assert "every batch, max_bytes" in table_of(outcomes)


@pytest.fixture
def closed(ready_crew: Crew, tmp_path: Path) -> Path:
    """A run of several parts."""
    plan = {"options": OPTIONS, "batches": BATCHES, "moment": "recording", "at": -1, "ending": ""}
    ended = ready_crew.run(train, tmp_path / "run.parquet", tmp_path / "seen", plan)
    assert ended.status == 0, ended.output
    return tmp_path / "run.parquet"


def test_what_is_missing_twice_or_wrong_is_counted(closed: Path) -> None:
    # GIVEN a run and all that it acknowledged
    control, said = Control(closed, FRAMES), Acknowledged(FRAMES * BATCHES - 3, BATCHES - 1)
    figures = check_rank(closed, 0, control, said, OPTIONS)
    acknowledged = FRAMES * BATCHES - 3
    assert (figures.acknowledged, figures.wanted, figures.found, figures.faults) == (*[acknowledged] * 3, 0)

    # WHEN figures differ from those of the control run, THEN that is counted
    control.rows[5] = control.rows[6]
    assert check_rank(closed, 0, control, said, OPTIONS).different == 1

    # WHEN a part is there twice, or not at all, THEN so are its frames
    control = Control(closed, FRAMES)
    first = closed / "rank=0" / "part-00000000.parquet"
    first.with_name("part-99999999.parquet").write_bytes(first.read_bytes())
    doubled = check_rank(closed, 0, control, said, OPTIONS).doubled
    assert doubled > FRAMES
    first.with_name("part-99999999.parquet").unlink()
    first.unlink()
    figures = check_rank(closed, 0, control, said, OPTIONS)
    assert (figures.lost, figures.found) == (doubled, acknowledged - doubled)
