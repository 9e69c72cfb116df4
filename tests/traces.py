"""Traces made of plain frames, for tests of the analyzer: no recorder and no torch takes part."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from overflow_analyzer.format.columns import SCHEMA
from overflow_analyzer.format.files import RUN_FILE
from overflow_analyzer.format.frames import Entry, Frame
from overflow_analyzer.format.modules import MODULES_FILE, Modules, ModuleSettings, ModulesState
from overflow_analyzer.format.parts import open_part_writer, part_metadata
from overflow_analyzer.format.run_info import EndInfo, RunInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

RUN = RunInfo(
    run_id="0123456789abcdef",
    rank=0,
    world_size=1,
    model_class="Model",
    started_ns=1_700_000_000_000_000_000,
    torch_version="2.13.0",
    options={
        "max_frames_to_save": 21,
        "trace_batch_nums": None,
        "every_n_batches": 1,
        "abort_after_batch_num": None,
        "on_nonfinite": "raise",
        "roles": ["weight", "buffer", "input", "output"],
        "statistics": "extrema",
        "ignore": [],
        "max_bytes": None,
    },
    end=EndInfo(how="closed", time_ns=1_700_000_001_000_000_000),
)


def tensor(role: Any, context: str, abs_min: float = 0.5, abs_max: float = 2.0, **changes: Any) -> Entry:
    """A float16 tensor of shape [4] with finite figures, unless changed."""
    entry = Entry(role, context, "tensor", "float16", "cpu", "strided", (4,), 4, abs_min, abs_max, abs_max)
    return replace(entry, **changes)


def frame(number: int, batch: int, name: str, *entries: Entry, in_batch: int = 1, **changes: Any) -> Frame:
    """A Linear's frame in training, unless changed; ``in_batch=0`` makes it the first of its batch."""
    made = Frame(
        batch, number, in_batch, 0, name, "Linear", "train", batch, 1_700_000_000_000_000_000 + number, entries
    )
    return replace(made, **changes)


def table_of(frames: Iterable[Frame]) -> pa.Table:
    """The frames as rows in the contract's columns."""
    rows = [
        {**{key: value for key, value in vars(one).items() if key != "entries"}, **asdict(entry)}
        for one in frames
        for entry in one.entries
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def write_part(path: Path, tables: Sequence[pa.Table], runs: Iterable[RunInfo], frames: int) -> None:
    """Write a sealed part with a row group for each table."""
    with open_part_writer(path, tables[0].schema, part_metadata(runs, frames)) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=max(1, table.num_rows))


def settings(
    name: str, class_name: str, extra_repr: str | None = "", package: str = "torch.nn.modules", **changes: Any
) -> ModuleSettings:
    """A module without weights, unless changed."""
    made = ModuleSettings(
        name, f"{package}.{class_name}", extra_repr, {}, training=True, dtypes=(), devices=(), parameters=0
    )
    return replace(made, **changes)


def modules(*settings: ModuleSettings) -> Modules:
    """Modules that stayed as they were."""
    return Modules((ModulesState(0, None, settings, ()),))


def write_modules(path: Path, modules: Modules, rank: int = 0) -> Path:
    """Write into a rank's directory what its modules are."""
    (path / f"rank={rank}" / MODULES_FILE).write_text(modules.to_json())
    return path


def write_trace(path: Path, frames: Sequence[Frame], run: RunInfo = RUN, frames_per_part: int = 1000) -> Path:
    """Write one rank's directory with sealed parts; call again with another ``run.rank`` for more ranks."""
    directory = path / f"rank={run.rank}"
    directory.mkdir(parents=True)
    (directory / RUN_FILE).write_text(run.to_json())
    for part, start in enumerate(range(0, len(frames), frames_per_part)):
        some = frames[start : start + frames_per_part]
        write_part(directory / f"part-{part:08}.parquet", [table_of(some)], [run], len(some))
    return path
