"""The trace contract, format version 1: the table of columns, from which all that holds columns follows.

``docs/trace-format.md`` describes the same for a reader in another language.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import pyarrow as pa

FORMAT_VERSION: Final = 1

# Positions are the codes of the ring's rows, so names are only ever appended.
Role = Literal[
    "weight", "buffer", "input", "output", "grad_input", "grad_output", "weight_grad", "optimizer_state", "value",
]  # fmt: skip
Phase = Literal["train", "eval", "recompute", "backward", "manual"]
Kind = Literal["tensor", "none", "other"]

ROLES: Final[tuple[Role, ...]] = get_args(Role)
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

MAX_DIMENSIONS: Final = 8
"""Of a shape in the ring."""
NAME_SLOT: Final = "<u4"
"""A position in the ring's names; 0, the empty name, is null."""

_NAME: Final = pa.dictionary(pa.int32(), pa.string())
_FULL_OR_NULL: Final = '`statistics="full"` only, else null'
_FULL_OF_FINITE: Final = 'finite elements, `statistics="full"` only'
_COUNT, _SMALL_COUNT, _FIGURE, _SHAPE = pa.int64(), pa.int32(), pa.float64(), pa.list_(pa.int64())


@dataclass(frozen=True)
class Column:
    """A column of the trace."""

    name: str
    type: pa.DataType
    of: Literal["frame", "entry", "tensor", "figure"]
    """What a value belongs to: a frame, one of its entries, the entry's tensor, or that tensor's numbers."""
    meaning: str
    """One line of documentation, in Markdown."""
    nullable: bool = False
    codes: tuple[str, ...] = ()
    """The only names that occur, if they are few: the ring holds their positions."""
    repeated: bool = False
    """Whether an integer has few distinct values in a row group; else it differs little from row to row."""
    compared: int | None = None
    """Whether ``diff`` compares it: a place in the order in which it names what differs most. Of integers, every
    difference counts; floats have a tolerance."""
    plotted: bool = False
    """Whether ``export`` sends it to TensorBoard."""

    @property
    def slot(self) -> str:
        """How numpy calls its type in a row of the ring."""
        if pa.types.is_dictionary(self.type):
            return "u1" if self.codes else NAME_SLOT
        if pa.types.is_list(self.type):
            return f"({MAX_DIMENSIONS},)<i8"
        return {_COUNT: "<i8", _SMALL_COUNT: "<i4", _FIGURE: "<f8"}[self.type]

    @property
    def encoding(self) -> Literal["RLE_DICTIONARY", "BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"]:
        """How Parquet pages hold it.

        Figures of 16- and 32-bit tensors have zeros in the low bytes of a double: split by byte they all but vanish.
        """
        if pa.types.is_floating(self.type):
            return "BYTE_STREAM_SPLIT"
        return "DELTA_BINARY_PACKED" if pa.types.is_integer(self.type) and not self.repeated else "RLE_DICTIONARY"


# New columns come last, and nullable: then traces with and without them are read alike.
COLUMNS: Final = (
    Column("batch_number", _COUNT, "frame", "0-based"),
    Column(
        "frame_number", _COUNT, "frame",
        "position in this rank's run, from 0, never reused: gaps show what was not kept",
    ),
    Column("frame_in_batch", _SMALL_COUNT, "frame", "position among the batch's frames, 0 for the first"),
    Column("call_index", _SMALL_COUNT, "frame", "n-th call of this module in this batch", repeated=True),
    Column("module_name", _NAME, "frame", "as `named_modules()` gives it; empty for the root"),
    Column("module_class", _NAME, "frame", "the class's name"),
    Column("phase", _NAME, "frame", f"one of {', '.join(PHASES)}", codes=PHASES),
    Column("role", _NAME, "entry", f"one of {', '.join(ROLES)}", codes=ROLES),
    Column("context", _NAME, "entry", "what the report prints: `weight`, `input[0]`, `output[logits]`"),
    Column("kind", _NAME, "entry", f"one of {', '.join(KINDS)}", codes=KINDS),
    Column("dtype", _NAME, "tensor", "torch's name without `torch.`; null if not a tensor", nullable=True),
    Column("device", _NAME, "tensor", "torch's name; null if not a tensor", nullable=True),
    Column("layout", _NAME, "tensor", "torch's name without `torch.`; null if not a tensor", nullable=True),
    Column("shape", _SHAPE, "tensor", "null if not a tensor", nullable=True),
    Column("numel", _COUNT, "tensor", "elements that the figures speak of; 0 if not a tensor", repeated=True),
    Column(
        "abs_min", _FIGURE, "figure",
        "of all elements, as torch's `abs().min()`: nan and inf included; null if empty or unknown",
        nullable=True, compared=3, plotted=True,
    ),
    Column("abs_max", _FIGURE, "figure", "the same with `max`", nullable=True, compared=1, plotted=True),
    Column(
        "finite_abs_max", _FIGURE, "figure", "of the finite elements; null if there is none", nullable=True, compared=2,
    ),
    Column(
        "nan_count", _COUNT, "figure", "null where values cannot be had (meta, fake); 0 if not a tensor",
        nullable=True, repeated=True, compared=6,
    ),
    Column("posinf_count", _COUNT, "figure", "as nan_count", nullable=True, repeated=True, compared=7),
    Column("neginf_count", _COUNT, "figure", "as nan_count", nullable=True, repeated=True, compared=8),
    Column("zero_count", _COUNT, "figure", _FULL_OR_NULL, nullable=True, repeated=True, compared=9, plotted=True),
    Column("subnormal_count", _COUNT, "figure", _FULL_OR_NULL, nullable=True, repeated=True, plotted=True),
    Column("abs_mean", _FIGURE, "figure", _FULL_OF_FINITE, nullable=True, compared=4, plotted=True),
    Column("rms", _FIGURE, "figure", _FULL_OF_FINITE, nullable=True, compared=5, plotted=True),
    Column(
        "note", _NAME, "tensor",
        "what else is known of the entry, parts separated by `; `; `ignored` marks an intended infinity",
        nullable=True,
    ),
    Column("optimizer_step", _COUNT, "frame", "optimizer steps taken before this frame"),
    Column("time_ns", _COUNT, "frame", "wall clock, nanoseconds since 1970"),
    Column(
        "neginf_row_count", _COUNT, "figure",
        "rows of the last dimension that are -inf throughout; null where no element is, and on a device",
        nullable=True, repeated=True,
    ),
)  # fmt: skip
BY_NAME: Final = {column.name: column for column in COLUMNS}
COUNT_COLUMNS: Final = ("nan_count", "posinf_count", "neginf_count")
"""What proves a tensor finite."""

SCHEMA: Final = pa.schema([pa.field(column.name, column.type, nullable=column.nullable) for column in COLUMNS])
RANK_FIELD: Final = pa.field("rank", pa.int32(), nullable=False)
"""In a file of several ranks; else the directory says the rank."""
SINGLE_FILE_SCHEMA: Final = SCHEMA.append(RANK_FIELD)


def columns_of(*kinds: str) -> tuple[str, ...]:
    """Return the names of the columns that belong to such things, in order."""
    return tuple(column.name for column in COLUMNS if column.of in kinds)
