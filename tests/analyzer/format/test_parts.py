"""Sealed parts: whole or absent, and a footer that proves what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.errors import DamagedTraceError, NotATraceError, UnknownVersionError
from overflow_analyzer.format import parts
from overflow_analyzer.format.columns import SCHEMA
from overflow_analyzer.format.frames import frames_from_tables
from overflow_analyzer.format.parts import (
    METADATA_PART_KEY,
    METADATA_RUNS_KEY,
    METADATA_VERSION_KEY,
    part_metadata,
    read_footer,
    read_row_group,
    stream_row_group,
)
from tests.analyzer.samples import INF, two_batches
from tests.traces import RUN, frame, table_of, tensor, write_part

if TYPE_CHECKING:
    from pathlib import Path


def seal(path: Path, *frames: Any) -> Path:
    write_part(path, [table_of(frames or two_batches())], [RUN], len(frames) or 6)
    return path


def rewritten(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    return path


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return seal(tmp_path / "part-00000000.parquet")


def test_what_is_sealed_is_read_back(part: Path) -> None:
    footer = read_footer(part)
    assert (footer.rows, footer.frames, footer.runs) == (16, 6, (RUN,))
    assert footer.bytes == part.stat().st_size
    assert list(frames_from_tables([read_row_group(footer.row_groups[0])])) == two_batches()


def test_the_footer_bounds_frames_and_batches(part: Path) -> None:
    (group,) = read_footer(part).row_groups
    assert (group.first_frame, group.last_frame, group.first_batch, group.last_batch) == (0, 5, 0, 1)
    assert (group.first_rank, group.last_rank) == (None, None)


@pytest.mark.parametrize(
    ("changes", "finite"),
    [
        ({}, True),
        ({"posinf_count": 1}, False),
        ({"neginf_count": 1}, False),
        ({"nan_count": 3}, False),
        ({"nan_count": None, "posinf_count": None, "neginf_count": None}, False),
    ],
)
def test_the_statistics_prove_a_group_finite_or_do_not(changes: dict[str, Any], finite: bool, tmp_path: Path) -> None:
    # GIVEN one tensor in a group of its own
    part = seal(tmp_path / "a.parquet", frame(0, 0, "a", tensor("output", "output", **changes)))

    # THEN the group is taken for finite only where counts say so
    assert read_footer(part).row_groups[0].finite is finite


def test_figures_that_are_huge_but_finite_are_finite(tmp_path: Path) -> None:
    part = seal(tmp_path / "a.parquet", frame(0, 0, "a", tensor("output", "output", 0, 1e300)))
    assert read_footer(part).row_groups[0].finite


@pytest.mark.parametrize("columns", [None, ["frame_number"], ["module_name", "abs_max", "shape"]])
def test_streaming_gives_the_same_rows(columns: list[str] | None, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "_ROWS_STREAMED", 3)
    (group,) = read_footer(part).row_groups
    pieces = list(stream_row_group(group, columns))
    assert len(pieces) > 1
    assert pa.concat_tables(pieces).to_pylist() == read_row_group(group, columns).to_pylist()


@given(cut=st.integers(0, 400))
def test_a_part_that_was_cut_short_is_damaged(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    part = seal(tmp_path_factory.mktemp("parts") / "a.parquet")
    data = part.read_bytes()
    part.write_bytes(data[: len(data) * cut // 401])
    with pytest.raises(DamagedTraceError, match=str(part)):
        read_footer(part)


def with_metadata(part: Path, key: bytes, value: bytes) -> Path:
    table = pq.read_table(part)
    return rewritten(part, table.replace_schema_metadata({**part_metadata([RUN], 6), key: value}))


@pytest.mark.parametrize("version", [b"2", b"0", b"-1", b"one", b"9" * 5000, b"\xff"])
def test_another_version_is_refused_by_name(version: bytes, part: Path) -> None:
    with pytest.raises(UnknownVersionError, match="format version"):
        read_footer(with_metadata(part, METADATA_VERSION_KEY, version))


@pytest.mark.parametrize("runs", [b"", b"{", b"null", b"[1]", b'[{"format_version": 1}]', b"[" * 100_000, b"\xff"])
def test_runs_that_describe_nothing_are_damage(runs: bytes, part: Path) -> None:
    with pytest.raises(DamagedTraceError, match=str(part)):
        read_footer(with_metadata(part, METADATA_RUNS_KEY, runs))


@pytest.mark.parametrize("claim", [b"", b"{}", b'{"frames": -1}', b'{"frames": true}', b'{"frames": "6"}', b"[]", b"{"])
def test_a_count_of_frames_that_is_none_is_not_believed(claim: bytes, part: Path) -> None:
    assert read_footer(with_metadata(part, METADATA_PART_KEY, claim)).frames is None


def test_a_parquet_file_of_another_kind_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(NotATraceError, match="it has no column batch_number"):
        read_footer(rewritten(tmp_path / "a.parquet", pa.table({"x": [1]})))


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1 this is no trace PAR1", b"batch_number,frame_number\n0,0\n"])
def test_what_is_no_parquet_file_is_damage(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(DamagedTraceError, match=r"a\.parquet"):
        read_footer(tmp_path / "a.parquet")


def changed(name: str, column: Any) -> pa.Table:
    table = table_of(two_batches())
    return table.set_column(SCHEMA.get_field_index(name), name, column)


def read_all(path: Path) -> pa.Table:
    return pa.concat_tables([read_row_group(group) for group in read_footer(path).row_groups])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("module_name", pa.nulls(16, pa.string())),
        ("frame_number", pa.nulls(16, pa.int64())),
        ("frame_number", pa.array(["x"] * 16)),
        ("frame_number", pa.array([0.5] * 16)),
        ("batch_number", pa.array([2**63] * 16, pa.uint64())),
        ("call_index", pa.array([2**40] * 16)),
        ("module_name", pa.array([b"\xff"] * 16, pa.binary())),
        ("shape", pa.array(["4"] * 16)),
        ("abs_max", pa.array(["inf?"] * 16)),
    ],
)
def test_columns_that_cannot_be_what_they_are_called_are_damage(name: str, values: pa.Array, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "a.parquet", changed(name, values))
    with pytest.raises(DamagedTraceError, match=str(path)):
        read_all(path)


def test_names_that_are_no_text_are_damage(tmp_path: Path) -> None:
    # GIVEN bytes under the type of text, which Arrow writes and reads without a look
    forged = pa.Array.from_buffers(pa.string(), 16, pa.array([b"\xff\xfe"] * 16, pa.binary()).buffers())
    path = rewritten(tmp_path / "a.parquet", changed("module_name", forged))

    # THEN reading says so, and not the first who prints a name
    with pytest.raises(DamagedTraceError, match=r"row group 0 cannot be read"):
        read_all(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_names_of_other_tools_are_read(kind: pa.DataType, tmp_path: Path) -> None:
    path = rewritten(tmp_path / "a.parquet", changed("module_name", pa.array(["a"] * 16).cast(kind)))
    assert read_all(path)["module_name"].to_pylist() == ["a"] * 16


def test_counts_of_other_tools_prove_nothing_where_they_are_no_integers(tmp_path: Path) -> None:
    # GIVEN a tool that made floats of counts, not-a-number where there was none
    counts = pa.array([0.0] * 15 + [float("nan")])
    path = rewritten(tmp_path / "a.parquet", changed("nan_count", counts))

    # THEN the statistics, which leave out nan, are not believed
    assert not read_footer(path).row_groups[0].finite


def test_a_group_of_absurd_size_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN rows that are all the same, so that any number of them takes a few bytes
    monkeypatch.setattr(parts, "_MOST_ROWS", 15)
    with pytest.raises(DamagedTraceError, match="row group 0 has 16 rows"):
        read_footer(seal(tmp_path / "a.parquet"))


def test_a_row_group_each_table_cut_as_given(tmp_path: Path) -> None:
    # GIVEN two tables, one of them with an inf
    bad = frame(6, 2, "a", tensor("output", "output", 0, INF, posinf_count=1))
    write_part(tmp_path / "a.parquet", [table_of(two_batches()), table_of([bad])], [RUN], 7)

    # THEN each is a group, and only one of them has to be looked into
    assert [(group.rows, group.finite) for group in read_footer(tmp_path / "a.parquet").row_groups] == [
        (16, True),
        (1, False),
    ]


def test_a_file_may_hold_several_runs(tmp_path: Path) -> None:
    runs = [RUN, replace(RUN, rank=1)]
    write_part(tmp_path / "a.parquet", [table_of(two_batches())], runs, 6)
    assert read_footer(tmp_path / "a.parquet").runs == tuple(runs)
