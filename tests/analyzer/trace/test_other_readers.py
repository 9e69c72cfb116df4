"""The parts are plain Parquet: other tools read from them the very values that were written."""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.convert.compact import compact_trace
from overflow_analyzer.format.columns import SCHEMA
from overflow_analyzer.format.frames import Entry
from overflow_analyzer.trace.opening import open_trace
from tests.analyzer.samples import INF, NAN, two_batches
from tests.traces import RUN, frame, table_of, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from overflow_analyzer.format.frames import Frame

Rows = list[dict[str, Any]]
NAMES = SCHEMA.names


def with_dataset(path: Path) -> Rows:
    rows: Rows = ds.dataset(path, format="parquet", partitioning="hive").to_table(columns=NAMES).to_pylist()
    return rows


def with_polars(path: Path) -> Rows:
    pattern = path if path.is_file() else path / "**" / "*.parquet"
    rows: Rows = pl.read_parquet(pattern, hive_partitioning=path.is_dir()).select(NAMES).to_dicts()
    return rows


def with_duckdb(path: Path) -> Rows:
    pattern = path if path.is_file() else f"{path}/*/*.parquet"
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT {', '.join(NAMES)} FROM read_parquet('{pattern}', hive_partitioning=true)")
        return [dict(zip(NAMES, row, strict=True)) for row in found.fetchall()]


def with_pandas(path: Path) -> Rows:
    # pandas' own types have no null beside nan; its Arrow types do.
    table = pd.read_parquet(path, dtype_backend="pyarrow")[NAMES]
    return [dict(zip(NAMES, row, strict=True)) for row in zip(*(_values(table[name]) for name in NAMES), strict=True)]


def _values(column: pd.Series[Any]) -> list[Any]:
    values: list[Any] = column.array.__arrow_array__().to_pylist()
    return values


# The lines that the pages show, as "page: line".
ROOT = Path(__file__).parents[3]
SHOWN = [
    f"{page}: {line}"
    for page in ("README.md", "docs/trace-format.md")
    for line in re.findall(r"`((?:pyarrow|pandas|polars|duckdb)\.[^`]+\))`", (ROOT / page).read_text(encoding="utf-8"))
]

READERS: dict[str, Callable[[Path], Rows]] = {
    "pyarrow.dataset": with_dataset,
    "polars": with_polars,
    "duckdb": with_duckdb,
    "pandas": with_pandas,
}


def exact(row: dict[str, Any]) -> dict[str, Any]:
    """A row in a form in which only the same values are equal: nan is nan, -0.0 is not 0.0, null is not nan."""
    return {name: _exact(value) for name, value in row.items()}


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    return list(value) if isinstance(value, (list, tuple)) else value


def expected(frames: list[Frame]) -> Rows:
    return [exact(row) for row in table_of(frames).to_pylist()]


NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
COUNT = st.none() | st.integers(0, 2**63 - 1)
FIGURE = st.none() | st.floats()
ENTRIES = st.builds(
    Entry,
    role=st.sampled_from(["weight", "input", "output"]),
    context=NAME,
    kind=st.sampled_from(["tensor", "none", "other"]),
    dtype=st.none() | NAME,
    device=st.none() | NAME,
    layout=st.none() | NAME,
    shape=st.none() | st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple),
    numel=st.integers(0, 2**63 - 1),
    **dict.fromkeys(("abs_min", "abs_max", "finite_abs_max", "abs_mean", "rms"), FIGURE),
    **dict.fromkeys(("nan_count", "posinf_count", "neginf_count", "zero_count", "subnormal_count"), COUNT),
    note=st.none() | NAME,
)


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=12)
@given(entries=st.lists(ENTRIES, min_size=1, max_size=12), names=st.lists(NAME, min_size=2, max_size=2))
def test_any_rows_are_the_same_in_every_reader(
    tmp_path_factory: pytest.TempPathFactory, reader: str, entries: list[Entry], names: list[str]
) -> None:
    # GIVEN frames with any names and figures, sealed in two parts
    path = tmp_path_factory.mktemp("run") / "run.parquet"
    half = (len(entries) + 1) // 2
    frames = [frame(0, 0, names[0], *entries[:half]), frame(1, 0, names[1], *entries[half:])]
    frames = [one for one in frames if one.entries]
    write_trace(path, frames, frames_per_part=1)

    # WHEN another tool reads the directory as it is, THEN it has the same rows
    assert [exact(row) for row in READERS[reader](path)] == expected(frames)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("as_file", [False, True])
