"""docs/trace-format.md says of columns, offsets and names what the contract says."""

from __future__ import annotations

import re
from pathlib import Path

from overflow_analyzer.format.columns import (
    KINDS,
    METADATA_PART_KEY,
    METADATA_RUNS_KEY,
    METADATA_VERSION_KEY,
    PHASES,
    RING_HEADER,
    RING_MAGIC,
    RING_ROW,
    ROLES,
    SCHEMA,
)

TEXT = (Path(__file__).parents[3] / "docs" / "trace-format.md").read_text(encoding="utf-8")


def test_every_column_is_described_with_its_nullability_in_order() -> None:
    described = re.findall(r"^\| `(\w+)` \| [^|]+ \| (yes|no) \|", TEXT, re.MULTILINE)
    assert described == [(field.name, "yes" if field.nullable else "no") for field in SCHEMA]


def test_offsets_and_sizes_of_header_and_row() -> None:
    described = [
        (int(at), int(size), name)
        for at, size, name in re.findall(r"^\| (\d+) \| (\d+) \| `(\w+)`", TEXT, re.MULTILINE)
    ]
    expected = [
        (kind.fields[name][1], kind.fields[name][0].itemsize, name)
        for kind in (RING_HEADER, RING_ROW)
        for name in kind.names or ()
        if kind.fields is not None
    ]
    assert described == expected


def test_codes_keys_and_magic_are_named() -> None:
    for words in (KINDS, ROLES, PHASES):
        assert ", ".join(words) in TEXT
    for key in (METADATA_VERSION_KEY, METADATA_RUNS_KEY, METADATA_PART_KEY, RING_MAGIC):
        assert key.decode() in TEXT
