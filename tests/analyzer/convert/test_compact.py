"""One file that is the same trace."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.convert.compact import compact_trace
from overflow_analyzer.convert.outputs import OutputError
from overflow_analyzer.errors import DamagedTraceError
from overflow_analyzer.format.columns import SCHEMA, SINGLE_FILE_SCHEMA
from overflow_analyzer.trace.opening import Trace, open_trace
from tests.analyzer.commands import analyze
from tests.analyzer.samples import INF, two_batches, write_clean, write_ranks, write_well_known
from tests.rings import Ring, write_killed
from tests.traces import RUN, frame, table_of, tensor, write_part, write_trace

if TYPE_CHECKING:
    from overflow_analyzer.format.frames import Frame


def frames_of(trace: Trace) -> dict[int, list[Frame]]:
    return {one.rank: list(one.frames()) for one in trace.ranks}


def shown(trace: Trace) -> str:
    """All frames of a trace, in a form in which nan equals nan."""
    return repr(frames_of(trace))


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=12),
    frames_a_part=st.integers(1, 9),
    rows_a_group=st.integers(5, 20),
    sealed=st.integers(0, 12),
)
def test_the_frames_and_their_order_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], frames_a_part: int, rows_a_group: int, sealed: int
) -> None:
    # GIVEN two ranks, one of them killed, in parts of any size
    path = tmp_path_factory.mktemp("run") / "run.parquet"
    frames = [
        frame(
            at,
            at // 4,
            f"layer.{at % 3}",
            *(tensor("output", f"output[{i}]", 0, at) for i in range(size)),
            in_batch=at % 4,
        )
        for at, size in enumerate(sizes)
    ]
    write_trace(path, frames, replace(RUN, world_size=2), frames_a_part)
    write_trace(path, frames[:sealed], replace(RUN, rank=1, world_size=2, end=None), frames_a_part)
    Ring(256, 99).append(frames, kept=True).save(path / "rank=1")

    # WHEN it becomes one file, whatever its row groups' size
    target = path.with_name("one.parquet")
    done = compact_trace(open_trace(path), target, rows_a_group=rows_a_group)

    # THEN it is the same trace
    one = open_trace(target)
    assert frames_of(one) == frames_of(open_trace(path)) == {0: frames, 1: frames}
    assert (done.ranks, done.frames, done.rows) == (2, 2 * len(frames), 2 * sum(sizes))
    assert done.bytes == target.stat().st_size
    # and no row group holds a part of a frame, or two ranks
    groups = [
        group
        for footer in {footer.path: footer for rank in one.ranks for footer in rank.footers}.values()
        for group in footer.row_groups
    ]
    assert all(group.first_rank == group.last_rank for group in groups)
    assert all(
        before.last_frame < after.first_frame
        for before, after in itertools.pairwise(groups)
        if before.first_rank == after.first_rank
    )


def test_the_file_has_the_columns_of_the_contract_in_its_order(tmp_path: Path) -> None:
    compact_trace(open_trace(write_ranks(tmp_path / "run.parquet")), tmp_path / "one.parquet")
    assert pq.read_schema(tmp_path / "one.parquet").remove_metadata() == SINGLE_FILE_SCHEMA


def test_what_is_known_of_each_run_is_in_the_file(tmp_path: Path) -> None:
    # GIVEN ranks that were closed and one that was killed, which shows beside its ring alone
    path = write_ranks(tmp_path / "run.parquet")
    before = open_trace(path)

    # WHEN the trace becomes one file
    compact_trace(before, tmp_path / "one.parquet")

    # THEN the file knows it too
    after = open_trace(tmp_path / "one.parquet")
    assert [one.ended for one in after.ranks] == ["closed", "closed", "killed"]
    assert [replace(one.run, end=None) for one in after.ranks] == [replace(one.run, end=None) for one in before.ranks]
    assert after.missing_ranks == (2,)


def test_compacting_twice_changes_nothing(tmp_path: Path) -> None:
    compact_trace(open_trace(write_ranks(tmp_path / "run.parquet")), tmp_path / "one.parquet")
    compact_trace(open_trace(tmp_path / "one.parquet"), tmp_path / "two.parquet")
    assert shown(open_trace(tmp_path / "two.parquet")) == shown(open_trace(tmp_path / "one.parquet"))
    assert repr(pq.read_table(tmp_path / "two.parquet").to_pylist()) == repr(
        pq.read_table(tmp_path / "one.parquet").to_pylist()
    )


def test_the_file_that_is_read_is_never_the_one_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    compact_trace(open_trace(write_ranks(tmp_path / "run.parquet")), path)
    before = path.read_bytes()
    with pytest.raises(OutputError, match="is the trace that is read"):
        compact_trace(open_trace(path), path, overwrite=True)
    assert path.read_bytes() == before


def test_clean_row_groups_are_proven_clean(tmp_path: Path) -> None:
    # GIVEN one bad frame among many
    frames = [frame(at, 0, "a", tensor("output", "output"), in_batch=at) for at in range(30)]
    frames[17] = frame(17, 0, "a", tensor("output", "output", 0, INF, posinf_count=1), in_batch=17)
    compact_trace(open_trace(write_trace(tmp_path / "run.parquet", frames)), tmp_path / "one.parquet", rows_a_group=10)

    # THEN only its own row group has to be read to find it
    (rank,) = open_trace(tmp_path / "one.parquet").ranks
    assert [group.finite for group in rank.row_groups] == [True, False, True]


def peak_of_compacting(path: Path) -> int:
    """The most bytes of Arrow's that are in use at one time."""
    before = pa.default_memory_pool()
    counting = pa.proxy_memory_pool(before)
    pa.set_memory_pool(counting)
    try:
        compact_trace(open_trace(path), path.with_suffix(".one"), rows_a_group=4000)
        return int(counting.max_memory())
    finally:
        pa.set_memory_pool(before)


