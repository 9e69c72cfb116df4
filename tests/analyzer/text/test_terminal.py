"""What a stream can show."""

from __future__ import annotations

import io
import time
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.text.terminal import (
    display_width,
    highlight,
    is_terminal,
    progress,
    shorten,
    shows_colour,
    terminal_width,
)
from tests.analyzer.samples import WELL_KNOWN_REPORT


class Screen(io.StringIO):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("stream", "answer"), [(Screen(), True), (io.StringIO(), False), (None, False)])
def test_is_terminal(stream: TextIO | None, answer: bool) -> None:
    assert is_terminal(stream) is answer


def test_a_closed_stream_is_no_terminal() -> None:
    screen = Screen()
    screen.close()
    assert not is_terminal(screen)


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert terminal_width(Screen()) == 77
    assert terminal_width(io.StringIO()) is None


@pytest.mark.parametrize(
    ("variable", "value", "answer"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False), ("TERM", "xterm", True)],
)
def test_colour(variable: str, value: str, answer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    assert shows_colour(Screen()) is answer
    assert not shows_colour(io.StringIO())


def test_in_a_report_the_figures_that_are_inf_or_nan_are_red() -> None:
    # GIVEN the well-known report WHEN it is highlighted
    lines = highlight(WELL_KNOWN_REPORT).splitlines()

    # THEN the one line with an inf is painted, its context not, and nothing else
    assert [line for line in lines if "\x1b" in line] == ["\x1b[31m0.00e+00      inf\x1b[0m output"]
    assert highlight(WELL_KNOWN_REPORT, on=False) == WELL_KNOWN_REPORT


@pytest.mark.parametrize(("text", "width"), [("abc", 3), ("模块", 4), ("e\u0301", 1), ("", 0)])
def test_display_width(text: str, width: int) -> None:
    assert display_width(text) == width


@pytest.mark.parametrize(
    ("text", "width", "short"),
    [("abcdefghij", 10, "abcdefghij"), ("abcdefghij", 8, "abc...ij"), ("abcdefghij", 2, ".."), ("abc", 0, "")],
)
def test_shorten(text: str, width: int, short: str) -> None:
    assert shorten(text, width) == short


@given(st.text(), st.integers(0, 30))
def test_what_is_shortened_fits(text: str, width: int) -> None:
    assert display_width(shorten(text, width)) <= width


def test_quick_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    assert list(progress(range(3), 3, "reading", screen)) == [0, 1, 2]
    assert screen.getvalue() == ""


def test_slow_work_shows_how_far_it_is_and_clears_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a second between two items
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    screen = Screen()

    # WHEN four are worked through
    assert list(progress("abcd", 4, "reading", screen)) == ["a", "b", "c", "d"]

    # THEN the bar came after the first second, and the line is empty at the end
    assert "reading [" in screen.getvalue()
    assert " 50%" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")


def test_the_bar_is_cleared_where_the_rest_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN slow work, of which a bar is shown
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    screen = Screen()
    items = progress("abcd", 4, "searching", screen)
    assert (next(items), next(items), next(items)) == ("a", "b", "c")
    assert "searching [" in screen.getvalue()

    # WHEN what was searched for is found
    items.close()

    # THEN the line is empty
    assert screen.getvalue().endswith("\r\x1b[K")


def test_progress_is_for_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    file = io.StringIO()
    assert list(progress("abcd", 4, "reading", file)) == ["a", "b", "c", "d"]
    assert file.getvalue() == ""
