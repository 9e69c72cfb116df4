"""Markdown in which a name is only a name."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.text.markdown import code_block, escape_markdown, name_span
from tests.analyzer.samples import HOSTILE


@given(st.text())
def test_no_markup_is_left(text: str) -> None:
    without_references = re.sub(r"&#\d+;", "", escape_markdown(text))
    assert not set(without_references) & set("\\`*_[]<>#|~$&@\n")


@given(st.text(st.characters(whitelist_categories=["L", "N", "P", "S"], blacklist_characters="\\")))
def test_a_page_shows_the_text_itself(text: str) -> None:
    assert html.unescape(escape_markdown(text)) == text


@pytest.mark.parametrize(
    ("name", "span"),
    [
        ("encoder.block.0", "`encoder.block.0`"),
        ("input[attention_mask]", "`input[attention_mask]`"),
        ("a|b", "a&#124;b"),
        ("a`b", "a&#96;b"),
        ("<b>", "&#60;b&#62;"),
        (" a", " a"),
        ("模块", "模块"),
    ],
)
def test_names(name: str, span: str) -> None:
    assert name_span(name) == span


@given(st.text("a`\n~ ", max_size=30))
def test_nothing_in_a_block_ends_it(text: str) -> None:
    # GIVEN text with runs of backticks WHEN it is put into a block
    first, *body, last = code_block(text).splitlines()

    # THEN the fence is longer than any of them, and only the last line closes it
    fence = first.removesuffix("text")
    assert last == fence
    assert not [line for line in body if line.strip().startswith(fence)]
    assert "\n".join(body) == text.strip("\n")


def test_a_hostile_name() -> None:
    assert "<script>" not in name_span(HOSTILE)
    assert "|" not in name_span(HOSTILE)
