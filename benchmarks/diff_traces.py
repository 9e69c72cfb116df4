"""Two traces of 1e7 rows compared: overflow-analyze diff, and a join of the same question in DuckDB and Polars.

    python -m benchmarks.diff_traces                    make the traces in a temporary directory, then measure
    python -m benchmarks.diff_traces --rows 1000000     smaller ones

Each trace has the layout that the recorder writes: row groups of some 32,000 rows, a few a part, figures of a float16
training. B is A again; A with every figure rounded otherwise; A with every figure another one; A with one module more
in every batch. DuckDB and Polars join the two on the key of a row, compare one figure (ours are five, three counts, the
shape, the kind and the dtype) and return the first row beyond tolerance and their number.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from tabulate import tabulate

from benchmarks.first_nonfinite import FRAMES_A_BATCH, ROWS_A_FRAME, best, rows_of
from overflow_analyzer import EndInfo, RunInfo
from overflow_analyzer.format.files import RUN_FILE
from overflow_recorder.storage.sealing import encode_part, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS_A_BATCH = FRAMES_A_BATCH * ROWS_A_FRAME
BATCHES_A_GROUP = 27  # 32,400 rows
GROUPS_A_PART = 4
RUN = RunInfo(
    run_id="benchmark",
    rank=0,
    world_size=1,
    model_class="Model",
    started_ns=0,
    options={"every_n_batches": 1, "max_frames_to_save": 21, "roles": ["weight", "buffer", "input", "output"]},
    end=EndInfo("closed", time_ns=1),
)
KEY = ("batch_number", "module_name", "call_index", "role", "context")

OURS = "from overflow_analyzer.cli import main; raise SystemExit(0 * main(['diff', {a!r}, {b!r}, '--limit', '20']))"
DUCKDB = """
import duckdb
print(duckdb.execute('''
    WITH pairs AS (
        SELECT a.frame_number, a.module_name, a.context, abs(a.abs_max - b.abs_max) AS delta,
               greatest(a.abs_max, b.abs_max) AS scale
        FROM {a!r} a JOIN {b!r} b USING ({key})
    )
    SELECT min_by((frame_number, module_name, context), frame_number), count(*)
    FROM pairs WHERE delta > 0.002 * scale
''').fetchall())
"""
POLARS = """
import polars
from polars import col
columns = ["frame_number", "abs_max", *{key!r}]
a, b = (polars.scan_parquet(path).select(columns) for path in ({a!r}, {b!r}))
pairs = a.join(b, on=list({key!r}), suffix="_b")
beyond = (col.abs_max - col.abs_max_b).abs() > 0.002 * polars.max_horizontal("abs_max", "abs_max_b")
found = pairs.filter(beyond).select(
    polars.struct("frame_number", "module_name", "context").sort_by("frame_number").first(), polars.len()
)
print(found.collect(engine="streaming").rows())
"""


def make(path: Path, rows: int, change: Callable[[pa.Table, np.random.Generator], pa.Table]) -> None:
    """Write a trace of at least so many rows."""
    directory = path / "rank=0"
    directory.mkdir(parents=True)
    (directory / RUN_FILE).write_text(RUN.to_json())
    figures, changes = np.random.default_rng(0), np.random.default_rng(1)
    groups: list[pa.Table] = []
    part = 0
    for start in range(0, rows, BATCHES_A_GROUP * ROWS_A_BATCH):
        table = rows_of(start, BATCHES_A_GROUP * ROWS_A_BATCH, figures, inf_at=None).drop_columns(["rank"])
        groups.append(change(table, changes))
        if len(groups) == GROUPS_A_PART or start + BATCHES_A_GROUP * ROWS_A_BATCH >= rows:
            write_whole(directory / f"part-{part:08}.parquet", encode_part(groups, RUN))
            groups, part = [], part + 1


def unchanged(table: pa.Table, generator: np.random.Generator) -> pa.Table:  # noqa: ARG001  like its siblings
    return table


def rounded(table: pa.Table, generator: np.random.Generator) -> pa.Table:
    return _scaled(table, 1 + 2.0**-11 * generator.standard_normal(table.num_rows).clip(-2, 2))


def other(table: pa.Table, generator: np.random.Generator) -> pa.Table:
    return _scaled(table, generator.lognormal(0, 0.1, table.num_rows))


def _scaled(table: pa.Table, factors: np.ndarray) -> pa.Table:
    for name in ("abs_min", "abs_max", "finite_abs_max"):
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(name), pa.array(table[name].to_numpy() * factors))
    return table


def with_a_module_more(table: pa.Table, generator: np.random.Generator) -> pa.Table:  # noqa: ARG001  the same
    """Put another module before each batch's fourth; the frames after it move on by one."""
    columns: dict[str, Any] = {field.name: table[field.name].combine_chunks() for field in table.schema}
    rows = np.arange(table.num_rows)
    added = rows[rows % ROWS_A_BATCH < ROWS_A_FRAME] + 3 * ROWS_A_FRAME
    order = np.sort(np.concatenate([rows, added]), kind="stable")
    is_added = np.zeros(len(order), bool)
    is_added[np.searchsorted(order, added)] = True
    taken = pa.table({name: column.take(pa.array(order)) for name, column in columns.items()})
    names = [*columns["module_name"].dictionary.to_pylist(), "added"]
    codes = np.where(is_added, len(names) - 1, columns["module_name"].indices.to_numpy()[order])
    # Sorting by (is it added, place) within the group of six doubled rows puts whole frames one after the other.
    place = np.where(
        is_added, (order // ROWS_A_FRAME) * 2 * ROWS_A_FRAME, (order // ROWS_A_FRAME) * 2 * ROWS_A_FRAME + 3
    )
    order = np.lexsort((np.arange(len(order)), place))
    taken = taken.set_column(
        taken.schema.get_field_index("module_name"),
        table.schema.field("module_name"),
        pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(names)),
    ).take(pa.array(order))
    batch = taken["batch_number"].to_numpy()
    in_batch = (np.arange(len(order)) // ROWS_A_FRAME) % (FRAMES_A_BATCH + 1)
    frame = batch * (FRAMES_A_BATCH + 1) + in_batch
    for name, values in (("frame_in_batch", in_batch), ("frame_number", frame)):
        at = taken.schema.get_field_index(name)
        taken = taken.set_column(at, table.schema.field(name), pa.array(values, table.schema.field(name).type))
    return taken.cast(table.schema)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3, help="of which the best counts")
    parser.add_argument("--directory", type=Path, help="where to keep the traces, or ones made before")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        measure(options.directory or Path(temporary), options.rows, options.runs)


