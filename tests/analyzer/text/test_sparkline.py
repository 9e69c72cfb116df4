"""Figures as a line of bars."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.text.sparkline import shows_bars, sparkline

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0], "▁▂▃▄▅▆▇█"),  # each an eighth of seven doublings higher
        ([1.0, INF, NAN, 0.0, None, 128.0], "▁IN0 █"),
        ([1.0, 1.01], "▄▅"),  # on either side of the middle: a percent is no cliff
        ([5e-324, 1.7e308], "▁█"),
    ],
)
def test_bars(values: list[float | None], bars: str) -> None:
    assert sparkline(values, 60) == bars


def test_ascii() -> None:
    assert sparkline([1.0, 128.0, INF], 60, ascii_only=True) == "_#I"


def test_neighbours_become_the_largest_of_them() -> None:
    # GIVEN six figures for three characters: (1, 128), (None, None), (1, inf)
    assert sparkline([1.0, 128.0, None, None, 1.0, INF], 3) == "▅ I"  # 128 alone is finite: the middle
    assert sparkline([INF, NAN], 1) == "N"


@given(st.lists(st.none() | st.floats(min_value=0), max_size=300), st.integers(1, 80))
def test_any_figures_fit(values: list[float | None], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    assert ("N" in line) == any(value is not None and math.isnan(value) for value in values)


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", True), ("ascii", False), ("latin-1", False)])
def test_whether_a_stream_shows_bars(encoding: str, shown: bool) -> None:
    assert shows_bars(io.TextIOWrapper(io.BytesIO(), encoding=encoding)) is shown


def test_a_closed_or_nameless_stream_gets_ascii() -> None:
    assert not shows_bars(None)
