"""docs/trace-format.md says of columns, offsets and names what the contract says."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from overflow_analyzer.format.columns import COLUMNS, KINDS, PHASES, ROLES
from overflow_analyzer.format.parts import METADATA_PART_KEY, METADATA_RUNS_KEY, METADATA_VERSION_KEY
from overflow_analyzer.format.ring_layout import PRESENT, RING_HEADER, RING_MAGIC, RING_ROW

TEXT = (Path(__file__).parents[3] / "docs" / "trace-format.md").read_text(encoding="utf-8")


TYPES = {pa.dictionary(pa.int32(), pa.string()): "dictionary<int32, string>", pa.list_(pa.int64()): "list<int64>"}


def test_every_column_is_described_as_in_the_table() -> None:
    described = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (yes|no) \| (.+) \|$", TEXT, re.MULTILINE)
    assert described == [
        (one.name, TYPES.get(one.type, str(one.type)), "yes" if one.nullable else "no", one.meaning) for one in COLUMNS
    ]


def test_every_bit_of_present_is_named() -> None:
    assert re.findall(r"(\d+) (\w+)[,.]", TEXT[TEXT.index("- `present`") :].replace("\n ", ""))[: len(PRESENT)] == [
        (str(bit), name) for name, bit in PRESENT.items()
    ]


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