def measure(directory: Path, rows: int, runs: int) -> None:
    changes = {
        "the same": unchanged,
        "every figure rounded otherwise": rounded,
        "every figure another": other,
        "one module more": with_a_module_more,
    }
    paths = {name: directory / f"{name.replace(' ', '-')}.parquet" for name in changes}
    for name, change in changes.items():
        if not paths[name].exists():
            started = time.perf_counter()
            make(paths[name], rows, change)
            print(f"made {paths[name].name} in {time.perf_counter() - started:.0f} s")
    a, key = str(paths["the same"]), ", ".join(KEY)
    scripts = {"python, Arrow imported": "import pyarrow.parquet, pyarrow.compute"}
    scripts |= {f"overflow-analyze diff, {name}": OURS.format(a=a, b=str(path)) for name, path in paths.items()}
    joined = str(paths["every figure another"])
    scripts["DuckDB, every figure another"] = DUCKDB.format(a=f"{a}/*/*.parquet", b=f"{joined}/*/*.parquet", key=key)
    scripts["Polars, every figure another"] = POLARS.format(a=f"{a}/*/*.parquet", b=f"{joined}/*/*.parquet", key=KEY)
    costs = best(scripts, runs)
    table = [(name, *(f"{value:.2f}" for value in cost)) for name, cost in costs.items()]
    print(tabulate(table, ("whole process", "wall s", "CPU s", "peak MiB"), disable_numparse=True))


if __name__ == "__main__":
    main()
