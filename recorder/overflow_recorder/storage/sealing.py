"""How a file gets into a trace: whole or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from overflow_analyzer.format.arrays import numbers
from overflow_analyzer.format.columns import SCHEMA
from overflow_analyzer.format.files import whole_file
from overflow_analyzer.format.parts import METADATA_PART_KEY, open_part_writer, part_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from overflow_analyzer.format.run_info import RunInfo


def encode_part(tables: Iterable[pa.Table], run: RunInfo) -> pa.Buffer:
    """Return a part's bytes, made in memory: only then is it known how much room it needs.

    Args:
        tables: One a row group, in ``schema.SCHEMA``; a frame does not lie across two. Only one is held at a time.
        run: What the part says of its run.
    """
    sink, frames = pa.BufferOutputStream(), 0
    metadata = part_metadata([run], 0)
    del metadata[METADATA_PART_KEY]  # known at the end only
    with open_part_writer(sink, SCHEMA, metadata) as writer:
        for table in tables:
            frames += len(np.unique(numbers(table, "frame_number")))
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata({METADATA_PART_KEY: json.dumps({"frames": frames})})
    return sink.getvalue()


def write_whole(path: Path, data: bytes | pa.Buffer) -> None:
    """Write a file under a temporary name, flush it to the disk, rename it: whoever sees the name sees all of it.

    Args:
        path: Its name; a file that has it is replaced.
        data: Its bytes.

    Raises:
        OSError: The disk refused; what had the name is untouched, and the temporary file is gone if it can be removed.
    """
    with whole_file(path, path.with_name(f"_{path.name}.tmp")) as file:
        file.write(data)
