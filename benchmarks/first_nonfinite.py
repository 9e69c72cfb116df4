"""The first inf/nan in a file of 1e8 rows: overflow-analyze, DuckDB and Polars on the same file, whole processes.

    python benchmarks/first_nonfinite.py                  make the file (some minutes, 0.6 GB), then measure
    python benchmarks/first_nonfinite.py --rows 10000000  a smaller one

The file has the layout of ``overflow-analyze compact``: row groups of 262,144 rows, figures of a float16
training. An inf lies in the middle of the last row group, and nan in the rest of its batch. DuckDB and Polars are
asked for that row alone; overflow-analyze reads the frames around it too, reasons and prints its report.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from tabulate import tabulate

from overflow_analyzer import EndInfo, RunInfo
from overflow_analyzer.convert.compact import ROWS_A_GROUP
from overflow_analyzer.format.columns import SINGLE_FILE_SCHEMA
from overflow_analyzer.format.parts import open_part_writer, part_metadata

FRAMES_A_BATCH, ROWS_A_FRAME = 400, 3  # weight, input and output of 400 modules
NS_A_ROW = 40_000
MEBIBYTE = 1 << 20

OURS = "from overflow_analyzer.cli import main; raise SystemExit(main([{path!r}, '--exit-zero']))"
DUCKDB = """
import duckdb
print(duckdb.execute('''
    SELECT batch_number, frame_number, module_name, module_class, role, context FROM {path!r}
    WHERE nan_count > 0 OR posinf_count > 0 OR neginf_count > 0 ORDER BY frame_number LIMIT 1
''').fetchall())
"""
POLARS = """
import polars
bad = (polars.col.nan_count > 0) | (polars.col.posinf_count > 0) | (polars.col.neginf_count > 0)
found = polars.scan_parquet({path!r}).filter(bad).select(
    "batch_number", "frame_number", "module_name", "module_class", "role", "context"
)
print(found.sort("frame_number").head(1).collect(engine="streaming").rows())
"""
NOTHING = "pass"
PEAK = """
import atexit, os
atexit.register(lambda: os.write(2, open("/proc/self/status", "rb").read()))
"""
IMPORTS = "import pyarrow.parquet, pyarrow.compute"


class Cost(NamedTuple):
    """What one process took."""

    wall: float
    """Seconds."""
    cpu: float
    """Seconds of user and system time."""
    peak: float
    """MiB of resident memory."""


def make(path: Path, rows: int, rows_a_group: int) -> None:
    """Write the file; its inf lies in the middle of the last row group."""
    end = EndInfo("closed", time_ns=1)
    options = {"every_n_batches": 1, "max_frames_to_save": 21, "roles": ["weight", "buffer", "input", "output"]}
    run = RunInfo("benchmark", 0, 1, "Model", 0, options=options, end=end)
    generator = np.random.default_rng(0)
    metadata = part_metadata([run], -(-rows // ROWS_A_FRAME))
    with open_part_writer(str(path), SINGLE_FILE_SCHEMA, metadata) as writer:
        for start in range(0, rows, rows_a_group):
            count = min(rows_a_group, rows - start)
            table = rows_of(start, count, generator, inf_at=count // 2 if start + count == rows else None)
            writer.write_table(table, row_group_size=count)


def rows_of(start: int, count: int, generator: np.random.Generator, inf_at: int | None) -> pa.Table:
    """Return rows that look like those of a float16 training."""
    row = np.arange(start, start + count)
    frame, of_frame = row // ROWS_A_FRAME, row % ROWS_A_FRAME
    batch, in_batch = frame // FRAMES_A_BATCH, frame % FRAMES_A_BATCH
    finite = generator.lognormal(3, 1, count).astype(np.float16).astype(float)
    largest, nans, posinf = finite.copy(), np.zeros(count, np.int64), np.zeros(count, np.int64)
    if inf_at is not None:
        largest[inf_at], posinf[inf_at] = np.inf, 7
        later = (np.arange(count) > inf_at) & (batch == batch[inf_at]) & (of_frame != 0)
        largest[later], nans[later] = np.nan, 512  # which the rest of the batch carries on
    names = [f"encoder.block.{at // 12}.layer.{at % 12 // 6}.part{at % 6}" for at in range(FRAMES_A_BATCH - 1)]
    zeros = np.zeros(count, np.int32)
    columns: dict[str, Any] = {
        "batch_number": batch,
        "frame_number": frame,
        "frame_in_batch": in_batch,
        "call_index": zeros,
        "module_name": coded([*names, ""], in_batch),
        "module_class": coded(["Linear", "Dropout", "LayerNorm"], in_batch % 3),
        "phase": coded(["train"], zeros),
        "role": coded(["weight", "input", "output"], of_frame),
        "context": coded(["weight", "input[0]", "output"], of_frame),
        "kind": coded(["tensor"], zeros),
        "dtype": coded(["float16"], zeros),
        "device": coded(["cpu"], zeros),
        "layout": coded(["strided"], zeros),
        "shape": pa.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * 2, np.tile([512, 1024], count)),
        "numel": np.full(count, 512 * 1024),
        "abs_min": generator.lognormal(-9, 1, count).astype(np.float16).astype(float),
        "abs_max": largest,
        "finite_abs_max": finite,
        "nan_count": nans,
        "posinf_count": posinf,
        "neginf_count": zeros,
        "optimizer_step": batch,
        "time_ns": 1_700_000_000_000_000_000 + row * NS_A_ROW,
        "rank": zeros,
    }
    arrays = [as_array(columns.get(field.name), field.type, count) for field in SINGLE_FILE_SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SINGLE_FILE_SCHEMA)


def as_array(values: Any, type_: pa.DataType, count: int) -> pa.Array:
    if values is None:
        nulls = pa.nulls(count, pa.int32())
        return (
            pa.DictionaryArray.from_arrays(nulls, pa.array([], pa.string()))
            if is_name(type_)
            else pa.nulls(count, type_)
        )
    return values if isinstance(values, pa.Array) else pa.array(values, type_)


def is_name(type_: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(type_))


def coded(names: list[str], codes: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(names, pa.string()))


def cost_of(script: str) -> Cost:
    """Run a script in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    # The process says itself what its peak was: what the kernel tells its parent begins with the parent's own.
    command = [sys.executable, "-c", PEAK + script]
    done = subprocess.run(command, env=with_bytecode(), capture_output=True, text=True, check=False)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = re.search(r"VmHWM:\s+(\d+) kB", done.stderr)
    if done.returncode or peak is None:
        raise SystemExit(f"exit code {done.returncode}: {script}\n{done.stderr}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu, int(peak[1]) / 1024)


def with_bytecode() -> dict[str, str]:
    """Return an environment in which modules are compiled once, as pip does when it installs them."""
    cache = str(Path(tempfile.gettempdir()) / "overflow-benchmark-bytecode")
    return {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}


def best(scripts: dict[str, str], runs: int) -> dict[str, Cost]:
    """Run the scripts in turn and return each one's least wall time, CPU time and peak."""
    costs: dict[str, list[Cost]] = {name: [] for name in scripts}
    for _ in range(runs):
        for name, script in scripts.items():
            costs[name].append(cost_of(script))
    return {name: Cost(*map(min, zip(*some, strict=True))) for name, some in costs.items()}


def compare(path: Path, runs: int) -> None:
    scripts = {
        "python, nothing": NOTHING,
        "python, Arrow imported": IMPORTS,
        "overflow-analyze": OURS.format(path=str(path)),
        "DuckDB": DUCKDB.format(path=str(path)),
        "Polars": POLARS.format(path=str(path)),
    }
    costs = best(scripts, runs)
    start = costs["python, nothing"].wall
    rows = [
        (name, f"{cost.wall:.2f}", f"{cost.wall - start:.2f}", f"{cost.cpu:.2f}", f"{cost.peak:.0f}")
        for name, cost in costs.items()
    ]
    headers = ("whole process", "wall s", "beyond Python's start", "CPU s", "peak MiB")
    print(tabulate(rows, headers, disable_numparse=True, colalign=("left", *["right"] * 4)))


def scale(directory: Path, runs: int) -> None:
    """Cost against the rows of a group, and against the number of groups."""
    sizes = [(100, 10_000), (100, 20_000), (100, 50_000), (100, 100_000), (200, 20_000), (500, 20_000), (1000, 20_000)]
    rows = []
    for groups, rows_a_group in sizes:
        path = directory / f"{groups}-{rows_a_group}.parquet"
        make(path, groups * rows_a_group, rows_a_group)
        cost = best({"ours": OURS.format(path=str(path))}, runs)["ours"]
        rows.append(
            (groups, rows_a_group, groups * rows_a_group, f"{cost.wall:.2f}", f"{cost.cpu:.2f}", f"{cost.peak:.0f}")
        )
        path.unlink()
    print(tabulate(rows, ("row groups", "rows a group", "rows", "wall s", "CPU s", "peak MiB"), disable_numparse=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--runs", type=int, default=7, help="of which the best counts")
    parser.add_argument("--file", type=Path, help="where to keep the file, or one made before")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = options.file or Path(temporary) / "compacted.parquet"
        if not path.exists():
            started = time.perf_counter()
            make(path, options.rows, ROWS_A_GROUP)
            print(f"made {path.name} in {time.perf_counter() - started:.0f} s")
        print(f"{options.rows:.0e} rows, {path.stat().st_size / MEBIBYTE:.0f} MiB\n")
        compare(path, options.runs)
        print()
        scale(Path(temporary), max(1, options.runs // 2))


if __name__ == "__main__":
    main()
