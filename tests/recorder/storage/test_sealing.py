"""Files that are whole or not there."""

from __future__ import annotations

import importlib.util
import os
import stat
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overflow_analyzer.format.parts import read_footer
from overflow_recorder.storage.sealing import encode_part, write_whole
from tests.traces import RUN, frame, table_of, tensor


def test_a_part_says_what_is_in_it(tmp_path: Path) -> None:
    # GIVEN two row groups of two frames and one, three rows each
    rows = [tensor("output", f"output[{at}]") for at in range(3)]
    tables = [table_of([frame(4, 0, "a", *rows), frame(5, 0, "b", *rows)]), table_of([frame(9, 1, "a", *rows)])]

    # WHEN they become a part
    write_whole(tmp_path / "part.parquet", encode_part(iter(tables), RUN))

    # THEN its footer has the run, the frames, and a row group each
    footer = read_footer(tmp_path / "part.parquet")
    assert footer.runs == (RUN,)
    assert (footer.rows, footer.frames) == (9, 3)
    assert [(group.first_frame, group.last_frame) for group in footer.row_groups] == [(4, 5), (9, 9)]
    assert pq.read_table(tmp_path / "part.parquet").cast(tables[0].schema).equals(pa.concat_tables(tables))


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"earlier and longer")
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_a_failure_leaves_what_was_there(
    call: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a disk, or a user, that stops the writing before the name is there
    (tmp_path / "file").write_bytes(b"earlier")

    def fail(*_: object) -> None:
        raise error

    # Python 3.10's paths have taken os.replace before it can be replaced.
    for room, name in [(os, "fsync")] if call == "fsync" else [(Path, "rename"), (Path, "replace")]:
        monkeypatch.setattr(room, name, fail)

    # WHEN a file is replaced
    with pytest.raises(type(error)):
        write_whole(tmp_path / "file", b"new")

    # THEN the earlier one is whole, and nothing else is left
    assert (tmp_path / "file").read_bytes() == b"earlier"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_the_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a record of what is asked of the disk
    asked: list[tuple[str, list[str]]] = []
    flush = os.fsync

    def recorded(descriptor: int) -> None:
        kind = "directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        asked.append((kind, sorted(one.name for one in tmp_path.iterdir())))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)

    # WHEN a file is written
    write_whole(tmp_path / "file", b"new")

    # THEN its bytes are flushed under the temporary name, and then the directory that has the final one
    assert asked == [("file", ["_file.tmp"]), ("directory", ["file"])]


_RECORDED = """
import sys, torch
from overflow_recorder import TraceRecorder

with TraceRecorder(torch.nn.Linear(2, 2), sys.argv[1], every_n_batches=1) as recorder:
    recorder.model(torch.ones(1, 2))
print("pandas" in sys.modules)
"""


def test_sealing_leaves_pandas_alone_where_it_is_installed(tmp_path: Path) -> None:
    # GIVEN a pandas that Arrow would import
    assert importlib.util.find_spec("pandas") is not None
    # WHEN a process records and seals
    command = [sys.executable, "-c", _RECORDED, str(tmp_path / "run.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    # THEN it has not been imported in the middle of the training
    assert done.stdout == "False\n"
    assert read_footer(next((tmp_path / "run.parquet" / "rank=0").glob("part-*.parquet"))).rows == 4
