"""The page that is written when a recorder closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from overflow_analyzer import open_trace
from overflow_recorder import NonFiniteError, RecorderWarning, TraceRecorder
from overflow_recorder.integrations.page import WritePage, with_page

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_that_ended_well_has_its_page(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with TraceRecorder(model, tmp_path / "run", callbacks=[WritePage(tmp_path / "run.html")]):
        model(torch.ones(1, 2))
    assert "<h1>No inf/nan in what was recorded</h1>" in (tmp_path / "run.html").read_text()


def test_a_run_that_an_inf_ended_has_its_page_and_an_older_one_is_replaced(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    (tmp_path / "run.html").write_text("an older page")
    recorder = TraceRecorder(model, tmp_path / "run", callbacks=[WritePage(tmp_path / "run.html")])
    with pytest.raises(NonFiniteError), recorder:
        model(torch.tensor([[torch.inf, 1.0]]))
    assert "<h1>inf/nan in input[0] of the root module (Linear), batch 0</h1>" in (tmp_path / "run.html").read_text()


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    # GIVEN a directory where the page should be
    model = nn.Linear(2, 2)
    recorder = TraceRecorder(model, tmp_path / "run", callbacks=[WritePage(tmp_path)])
    with pytest.warns(RecorderWarning, match=r"was not written \(.*is a directory"), recorder:
        model(torch.ones(1, 2))
    # THEN the trace is whole
    assert open_trace(tmp_path / "run").ranks[0].ended == "closed"


def test_another_rank_writes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    model = nn.Linear(2, 2)
    with TraceRecorder(model, tmp_path / "run", callbacks=[WritePage(tmp_path / "run.html")]):
        model(torch.ones(1, 2))
    assert not (tmp_path / "run.html").exists()


def test_without_a_page_the_options_stay_as_they_are() -> None:
    options = {"overwrite": True}
    assert with_page(None, options) is options
    assert [type(one) for one in with_page("run.html", options)["callbacks"]] == [WritePage]
