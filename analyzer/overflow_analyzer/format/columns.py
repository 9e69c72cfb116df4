"""The trace contract, format version 1: columns, names, the ring's row layout. Both sides use the names spelled here.

``docs/trace-format.md`` describes the same for a reader in another language.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import pyarrow as pa

FORMAT_VERSION: Final = 1

Role = Literal[
    "weight",
    "buffer",
    "input",
    "output",
    "grad_input",
    "grad_output",
    "weight_grad",
    "optimizer_state",
    "value",
]
Phase = Literal["train", "eval", "recompute", "backward", "manual"]
Kind = Literal["tensor", "none", "other"]

# Positions are the codes of the ring's rows, so names are only ever appended.
ROLES: Final[tuple[Role, ...]] = (
    "weight",
    "buffer",
    "input",
    "output",
    "grad_input",
    "grad_output",
    "weight_grad",
    "optimizer_state",
    "value",
)
PHASES: Final[tuple[Phase, ...]] = ("train", "eval", "recompute", "backward", "manual")
KINDS: Final[tuple[Kind, ...]] = ("tensor", "none", "other")

# --- the Parquet parts

_name = pa.dictionary(pa.int32(), pa.string())

COUNT_COLUMNS: Final = ("nan_count", "posinf_count", "neginf_count")
FULL_STATISTICS_COLUMNS: Final = ("zero_count", "subnormal_count", "abs_mean", "rms")

SCHEMA: Final = pa.schema(
    [
        pa.field("batch_number", pa.int64(), nullable=False),
        pa.field("frame_number", pa.int64(), nullable=False),
        pa.field("frame_in_batch", pa.int32(), nullable=False),
        pa.field("call_index", pa.int32(), nullable=False),
        pa.field("module_name", _name, nullable=False),
        pa.field("module_class", _name, nullable=False),
        pa.field("phase", _name, nullable=False),
        pa.field("role", _name, nullable=False),
        pa.field("context", _name, nullable=False),
        pa.field("kind", _name, nullable=False),
        pa.field("dtype", _name),
        pa.field("device", _name),
        pa.field("layout", _name),
        pa.field("shape", pa.list_(pa.int64())),
        pa.field("numel", pa.int64(), nullable=False),
        pa.field("abs_min", pa.float64()),
        pa.field("abs_max", pa.float64()),
        pa.field("finite_abs_max", pa.float64()),
        pa.field("nan_count", pa.int64()),
        pa.field("posinf_count", pa.int64()),
        pa.field("neginf_count", pa.int64()),
        pa.field("zero_count", pa.int64()),
        pa.field("subnormal_count", pa.int64()),
        pa.field("abs_mean", pa.float64()),
        pa.field("rms", pa.float64()),
        pa.field("note", _name),
        pa.field("optimizer_step", pa.int64(), nullable=False),
        pa.field("time_ns", pa.int64(), nullable=False),
    ]
)
RANK_FIELD: Final = pa.field("rank", pa.int32(), nullable=False)
SINGLE_FILE_SCHEMA: Final = SCHEMA.append(RANK_FIELD)

NAME_COLUMNS: Final = ("module_name", "module_class", "context", "dtype", "device", "layout", "note")

METADATA_VERSION_KEY: Final = b"overflow_trace.format_version"
METADATA_RUNS_KEY: Final = b"overflow_trace.runs"  # a JSON list with the RunInfo of each rank in the file
METADATA_PART_KEY: Final = b"overflow_trace.part"  # a JSON object: {"frames": int}

PART_PREFIX: Final = "part-"
RUN_FILE: Final = "_run.json"
RING_FILE: Final = "_window.ring"
NAMES_FILE: Final = "_window.names"

# --- the ring

RING_MAGIC: Final = b"OVFRING1"
RING_HEADER_SIZE: Final = 4096
RING_MAX_DIMENSIONS: Final = 8
RING_MAX_FRAME_ROWS: Final = 1000  # and at most a quarter of the ring
RING_HEADER: Final = np.dtype(
    {
        "names": ["magic", "format_version", "row_size", "capacity", "window_frames", "published", "dropped_frames"],
        "formats": ["S8", "<u4", "<u4", "<u8", "<u8", "<u8", "<u8"],
        "offsets": [0, 8, 12, 16, 24, 64, 72],
        "itemsize": RING_HEADER_SIZE,
    }
)
RING_PUBLISHED_OFFSET: Final = 64
RING_DROPPED_OFFSET: Final = 72
RING_END_OFFSET: Final = 128  # how the run ended: one entry as in the names file, JSON of EndInfo; zeros while it lives

# Bits of ``present``: which of the nullable figures a row has.
PRESENT_SHAPE: Final = 1
PRESENT_EXTREMA: Final = 2
PRESENT_FINITE: Final = 4
PRESENT_COUNTS: Final = 8
PRESENT_FULL: Final = 16
PRESENT_MEANS: Final = 32

# One row, 256 bytes: a power of two, so that no row lies across two pages and a torn page never mixes two rows.
RING_ROW: Final = np.dtype(
    [
        ("checksum", "<u4"),  # CRC-32 of the bytes RING_CHECKED
        ("kind", "u1"),
        ("role", "u1"),
        ("phase", "u1"),
        ("dimensions", "u1"),
        ("row_number", "<u8"),  # position in the run, from 0: row r lies in slot r % capacity
        ("batch_number", "<i8"),
        ("frame_number", "<i8"),
        ("optimizer_step", "<i8"),
        ("time_ns", "<i8"),
        ("numel", "<i8"),
        ("nan_count", "<i8"),
        ("posinf_count", "<i8"),
        ("neginf_count", "<i8"),
        ("zero_count", "<i8"),
        ("subnormal_count", "<i8"),
        ("abs_min", "<f8"),
        ("abs_max", "<f8"),
        ("finite_abs_max", "<f8"),
        ("abs_mean", "<f8"),
        ("rms", "<f8"),
        ("call_index", "<i4"),
        ("frame_in_batch", "<i4"),
        ("module_name", "<u4"),  # from here to note: positions in the names file, 0 is the empty name
        ("module_class", "<u4"),
        ("context", "<u4"),
        ("dtype", "<u4"),
        ("device", "<u4"),
        ("layout", "<u4"),
        ("note", "<u4"),
        ("row_in_frame", "<u2"),
        ("rows_in_frame", "<u2"),
        ("present", "<u4"),
        ("reserved", "<u4"),
        ("shape", "<i8", (RING_MAX_DIMENSIONS,)),
        ("kept", "u1"),  # 1: to be sealed into a part; outside the checksum, because it is set later
        ("padding", "V7"),
    ]
)
RING_CHECKED: Final = slice(4, 248)
RING_KEPT_OFFSET: Final = 248
# The checked part of a row for the struct module, in three pieces: what is the same wherever one tensor appears (its
# figures, its names, its shape) is packed once and put into each row as bytes.
RING_FIGURES_FORMAT: Final = "<6q5d"  # numel ... rms
RING_DESCRIPTION_FORMAT: Final = "<4I"  # dtype, device, layout, note
RING_ROW_FORMAT: Final = "<4B5q88s2i3I16s2H2I64s"  # kind ... shape
