"""Damaged and forged traces by seed, and what every command must do with each: answer or refuse, nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from overflow_analyzer.cli import main
from overflow_analyzer.convert.compact import compact_trace
from overflow_analyzer.format.frames import Entry
from overflow_analyzer.format.modules import Modules, ModulesState
from overflow_analyzer.format.names import encode_name
from overflow_analyzer.format.parts import METADATA_PART_KEY, METADATA_RUNS_KEY, METADATA_VERSION_KEY
from overflow_analyzer.format.ring_layout import RING_HEADER, RING_HEADER_SIZE, RING_ROW
from overflow_analyzer.trace.opening import open_trace
from tests.rings import Ring, seal_row
from tests.traces import RUN, frame, modules, settings, tensor, write_modules, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame

INF, NAN = float("inf"), float("nan")
EXTREME = (0, 1, -1, 2, 7, 127, 255, 2**16, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63))
TEXTS = ("", "a", "模块", "\x1b[31m", "`|<b>", "\u202e", "x" * 5000, "\0", "../../etc/passwd", "rank=0", "nan")
ODD_JSON: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**30,
    1e308,
    "",
    "x",
    [],
    {},
    [[]],
    {"a": {}},
    ["a", 1],
    *EXTREME,
    *TEXTS,
)


def some_frames(start: int, count: int) -> list[Frame]:
    """Frames with every kind of entry in them."""
    odd = (
        tensor("input", "input[0]", shape=(), numel=1),
        Entry("input", "input[1]", "none"),
        tensor("buffer", "mean", abs_max=INF, finite_abs_max=None, posinf_count=4, note="ignored"),
        tensor("output", "output", abs_max=NAN, abs_min=NAN, nan_count=1, dtype="float32", shape=(2, 3, 4)),
    )
    return [
        frame(at, at // 4, f"layer.{at % 4}", tensor("weight", "weight"), *odd[: at % 5], in_batch=at % 4)
        for at in range(start, start + count)
    ]


ORIGINALS = ("parts", "killed", "ring", "one.parquet")
"""The traces that are damaged: parts, parts and a ring, a ring alone, one compacted file."""


def write_originals(directory: Path) -> list[Path]:
    """Write the traces that are damaged."""
    parts = write_trace(directory / "parts", some_frames(0, 24), replace(RUN, world_size=2), frames_per_part=6)
    write_trace(
        parts, some_frames(0, 8), replace(RUN, rank=1, world_size=2, seeds={"seed": 3, "environment": {"A": "b"}})
    )
    norm = settings("layer.1", "normalization.LayerNorm", "(4,), eps=1e-05", attributes={"normalized_shape": "(4,)"})
    (state,) = modules(settings("", "Model"), norm, settings("layer.2", "dropout.Dropout", "p=0.1")).states
    later = ModulesState(3, 1, (replace(norm, extra_repr=None, dtypes=("float16",)),), ("layer.2",))
    write_modules(parts, Modules((state, later)))
    killed = write_trace(directory / "killed", some_frames(0, 8), replace(RUN, end=None))
    Ring(128, 4).append(some_frames(4, 12), kept=True).save(killed / "rank=0")
    ring = write_trace(directory / "ring", [], replace(RUN, end=None))
    Ring(16, 3).append(some_frames(0, 16)).save(ring / "rank=0")
    compact_trace(open_trace(parts), directory / "one.parquet", rows_a_group=20)
    return [directory / name for name in ORIGINALS]


@dataclass
class Forger:
    """Damages copies of traces.

    Args:
        seed: The same seed damages in the same way.
    """

    seed: int

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def forge(self, originals: Sequence[Path], destination: Path) -> Path:
        """Copy one of the originals to ``destination`` and damage one to three of its files."""
        original = self.random.choice(originals)
        copied = destination / original.name
        (shutil.copytree if original.is_dir() else shutil.copyfile)(original, copied)
        for _ in range(self.random.randint(1, 3)):
            files = sorted(one for one in copied.rglob("*") if one.is_file()) if copied.is_dir() else [copied]
            self._damage(self.random.choice(files))
        return copied

    def _damage(self, path: Path) -> None:
        blind: list[Callable[[Path], None]] = [self._blindly]
        knowing = {
            ".parquet": [self._forge_part, self._forge_metadata],
            ".json": [self._forge_json],
            ".ring": [self._forge_rows, self._forge_header],
            ".names": [self._forge_names],
        }[path.suffix]
        # What no longer is such a file after an earlier damage can only be damaged blindly.
        with contextlib.suppress(
            pa.ArrowException, ValueError, OSError, KeyError, IndexError, TypeError, OverflowError, RecursionError
        ):
            self.random.choice([*blind, *knowing])(path)

    def _blindly(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        for _ in range(self.random.randint(1, 4)):
            at, length = self._span(data)
            kind = self.random.choice(["flip", "zero", "cut", "splice", "noise", "number", "drop"])
            if kind == "flip" and data:
                data[at] ^= 1 << self.random.randrange(8)
            elif kind == "zero":
                data[at : at + length] = bytes(length)
            elif kind == "cut":
                del data[at:]
            elif kind == "drop":
                del data[at : at + length]
            elif kind == "splice":
                source, _ = self._span(data)
                data[at:at] = data[source : source + length]
            elif kind == "noise":
                data[at : at + length] = self.random.randbytes(length)
            else:
                data[at : at + 8] = (self.random.choice(EXTREME) % 2**64).to_bytes(8, "little")
        path.write_bytes(data)

    def _span(self, data: bytearray) -> tuple[int, int]:
        # Footers, headers and page headers lie at the ends, and more can be broken there.
        near_end = self.random.random() < 0.3
        at = (
            max(0, len(data) - self.random.randint(1, 600))
            if near_end
            else self.random.randint(0, max(0, len(data) - 1))
        )
        return at, min(self.random.choice([1, 4, 16, 256]), max(0, len(data) - at))

    def _forge_part(self, path: Path) -> None:
        table = pq.read_table(path)
        name = self.random.choice(table.column_names)
        at, field = table.column_names.index(name), table.schema.field(name)
        kind = self.random.choice(["drop", "null", "retype", "values", "rename"])
        if kind == "drop":
            table = table.drop_columns([name])
        elif kind == "rename":
            table = table.rename_columns(
                [self.random.choice(TEXTS) if one == name else one for one in table.column_names]
            )
        else:
            column = {"null": self._nulls, "retype": self._retyped, "values": self._values}[kind](table[name], field)
            table = table.set_column(at, name, column)
        pq.write_table(
            table.replace_schema_metadata(table.schema.metadata), path, row_group_size=self.random.choice([1, 7, 1000])
        )

    def _nulls(self, column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
        return pa.nulls(len(column), field.type)

    def _retyped(self, column: pa.ChunkedArray, _: pa.Field) -> pa.Array:
        wanted = self.random.choice(
            [pa.string(), pa.float64(), pa.int8(), pa.binary(), pa.bool_(), pa.timestamp("ns"), pa.uint64()]
        )
        return pa.array(
            [None if self.random.random() < 0.2 else self._value(wanted) for _ in range(len(column))], wanted
        )

    def _values(self, column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
        if pa.types.is_list(field.type):
            return pa.array(
                [[self.random.choice(EXTREME)] * self.random.randint(0, 9) for _ in range(len(column))], field.type
            )
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        bits = 64 if plain == pa.int64() else 31
        values = [self._value(plain) for _ in range(len(column))]
        values = [value % 2**bits - 2 ** (bits - 1) if isinstance(value, int) else value for value in values]
        return pa.array(values, plain)

    def _value(self, kind: pa.DataType) -> Any:
        if pa.types.is_string(kind):
            return self.random.choice(TEXTS)
        if pa.types.is_binary(kind):
            return self.random.randbytes(5)
        if pa.types.is_floating(kind):
            return self.random.choice([0.0, -1.0, INF, -INF, NAN, 5e-324, 1e308])
        if pa.types.is_boolean(kind):
            return True
        return self.random.choice(EXTREME[:6])

    def _forge_metadata(self, path: Path) -> None:
        table = pq.read_table(path)
        metadata = dict(table.schema.metadata or {})
        key = self.random.choice([METADATA_VERSION_KEY, METADATA_RUNS_KEY, METADATA_PART_KEY])
        if self.random.random() < 0.4:
            metadata[key] = self.random.choice(
                [b"", b"1", b"2", b"-1", b"9" * 5000, b"[" * 100_000, b"\xff", b"null", b"[null]"]
            )
        else:
            metadata[key] = json.dumps(self._odd(json.loads(metadata[key]))).encode()
        pq.write_table(table.replace_schema_metadata(metadata), path)

    def _forge_json(self, path: Path) -> None:
        path.write_text(json.dumps(self._odd(json.loads(path.read_text()))))

    def _odd(self, value: Any) -> Any:
        """Replace something in a JSON value, at any depth, by something else."""
        if isinstance(value, dict) and value and self.random.random() < 0.85:
            key = self.random.choice(sorted(value))
            return {**value, key: self._odd(value[key])}
        if isinstance(value, list) and value and self.random.random() < 0.85:
            at = self.random.randrange(len(value))
            return [*value[:at], self._odd(value[at]), *value[at + 1 :]]
        return self.random.choice(ODD_JSON)

    def _forge_rows(self, path: Path) -> None:
        """Change fields of rows and give them a checksum that agrees."""
        data = path.read_bytes()
        rows = np.frombuffer(bytearray(data[RING_HEADER_SIZE:]), RING_ROW)
        for _ in range(self.random.randint(1, 6)):
            row = rows[self.random.randrange(len(rows))]
            name = self.random.choice(RING_ROW.names or ())
            value = np.array([self.random.choice(EXTREME) % 2**64], "<u8").view(np.uint8)
            field = np.atleast_1d(row[name]).view(np.uint8)
            row[name] = np.resize(value, field.shape).view(row[name].dtype.base if row[name].ndim else row[name].dtype)[
                0
            ]
            rows[self.random.randrange(len(rows))] = seal_row(row)
        path.write_bytes(data[:RING_HEADER_SIZE] + rows.tobytes())

    def _forge_header(self, path: Path) -> None:
        data = path.read_bytes()
        header = np.frombuffer(data[:RING_HEADER_SIZE], RING_HEADER)[0].copy()
        name = self.random.choice([name for name in RING_HEADER.names or () if name != "magic"])
        header[name] = self.random.choice(EXTREME) % 2 ** (8 * header[name].nbytes)
        path.write_bytes(header.tobytes() + data[RING_HEADER_SIZE:])

    def _forge_names(self, path: Path) -> None:
        path.write_bytes(b"".join(encode_name(self.random.choice(TEXTS)) for _ in range(self.random.randint(0, 40))))


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("report", "{trace}"),
    ("report", "{trace}", "--format", "json", "--batch", "2", "--frames", "3"),
    ("info", "{trace}", "--format", "json"),
    ("info", "{trace}", "--format", "markdown", "--modules"),
    ("batch", "{trace}", "1", "--format", "json"),
    ("batch", "{trace}", "2"),
    ("top", "{trace}"),
    ("diff", "{trace}", "{trace}"),
    ("html", "{trace}", "-o", "{out}/page", "--overwrite"),
    ("html", "{trace}", "{trace}", "-o", "{out}/page", "--overwrite"),
    ("watch", "{trace}", "--once"),
    ("compact", "{trace}", "-o", "{out}/one", "--overwrite"),
    ("export", "{trace}", "--to", "csv", "-o", "{out}/csv", "--overwrite"),
    ("export", "{trace}", "--to", "jsonl", "-o", "{out}/jsonl", "--overwrite"),
)
"""What is asked of a damaged trace; {trace} and {out} are filled in."""


def complaint(command: Sequence[str], trace: Path, out: Path) -> str | None:
    """Run a command and return what it did wrong, or None."""
    arguments = [part.format(trace=trace, out=out) for part in command]
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main(arguments)
    said = stderr.getvalue()
    if (
        code not in (0, 1, 2, 3)
        or "an error of its own" in said
        or "Traceback" in said
        or "\x1b" in said + stdout.getvalue()
    ):
        return f"{' '.join(arguments)}: exit {code}\n{said}"
    lines = said.splitlines()  # the last is the error; notes on what was read before it may precede it
    if code == 3 and not (lines and all(line.startswith("overflow-analyze: ") for line in lines)):
        return f"{' '.join(arguments)}: exit 3 with {said!r}"
    return None
