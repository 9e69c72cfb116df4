"""One rank's directory: claimed, bounded, and what is in it is never touched but by its own run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.format.files import NAMES_FILE, RING_FILE, RUN_FILE
from overflow_recorder.errors import TraceExistsError
from overflow_recorder.storage.directory import NUMBERED, SAMPLED, WINDOW, TraceDirectory
from overflow_recorder.storage.sealing import encode_part
from tests.traces import RUN, frame, table_of, tensor, write_trace
from tests.windows import bytes_of

if TYPE_CHECKING:
    from pathlib import Path


def directory_of(
    path: Path, *, rank: int = 0, world_size: int = 1, max_bytes: int | None = None, overwrite: bool = False
) -> TraceDirectory:
    return TraceDirectory(path, rank, world_size, max_bytes=max_bytes, overwrite=overwrite)


def parts_in(path: Path) -> list[int]:
    """The numbers of the parts that are there."""
    return sorted(int(one.stem.removeprefix("part-")) for one in (path / "rank=0").glob("part-*.parquet"))


def small_trace(path: Path, *, rank: int = 0) -> Path:
    return write_trace(path, [frame(0, 0, "a", tensor("output", "output"))], replace(RUN, rank=rank))


def test_a_part_has_its_number_and_the_run(tmp_path: Path) -> None:
    directory = directory_of(tmp_path / "run.parquet")
    data = encode_part([table_of([frame(0, 0, "a", tensor("output", "output"))])], RUN)
    directory.seal(data, SAMPLED)
    directory.seal(data, SAMPLED)
    directory.write_run(RUN)
    directory.release()
    directory.release()
    rank = tmp_path / "run.parquet" / "rank=0"
    assert sorted(one.name for one in rank.iterdir()) == sorted(
        [RUN_FILE, RING_FILE, "part-00000000.parquet", "part-00000001.parquet"]
    )
    assert json.loads((rank / RUN_FILE).read_text())["run_id"] == RUN.run_id


def test_what_is_there_is_said_when_it_is_refused(tmp_path: Path) -> None:
    # GIVEN an ended run of a model of class "Model", in one part
    path = small_trace(tmp_path / "run.parquet")
    before = bytes_of(path)

    # WHEN another run wants the path
    with pytest.raises(TraceExistsError) as refused:
        directory_of(path)

    # THEN the message says what is there and what to do, and nothing was touched
    assert "a run of Model (closed, 1 sealed parts)" in str(refused.value)
    assert "overwrite=True" in str(refused.value)
    assert bytes_of(path) == before


def test_an_unreadable_and_an_empty_trace_are_refused_too(tmp_path: Path) -> None:
    rank = tmp_path / "run.parquet" / "rank=0"
    rank.mkdir(parents=True)
    (rank / RUN_FILE).write_text("garbage")
    with pytest.raises(TraceExistsError, match="cannot be read"):
        directory_of(tmp_path / "run.parquet")
    (rank / RUN_FILE).write_text(RUN.to_json())
    with pytest.raises(TraceExistsError, match="nothing was recorded"):
        directory_of(tmp_path / "run.parquet")


def test_overwriting_takes_the_place_of_an_ended_run(tmp_path: Path) -> None:
    path = small_trace(tmp_path / "run.parquet")
    directory_of(path, overwrite=True).release()
    assert [one.name for one in (path / "rank=0").iterdir()] == [RING_FILE]


def test_ranks_of_an_earlier_larger_run_go_with_it(tmp_path: Path) -> None:
    # GIVEN four ranks' traces, one with a file of the user's in it
    path = tmp_path / "run.parquet"
    for rank in range(4):
        small_trace(path, rank=rank)
    (path / "rank=3" / "notes.txt").write_text("mine")

    # WHEN rank 0 of a run of two starts without overwrite, and a run of four's rank 1 ends, THEN nothing goes
    with pytest.raises(TraceExistsError):
        directory_of(path, world_size=2)
    assert len(list(path.iterdir())) == 4

    # WHEN it may overwrite, THEN ranks that it does not have are gone, rank 1 is rank 1's to replace, notes stay
    directory_of(path, world_size=2, overwrite=True).release()
    assert sorted(one.name for one in path.iterdir()) == ["rank=0", "rank=1", "rank=3"]
    assert [one.name for one in (path / "rank=3").iterdir()] == ["notes.txt"]
    assert (path / "rank=1" / "part-00000000.parquet").exists()


def test_a_larger_runs_rank_is_refused_even_where_rank_0_is_free(tmp_path: Path) -> None:
    # GIVEN what a run of two left, without its rank 0
    path = small_trace(tmp_path / "run.parquet", rank=1)

    # WHEN a run of one starts there, THEN it is refused: two runs must never be read as one
    with pytest.raises(TraceExistsError, match="rank=1"):
        directory_of(path)
    assert [one.name for one in path.iterdir()] == ["rank=1"]


def test_ranks_do_not_touch_each_other(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    directories = [directory_of(path, rank=rank, world_size=3) for rank in (2, 0, 1)]
    assert sorted(one.name for one in path.iterdir()) == ["rank=0", "rank=1", "rank=2"]
    for one in directories:
        one.release()


def part_of(kind: int, size: int) -> pa.Buffer:
    """Bytes that are no part; what is retained does not depend on what is in them."""
    return pa.py_buffer(bytes([kind]) * size)


@settings(max_examples=40)
@given(parts=st.lists(st.tuples(st.sampled_from([SAMPLED, NUMBERED, WINDOW]), st.integers(1, 3000)), max_size=25))
def test_what_max_bytes_keeps(tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]]) -> None:
    # GIVEN any parts, and room for some of them beside the ring, its names, the run and its modules
    path = tmp_path_factory.mktemp("trace") / "run.parquet"
    limit = 12_000
    directory = directory_of(path, max_bytes=limit)
    for name, size in ((RING_FILE, 3000), (NAMES_FILE, 500), (RUN_FILE, 700)):
        (directory.path / name).write_bytes(bytes(size))
    room = limit - 3000 - 500 - 2 * 700 - 1024 - 2 * (limit // 32)
    model: list[tuple[int, int, int]] = []

    for number, (kind, size) in enumerate(parts):
        directory.seal(part_of(kind, size), kind)

        # THEN a part takes the place of sampled ones, oldest first, then of those asked for unless it is sampled
        # itself, never of a protected one; if that is not enough, it is not there, unless it is protected itself
        for worth in range(min(kind, NUMBERED) + 1):
            while sum(one[2] for one in model) + size > room and any(one[1] == worth for one in model):
                model.remove(next(one for one in model if one[1] == worth))
        if kind == WINDOW or sum(one[2] for one in model) + size <= room:
            model.append((number, kind, size))
        sizes = sorted(one.stat().st_size for one in directory.path.glob("part-*.parquet"))
        assert sizes == sorted(size for _, _, size in model)
        if sum(size for _, kind, size in model if kind == WINDOW) <= room:
            assert bytes_of(path) <= limit
    assert directory.parts_removed == len(parts) - len(model)
    directory.release()


def test_numbers_of_parts_stay_absolute(tmp_path: Path) -> None:
    directory = directory_of(tmp_path / "run.parquet", max_bytes=10_000)
    for _ in range(10):
        directory.seal(part_of(SAMPLED, 3000), SAMPLED)
    assert parts_in(tmp_path / "run.parquet") == [8, 9]
    assert directory.parts_removed == 8
    directory.release()


def test_a_part_that_someone_else_removed_is_no_obstacle(tmp_path: Path) -> None:
    directory = directory_of(tmp_path / "run.parquet", max_bytes=10_000)
    directory.seal(part_of(SAMPLED, 6000), SAMPLED)
    (directory.path / "part-00000000.parquet").unlink()
    directory.seal(part_of(SAMPLED, 6000), SAMPLED)
    assert parts_in(tmp_path / "run.parquet") == [1]
    directory.release()


def test_a_ring_that_is_another_runs_by_now_is_not_removed(tmp_path: Path) -> None:
    # GIVEN a run whose directory was removed, and another that has made it anew
    path = tmp_path / "run.parquet"
    ours = directory_of(path)
    for name in ("rank=0", ""):
        for one in (path / name).glob("*"):
            one.unlink() if one.is_file() else one.rmdir()
    theirs = directory_of(path)
    (theirs.path / NAMES_FILE).write_bytes(b"theirs")

    # WHEN ours ends, THEN theirs is untouched
    ours.remove_ring()
    ours.release()
    assert sorted(one.name for one in theirs.path.iterdir()) == [NAMES_FILE, RING_FILE]
    theirs.remove_ring()
    assert list(theirs.path.iterdir()) == []
    theirs.release()


def test_a_failed_start_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk that refuses in the middle of a claim
    path = small_trace(tmp_path / "run.parquet")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("overflow_recorder.storage.claiming.os.ftruncate", refuse)
        with pytest.raises(OSError, match="No space left"):
            directory_of(path, overwrite=True)

    # THEN the earlier trace is there, and the next start is not refused as if a run lived
    assert (path / "rank=0" / "part-00000000.parquet").exists()
    directory_of(path, overwrite=True).release()