def test_inf_nan_null_and_the_smallest_double_stay_apart(reader: str, as_file: bool, tmp_path: Path) -> None:
    # GIVEN one row for each
    special = [INF, -INF, NAN, None, 5e-324, 0.0, -0.0, 1e300]
    blank = Entry("output", "output", "tensor")
    frames = [frame(0, 0, "a", *(replace(blank, abs_max=value) for value in special))]
    path = write_trace(tmp_path / "run.parquet", frames)
    if as_file:
        compact_trace(open_trace(path), tmp_path / "one.parquet")
        path = tmp_path / "one.parquet"

    # THEN none has become another
    assert [_exact(row["abs_max"]) for row in READERS[reader](path)] == [_exact(value) for value in special]


@pytest.mark.parametrize("reader", READERS)
def test_ranks_are_seen_in_the_directories(reader: str, tmp_path: Path) -> None:
    # GIVEN two ranks, and beside their parts the files that are no Parquet
    path = write_trace(tmp_path / "run.parquet", two_batches())
    write_trace(path, two_batches()[:3], replace(RUN, rank=1))
    assert len(READERS[reader](path)) == 24


def test_the_rank_is_a_column_to_those_who_know_directories(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.parquet", two_batches())
    write_trace(path, two_batches()[:3], replace(RUN, rank=1))
    table = ds.dataset(path, format="parquet", partitioning="hive").to_table()
    assert table.column("rank").value_counts().to_pylist() == [{"values": 0, "counts": 16}, {"values": 1, "counts": 8}]
    with duckdb.connect() as connection:
        rows = f"read_parquet('{path}/*/*.parquet', hive_partitioning=true)"
        counted = connection.execute(f"SELECT rank, count(*) FROM {rows} GROUP BY rank ORDER BY rank")
        assert counted.fetchall() == [(0, 16), (1, 8)]


def test_each_page_shows_a_line_for_each_tool() -> None:
    shown = [re.split(r": |\.(?=\w+\()|\.dataset", line)[:2] for line in SHOWN]
    tools = ["pyarrow", "pandas", "polars", "duckdb"]
    assert shown == [[page, tool] for page in ("README.md", "docs/trace-format.md") for tool in tools]


@pytest.mark.parametrize("shown", SHOWN)
def test_the_lines_that_the_pages_show_read_every_rank(
    shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN two ranks under the name that the pages use
    path = write_trace(tmp_path / "run.parquet", two_batches())
    write_trace(path, two_batches()[:3], replace(RUN, rank=1))
    monkeypatch.chdir(tmp_path)
    # WHEN the line runs
    read = eval(shown.partition(": ")[2], {"pyarrow": pa, "pandas": pd, "polars": pl, "duckdb": duckdb})
    # THEN it has the rows of both, each with its rank
    ranks = read.to_arrow_table()["rank"] if isinstance(read, duckdb.DuckDBPyRelation) else read["rank"]
    assert Counter(map(int, ranks.to_pylist() if isinstance(ranks, pa.ChunkedArray) else ranks)) == {0: 16, 1: 8}


@pytest.mark.parametrize("write", ["polars", "pandas", "duckdb"])
def test_a_file_that_another_tool_wrote_is_still_a_trace(write: str, tmp_path: Path) -> None:
    # GIVEN a trace that went through another tool, which keeps the columns and nothing else
    path = write_trace(tmp_path / "run.parquet", two_batches()) / "rank=0" / "part-00000000.parquet"
    target = tmp_path / "other.parquet"
    if write == "polars":
        pl.read_parquet(path).write_parquet(target)
    elif write == "pandas":
        pd.read_parquet(path, dtype_backend="pyarrow").to_parquet(target)
    else:
        with duckdb.connect() as connection:
            connection.execute(f"COPY (SELECT * FROM read_parquet('{path}')) TO '{target}' (FORMAT parquet)")

    # THEN it opens, and holds the same frames
    (rank,) = open_trace(target).ranks
    assert list(rank.frames()) == two_batches()
    assert rank.frame_count == 6
