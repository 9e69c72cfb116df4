"""A format that grows: files with other columns, and rings with other rows, give what both sides know."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overflow_analyzer.errors import DamagedTraceError, NotATraceError
from overflow_analyzer.format.columns import COLUMNS, SCHEMA
from overflow_analyzer.format.files import NAMES_FILE, RING_FILE
from overflow_analyzer.format.frames import frames_from_tables
from overflow_analyzer.format.parts import read_footer, read_row_group, stream_row_group
from overflow_analyzer.format.ring import RingContents, read_ring
from overflow_analyzer.format.ring_layout import RING_CHECKED_OFFSET, RING_HEADER_SIZE, RING_ROW, field_offset
from overflow_analyzer.trace.opening import open_trace
from tests.analyzer.commands import analyze
from tests.analyzer.samples import two_batches
from tests.rings import Ring
from tests.traces import RUN, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame

NULLABLE = [column.name for column in COLUMNS if column.nullable]
NEEDED = [column.name for column in COLUMNS if not column.nullable]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "run.parquet", two_batches())


def part_of(trace: Path) -> Path:
    return trace / "rank=0" / "part-00000000.parquet"


def rewrite(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("name", NULLABLE)
def test_a_nullable_column_that_a_part_lacks_is_null(name: str, trace: Path) -> None:
    # GIVEN a part without it
    whole = pq.read_table(part_of(trace), partitioning=None)
    (group,) = read_footer(rewrite(part_of(trace), whole.drop_columns([name]))).row_groups

    # THEN however it is read, it is null in every row, and the other columns are what they were
    nulls = whole.cast(SCHEMA).set_column(
        SCHEMA.get_field_index(name), SCHEMA.field(name), pa.nulls(16, SCHEMA.field(name).type)
    )
    assert read_row_group(group).to_pylist() == nulls.to_pylist()
    assert read_row_group(group, [name]).to_pylist() == [{name: None}] * 16
    assert (
        pa.concat_tables(stream_row_group(group, [name, "numel"])).to_pylist()
        == nulls.select([name, "numel"]).to_pylist()
    )
    assert len(list(open_trace(trace).ranks[0].frames())) == 6


@pytest.mark.parametrize("name", NEEDED)
def test_a_column_that_is_never_null_is_missed_by_name(name: str, trace: Path) -> None:
    path = part_of(trace)
    rewrite(path, pq.read_table(path, partitioning=None).drop_columns([name]))
    with pytest.raises(NotATraceError, match=f"it has no column {name}"):
        read_footer(path)


def test_a_part_without_a_count_is_not_taken_for_finite(trace: Path) -> None:
    path = part_of(trace)
    rewrite(path, pq.read_table(path, partitioning=None).drop_columns(["nan_count"]))
    assert not read_footer(path).row_groups[0].finite


def test_a_column_that_nobody_knows_is_left_out_and_said_once(tmp_path: Path) -> None:
    # GIVEN three parts with two columns more
    trace = write_trace(tmp_path / "run.parquet", two_batches(), frames_per_part=2)
    plain = analyze("report", trace).out
    for path in (trace / "rank=0").glob("part-*"):
        table = pq.read_table(path, partitioning=None)
        more = table.append_column("abs_p99", pa.array([1.5] * table.num_rows)).append_column(
            "x\x1b[1m", [["a"]] * table.num_rows
        )
        rewrite(path, more)

    # THEN all is as without them, and info says so, once for each
    assert list(open_trace(trace).ranks[0].frames()) == two_batches()
    assert analyze("report", trace).out == plain
    shown = analyze("info", trace)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.count("abs_p99: this version does not know it") == 1
    assert "\x1b" not in shown.out
    assert json.loads(analyze("info", trace, "--format", "json").out)["unknown_columns"] == ["abs_p99", "x\x1b[1m"]


def resized(ring: Ring, size: int, directory: Path) -> RingContents:
    """Write a ring whose rows are of another size, filled up with ones, and read it."""
    rows = np.full((len(ring.slots), size), 1, np.uint8)
    own = ring.slots.view(np.uint8).reshape(len(ring.slots), RING_ROW.itemsize)
    rows[:, : min(size, RING_ROW.itemsize)] = own[:, :size]
    for row in rows[: int(ring.header["published"])]:
        row[:4] = np.array([zlib.crc32(row[RING_CHECKED_OFFSET:].tobytes())], "<u4").view(np.uint8)
    ring.header["row_size"] = size
    ring.save(directory)
    (directory / RING_FILE).write_bytes(ring.header.tobytes() + rows.tobytes())
    return read_ring(directory / RING_FILE, directory / NAMES_FILE)


FULL = [
    replace(one, entries=tuple(replace(each, zero_count=3, abs_mean=1.5, rms=2.5) for each in one.entries))
    for one in two_batches()
]


def frames_of(contents: RingContents) -> list[Frame]:
    return list(frames_from_tables([contents.kept_after(-1)]))


@pytest.mark.parametrize("more", [1, 8, 24, 256])
def test_a_ring_of_longer_rows_gives_the_figures_that_are_known(more: int, tmp_path: Path) -> None:
    contents = resized(Ring(64).append(FULL), RING_ROW.itemsize + more, tmp_path)
    assert frames_of(contents) == FULL
    assert (contents.unknown_bytes, contents.lost) == (more, ())


def test_a_longer_row_is_proved_to_its_end(tmp_path: Path) -> None:
    # GIVEN longer rows of which the very last byte of the second is another
    ring = Ring(64).append(FULL)
    resized(ring, RING_ROW.itemsize + 8, tmp_path)
    data = bytearray((tmp_path / RING_FILE).read_bytes())
    data[RING_HEADER_SIZE + 2 * (RING_ROW.itemsize + 8) - 1] ^= 1
    (tmp_path / RING_FILE).write_bytes(data)

    # THEN its frame is left out, and the loss is said
    contents = read_ring(tmp_path / RING_FILE, tmp_path / NAMES_FILE)
    assert frames_of(contents) == FULL[1:]
    assert contents.lost == (f"1 rows of the window in {RING_FILE}",)


def test_a_ring_of_shorter_rows_lacks_the_figures_behind_their_end(tmp_path: Path) -> None:
    contents = resized(Ring(64).append(FULL), field_offset("abs_mean"), tmp_path)
    expected = [
        replace(one, entries=tuple(replace(each, abs_mean=None, rms=None) for each in one.entries)) for one in FULL
    ]
    assert frames_of(contents) == expected
    assert (contents.unknown_bytes, contents.lost) == (0, ())


def test_rows_that_are_too_short_for_what_every_row_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedTraceError, match=f"rows of {field_offset('numel')} bytes, too short for numel"):
        resized(Ring(64).append(FULL), field_offset("numel"), tmp_path)


def test_info_says_that_rows_of_the_window_are_longer(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "run.parquet", [], replace(RUN, end=None))
    resized(Ring(64).append(FULL), RING_ROW.itemsize + 8, trace / "rank=0")
    assert "(8 bytes of each row of the window): this version does not know it" in analyze("info", trace).out
