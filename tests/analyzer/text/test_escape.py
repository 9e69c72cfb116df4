"""Names out of a trace do nothing to a terminal."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.text.escape import escape


@given(st.text())
def test_nothing_that_acts_is_left(name: str) -> None:
    assert not [character for character in escape(name) if unicodedata.category(character)[0] == "C"]
    assert len(escape(name).splitlines()) <= 1


@given(st.text(st.characters(whitelist_categories=["L", "N", "P", "S"])))
def test_what_shows_stays_as_it_is(name: str) -> None:
    assert escape(name) == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("encoder.block.0", "encoder.block.0"),
        ("模块", "模块"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u2028b", "a\\u2028b"),
        ("\x7f\x9b", "\\x7f\\x9b"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_examples(name: str, shown: str) -> None:
    assert escape(name) == shown


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_escape_says_which_character_it_was(name: str) -> None:
    # Where no backslash was there before, Python reads the name back.
    if "\\" not in name:
        assert escape(name).encode("latin-1", "backslashreplace").decode("unicode_escape") == name
