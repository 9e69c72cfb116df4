"""``overflow-analyze html``: what it writes of runs that live, and where it shows it."""

from __future__ import annotations

import fcntl
import webbrowser
from dataclasses import replace
from typing import TYPE_CHECKING

from overflow_analyzer.format.files import RING_FILE
from tests.analyzer.commands import analyze
from tests.analyzer.samples import write_clean, write_ranks
from tests.rings import write_killed
from tests.traces import RUN, frame, tensor

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_living_run_is_shown_as_far_as_it_has_come(tmp_path: Path) -> None:
    # GIVEN a run that somebody is recording, told by the lock on its ring
    frames = [frame(at, at, "a", tensor("output", "output"), in_batch=0) for at in range(3)]
    path = write_killed(tmp_path / "run", frames, replace(RUN, end=None))
    with (path / "rank=0" / RING_FILE).open("rb") as ring:
        fcntl.flock(ring, fcntl.LOCK_EX)
        ran = analyze("html", path, "-o", tmp_path / "run.html")
    assert (ran.code, ran.err) == (0, "")
    page = (tmp_path / "run.html").read_text()
    assert "The run was still going when this was read." in page
    assert "<dd>3 kept, 0 to 2, no gap</dd>" in page


def test_open_shows_the_page_in_the_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(webbrowser, "open", shown.append)
    ran = analyze("html", write_clean(tmp_path / "run"), "-o", tmp_path / "run.html", "--open")
    assert ran.code == 0
    assert shown == [(tmp_path / "run.html").resolve().as_uri()]


def test_ranks_are_told_without_scripts(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    assert analyze("html", write_ranks(tmp_path / "run"), "-o", page).code == 0
    assert "<li>rank 1 was first: batch " in page.read_text()


def test_two_runs_that_agree_are_compared(tmp_path: Path) -> None:
    one, other = write_clean(tmp_path / "a"), write_clean(tmp_path / "b")
    assert analyze("html", one, other, "-o", tmp_path / "diff.html").code == 0
    assert "<h1>No difference: " in (tmp_path / "diff.html").read_text()
