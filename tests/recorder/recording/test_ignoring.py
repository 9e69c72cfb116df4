from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from overflow_recorder import NonFiniteError
from overflow_recorder.recording.ignoring import ignoring
from tests.recorder.recordings import Forward, entry, record

if TYPE_CHECKING:
    from pathlib import Path

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("pattern", "module", "context", "expected"),
    [
        ("a:input[0]", "a", "input[0]", True),
        ("a:input[0]", "a", "input0", False),  # brackets are no set of characters
        ("a:input[0]", "a.b", "input[0]", False),
        ("*.attention:input[mask]", "layer.3.attention", "input[mask]", True),
        ("*.attention:input[mask]", "attention", "input[mask]", False),
        ("*:input[*]", "x", "input[attention_mask]", True),
        ("layer.?:output", "layer.3", "output", True),
        ("layer.?:output", "layer.33", "output", False),
        (":output", "", "output", True),  # the root
        ("*:*", "", "weight", True),
        ("a.b:output", "a-b", "output", False),  # a dot is a dot
        ("a+b:output", "a+b", "output", True),
        ("a:output", "xa", "output", False),
        ("a:output", "a", "outputs", False),
    ],
)
def test_patterns(pattern: str, module: str, context: str, expected: bool) -> None:
    patterns = ignoring([pattern])
    assert patterns(module, context) is expected
    assert patterns(module, context) is expected  # and when asked again


@given(st.lists(st.text("ab.*?:", max_size=6), max_size=3), st.text("ab.", max_size=4), st.text("ab", max_size=4))
def test_patterns_without_brackets_are_a_shells(patterns: list[str], module: str, context: str) -> None:
    expected = any(fnmatch.fnmatchcase(f"{module}:{context}", pattern) for pattern in patterns)
    assert ignoring(patterns)(module, context) is expected


@given(st.text(max_size=8))
def test_any_text_without_wildcards_matches_itself_alone(text: str) -> None:
    literal = re.sub(r"[*?]", "", text)
    assert ignoring([f"m:{literal}"])("m", literal)
    assert not ignoring([f"m:{literal}"])("m", f"{literal}x")


def masked() -> nn.Module:
    """A model whose mask has intended infinities and whose second layer may have others."""
    attention = Forward(lambda x, mask: (x + mask).softmax(-1))
    return Forward(lambda attention, x, mask: attention(x, mask=mask), attention)


def test_intended_infinities_are_recorded_and_are_no_alarm(tmp_path: Path) -> None:
    # GIVEN
    model, mask = masked(), torch.tensor([0.0, -INF])

    # WHEN
    frames = record(
        model,
        tmp_path / "run",
        lambda: model(torch.zeros(2), mask),
        on_nonfinite="raise",
        ignore=["0:input[mask]", ":input[1]"],
    )

    # THEN
    row = entry(frames[0], "input[mask]")
    assert (row.neginf_count, row.ignored, row.nonfinite) == (1, True, False)
    assert (entry(frames[0], "output").note, frames[0].nonfinite_entries) == (None, ())


def test_other_contexts_of_the_same_module_still_alarm(tmp_path: Path) -> None:
    model = masked()
    with pytest.raises(NonFiniteError, match=r"input\[mask\] of 0"):
        record(
            model,
            tmp_path / "run",
            lambda: model(torch.zeros(2), torch.tensor([0.0, NAN])),
            on_nonfinite="raise",
            ignore=[":input[1]", "0:output"],
        )


def test_the_same_tensor_in_an_ignored_and_in_another_place(tmp_path: Path) -> None:
    # GIVEN one tensor, which is read once
    model = Forward(lambda first, second, x: second(first(x)), nn.Identity(), nn.Identity())

    # WHEN
    frames = record(model, tmp_path / "run", lambda: model(torch.tensor([INF])), ignore=["0:*"])

    # THEN
    assert [(one.context, one.ignored) for frame in frames[:2] for one in frame.entries] == [
        ("input[0]", True),
        ("output", True),
        ("input[0]", False),
        ("output", False),
    ]
