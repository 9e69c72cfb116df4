"""The names beside the ring, torn and forged."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.format.names import encode_name, read_names

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.lists(TEXT))
def test_names_are_read_back(names: list[str]) -> None:
    assert read_names(b"".join(map(encode_name, names))) == (["", *names], 0)


@given(st.lists(TEXT, min_size=1), st.data())
def test_a_torn_end_costs_the_last_names_alone(names: list[str], data: st.DataObject) -> None:
    # GIVEN a file that was cut at any byte
    entries = list(map(encode_name, names))
    whole = b"".join(entries)
    cut = data.draw(st.integers(0, len(whole)))

    # WHEN it is read
    found, torn = read_names(whole[:cut])

    # THEN every entry that is whole is there, and the rest is counted
    kept = sum(len(entry) for entry in entries[: len(found) - 1])
    assert found == ["", *names[: len(found) - 1]]
    assert kept + torn == cut
    assert len(found) - 1 == len(names) or kept + len(entries[len(found) - 1]) > cut


@given(st.lists(TEXT, min_size=1), st.integers(0, 2**32))
def test_a_changed_byte_never_changes_a_name(names: list[str], seed: int) -> None:
    # GIVEN one byte that is another
    whole = bytearray(b"".join(map(encode_name, names)))
    at = random.Random(seed).randrange(len(whole))
    whole[at] ^= 1 << seed % 8

    # THEN what is read is a beginning of what was written
    found, _ = read_names(bytes(whole))
    assert found == ["", *names][: len(found)]
    assert len(found) <= len(names)


def test_zeroed_bytes_are_no_names() -> None:
    assert read_names(bytes(1000)) == ([""], 1000)


def test_a_name_that_is_no_text_is_kept_as_an_escape() -> None:
    assert read_names(encode_name("a\ud800"))[0] == ["", "a\\ud800"]


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    names, torn = read_names(data)
    assert names[0] == ""
    assert 0 <= torn <= len(data)