def test_memory_is_that_of_a_row_group(tmp_path: Path) -> None:
    # GIVEN a trace, and one of eight times as many parts
    table = table_of([frame(at, at // 9, "a", tensor("output", "output"), in_batch=at % 9) for at in range(1000)])
    paths = {parts: write_trace(tmp_path / f"{parts}.parquet", []) for parts in (8, 64)}
    for parts, path in paths.items():
        for part in range(parts):
            numbers = pc.add(table["frame_number"], 1000 * part)
            moved = table.set_column(SCHEMA.get_field_index("frame_number"), SCHEMA.field("frame_number"), numbers)
            write_part(path / "rank=0" / f"part-{part:08}.parquet", [moved], [RUN], 1000)

    # THEN that one takes no more memory
    assert peak_of_compacting(paths[64]) < 1.2 * peak_of_compacting(paths[8])


@pytest.mark.parametrize("broken_at", [0, 1])
def test_a_trace_that_cannot_be_read_to_its_end_makes_no_file(broken_at: int, tmp_path: Path) -> None:
    # GIVEN a part whose pages are zeros under a whole footer
    path = write_trace(tmp_path / "run.parquet", two_batches(), frames_per_part=3)
    part = path / "rank=0" / f"part-{broken_at:08}.parquet"
    data = bytearray(part.read_bytes())
    data[4:2000] = bytes(1996)
    part.write_bytes(data)

    # WHEN it is compacted
    with pytest.raises(DamagedTraceError, match=str(part)):
        compact_trace(open_trace(path), tmp_path / "one.parquet")

    # THEN nothing is left, not even a beginning
    assert [one.name for one in tmp_path.iterdir()] == ["run.parquet"]


def test_an_existing_file_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = write_clean(tmp_path / "run.parquet")
    (tmp_path / "one.parquet").write_text("mine")
    with pytest.raises(OutputError, match="--overwrite replaces it"):
        compact_trace(open_trace(path), tmp_path / "one.parquet")
    assert (tmp_path / "one.parquet").read_text() == "mine"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_well_known(Path("run.parquet"))
    assert analyze("compact", "run.parquet", "-o", "one.parquet").out.startswith(
        "one.parquet: 1 rank, 5 frames, 13 rows, "
    )
    assert analyze("compact", "run.parquet", "-o", "one.parquet").code == 2
    assert analyze("compact", "run.parquet", "-o", "one.parquet", "--overwrite").code == 0
    assert analyze("one.parquet").out == analyze("run.parquet").out


def test_the_command_says_what_is_not_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a trace of which a part is damaged
    monkeypatch.chdir(tmp_path)
    write_trace(Path("run.parquet"), two_batches(), frames_per_part=3)
    Path("run.parquet/rank=0/part-00000000.parquet").write_bytes(b"PAR1")

    # THEN what can be read is written, and stderr says what is missing
    ran = analyze("compact", "run.parquet", "-o", "one.parquet")
    assert ran.code == 0
    assert "not in one.parquet: run.parquet/rank=0/part-00000000.parquet: is not a whole Parquet file" in ran.err
    assert [one.frame_number for one in open_trace("one.parquet").ranks[0].frames()] == [3, 4, 5]


def test_a_killed_run_is_compacted_from_its_ring(tmp_path: Path) -> None:
    path = write_killed(tmp_path / "run.parquet", two_batches(), replace(RUN, end=None))
    compact_trace(open_trace(path), tmp_path / "one.parquet")
    assert frames_of(open_trace(tmp_path / "one.parquet")) == {0: two_batches()}


def test_a_frame_of_absurd_length_does_not_end_up_in_memory_whole(tmp_path: Path) -> None:
    # GIVEN a frame of many more rows than a row group
    long = frame(0, 0, "a", *(tensor("output", f"output[{at}]") for at in range(25)), in_batch=0)
    compact_trace(open_trace(write_trace(tmp_path / "run.parquet", [long])), tmp_path / "one.parquet", rows_a_group=10)

    # THEN its row groups are cut through it, and it is one frame when it is read
    one = open_trace(tmp_path / "one.parquet")
    assert len(one.ranks[0].row_groups) == 2
    assert frames_of(one) == {0: [long]}
