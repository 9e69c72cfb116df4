from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.diff import Rename

NAMES = st.text(alphabet="ab.0[", max_size=8)


@pytest.mark.parametrize(
    ("rule", "name", "other"),
    [
        ("encoder.*=model.encoder.*", "encoder.block.0.fc", "model.encoder.block.0.fc"),
        ("encoder.*=model.encoder.*", "encoder", None),
        ("encoder.*=model.encoder.*", "my.encoder.block", None),
        ("*.q=*.query", "block.3.q", "block.3.query"),
        ("layer?=block?", "layer7", "block7"),
        ("layer?=block?", "layer17", None),
        ("*.layer.*=*.blocks.*", "encoder.layer.2", "encoder.blocks.2"),
        ("a[0]=b[0]", "a[0]", "b[0]"),
        ("a[0]=b[0]", "a0", None),
        ("=root", "", "root"),
        ("a.b=c", "aXb", None),
    ],
)
def test_a_rule_gives_the_name_in_b(rule: str, name: str, other: str | None) -> None:
    assert Rename.parse(rule).apply(name) == other


@pytest.mark.parametrize("rule", ["encoder", "=", "a=b=c", "a.*=b", "a.?=b.*", "a=b.*"])
def test_what_is_no_rule_is_refused_by_name(rule: str) -> None:
    with pytest.raises(ValueError, match=r"rule|wildcards") as refused:
        Rename.parse(rule)
    assert rule in str(refused.value)


@given(name=NAMES)
def test_a_reversed_rule_leads_back(name: str) -> None:
    rule = Rename.parse("x.*=y.z.*")
    there = rule.apply(f"x.{name}")
    assert there == f"y.z.{name}"
    assert rule.reversed().apply(there) == f"x.{name}"
