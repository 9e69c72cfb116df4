"""Small pieces of sentences."""

from __future__ import annotations

import pytest

from overflow_analyzer.text.wording import counted


@pytest.mark.parametrize(("number", "text"), [(0, "0 frames"), (1, "1 frame"), (2, "2 frames")])
def test_counted(number: int, text: str) -> None:
    assert counted(number, "frame") == text


def test_an_odd_plural() -> None:
    assert counted(2, "batch", "batches") == "2 batches"
