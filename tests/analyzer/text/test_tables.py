"""Tables whose names are data and whose lines fit a terminal."""

from __future__ import annotations

from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.text.tables import Column, render_table
from overflow_analyzer.text.terminal import display_width
from tests.analyzer.samples import HOSTILE

COLUMNS = (
    Column("size", itemgetter(0), "right"),
    Column("module", itemgetter(1), name=True),
    Column("tensor", itemgetter(2), name=True),
)
LONG = "encoder.block.2.layer.1.DenseReluDense.wo"


def test_numbers_stand_right_and_names_left() -> None:
    assert render_table(COLUMNS, [["1", "a", "output"], ["20", "bbb", "weight"]]).splitlines() == [
        "size  module  tensor",
        "   1  a       output",
        "  20  bbb     weight",
    ]


def test_a_name_that_looks_like_a_number_is_a_name() -> None:
    assert render_table(COLUMNS, [["1e5", "1e5", "007"]]).splitlines()[1].split() == ["1e5", "1e5", "007"]


def test_without_a_terminal_nothing_is_shortened() -> None:
    assert LONG * 9 in render_table(COLUMNS, [["1", LONG * 9, "output"]])


def test_on_a_terminal_the_longest_names_are_shortened_in_the_middle() -> None:
    # GIVEN a name that is too long for the terminal
    text = render_table(COLUMNS, [["1", LONG, "output"]], width=40)

    # THEN its start and its end are there, every line fits, and the short name is whole
    assert all(len(line) <= 40 for line in text.splitlines())
    assert "encoder" in text
    assert "Dense.wo" in text
    assert "output" in text


@given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40)), max_size=4), st.integers(40, 100))
def test_any_names_fit_a_terminal_of_sensible_width(names: list[tuple[str, str]], width: int) -> None:
    text = render_table(COLUMNS, [["1", *pair] for pair in names], width=width)
    assert all(display_width(line) <= width for line in text.splitlines())


def test_an_empty_table_has_its_headers() -> None:
    assert render_table(COLUMNS, []).split() == ["size", "module", "tensor"]


def test_markdown_keeps_names_whole_and_in_their_cells() -> None:
    # GIVEN a name with a pipe and markup
    lines = render_table(COLUMNS, [["1", HOSTILE, LONG]], markdown=True, width=20).splitlines()

    # THEN the row has three cells, and the name does nothing
    assert [len(line.split("|")) for line in lines] == [5, 5, 5]
    assert f"`{LONG}`" in lines[2]
    assert "<" not in lines[2]


def test_control_characters_are_escaped() -> None:
    assert "\\x1b[31m" in render_table(COLUMNS, [["1", HOSTILE, HOSTILE]])
