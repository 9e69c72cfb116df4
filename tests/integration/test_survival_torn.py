"""Files whose ends never reached the disk, as a power cut leaves them: what is there is read, what is lost is said."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer.errors import DamagedTraceError
from overflow_analyzer.format.files import NAMES_FILE, RING_FILE, RUN_FILE
from overflow_analyzer.format.ring_layout import RING_END_OFFSET, RING_HEADER_SIZE, RING_ROW
from overflow_analyzer.trace.opening import open_trace
from tests.windows import copy_as_killed, make_storage, publish, read_left

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PAGE = 4096
FRAMES = 100
NEWEST = "part-00000002.parquet"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A killed run of a hundred frames: three parts and a ring that went round, with rows in it that are sealed too."""
    directory = tmp_path_factory.mktemp("killed")
    storage = make_storage(directory / "run.parquet", every_n_batches=1, max_bytes=4 * 128 * RING_ROW.itemsize)
    writer = storage._writer
    assert writer is not None
    writer.stop()  # this test seals by itself
    for at in range(FRAMES):
        assert publish(storage, at * 10.0) == at
        if at in {30, 57, 84}:
            writer.seal(storage.window.window_start)
    killed = copy_as_killed(directory / "run.parquet", directory / "killed.parquet")
    storage.abandon()
    left = read_left(killed)
    assert left.values == {at: at * 10.0 for at in range(FRAMES)}
    assert (left.lost, len(open_trace(killed).ranks[0].footers)) == ((), 3)
    return killed


def cut(data: bytes, offset: int) -> bytes:
    """The file ends at the offset."""
    return data[:offset]


def zero_page(data: bytes, offset: int) -> bytes:
    """From the offset to the end of its page there are zeros."""
    end = min(len(data), (offset // PAGE + 1) * PAGE)
    return data[:offset] + bytes(end - offset) + data[end:]


def zero_to_the_end(data: bytes, offset: int) -> bytes:
    """From the offset on there are zeros."""
    return data[:offset] + bytes(len(data) - offset)


DAMAGES = [cut, zero_page, zero_to_the_end]


def damaged(killed: Path, copy: Path, name: str, damage: Callable[[bytes, int], bytes], offset: int) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(killed, copy)
    file = copy / "rank=0" / name
    data = file.read_bytes()
    file.write_bytes(damage(data, offset))
    return copy


def check(path: Path, at_least: range, *, changed: bool = True) -> None:
    """What is read was written so; frames that nothing happened to are there; if one is missing, that is said."""
    left = read_left(path)
    assert left.values.items() <= {at: at * 10.0 for at in range(FRAMES)}.items()
    assert set(at_least) <= set(left.values)
    if len(left.values) < FRAMES:
        assert left.lost
    if not changed:
        assert (len(left.values), left.lost) == (FRAMES, ())


def sealed_frames(path: Path) -> int:
    """Frames in parts."""
    (rank,) = open_trace(path).ranks
    return max(group.last_frame for group in rank.row_groups) + 1


def ring_offsets(killed: Path) -> list[int]:
    size = (killed / "rank=0" / RING_FILE).stat().st_size
    header = [0, 1, 8, 11, 12, 16, 24, 40, 64, 65, 72, 80, RING_END_OFFSET, RING_END_OFFSET + 9, 4095]
    length = RING_ROW.itemsize
    rows = [RING_HEADER_SIZE + row * length + at for row in (0, 1, 15, 16, 40, 127) for at in (0, 3, 4, 5, 100, 255)]
    return [*header, *rows, *range(PAGE, size, PAGE), size - PAGE - 1, size - length - 1, size - length, size - 1]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_rings_end(damage: Callable[[bytes, int], bytes], killed: Path, tmp_path: Path) -> None:
    sealed = sealed_frames(killed)
    for offset in ring_offsets(killed):
        check(damaged(killed, tmp_path / "copy", RING_FILE, damage, offset), range(sealed))


def test_only_the_damaged_page_of_a_ring_is_lost(killed: Path, tmp_path: Path) -> None:
    # GIVEN the page with rows 16 to 31, sealed long ago, and that of the last rows
    copy = damaged(killed, tmp_path / "copy", RING_FILE, zero_page, 2 * PAGE)
    whole = set(range(FRAMES))
    lost = whole - set(read_left(copy).values)

    # THEN at most the eight frames of that page are missing
    assert len(lost) <= 9
    assert read_left(copy).lost


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_end_of_the_names(damage: Callable[[bytes, int], bytes], killed: Path, tmp_path: Path) -> None:
    sealed = sealed_frames(killed)
    size = (killed / "rank=0" / NAMES_FILE).stat().st_size
    for offset in range(0, size, 3):
        check(damaged(killed, tmp_path / "copy", NAMES_FILE, damage, offset), range(sealed))


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_end_of_the_newest_part(damage: Callable[[bytes, int], bytes], killed: Path, tmp_path: Path) -> None:
    data = (killed / "rank=0" / NEWEST).read_bytes()
    (rank,) = open_trace(killed).ranks
    before = rank.row_groups[1].last_frame + 1
    size, footer = len(data), int.from_bytes(data[-8:-4], "little")
    offsets = {0, 1, 4, 5, size - 1, size - 4, size - 5, size - 8, size - 9, size - 8 - footer, size - 9 - footer}
    for offset in sorted(offsets | set(range(13, size, 397))):
        copy = damaged(killed, tmp_path / "copy", NEWEST, damage, offset)
        changed = (copy / "rank=0" / NEWEST).read_bytes() != data
        check(copy, range(before), changed=changed)


def test_what_a_spoilt_part_had_comes_from_the_ring_while_it_is_there(killed: Path, tmp_path: Path) -> None:
    # GIVEN a newest part whose middle never reached the disk, though its end did, and a ring that still has its rows
    copy = damaged(killed, tmp_path / "copy", NEWEST, zero_page, PAGE // 4)

    # THEN every frame is there, and the part is named
    left = read_left(copy)
    assert left.values == {at: at * 10.0 for at in range(FRAMES)}
    assert any(NEWEST in sentence for sentence in left.lost)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_end_of_the_runs_description(damage: Callable[[bytes, int], bytes], killed: Path, tmp_path: Path) -> None:
    # Every part has it too.
    size = (killed / "rank=0" / RUN_FILE).stat().st_size
    for offset in range(0, size, 7):
        copy = damaged(killed, tmp_path / "copy", RUN_FILE, damage, offset)
        check(copy, range(FRAMES))
        assert open_trace(copy).ranks[0].run.run_id == "test"


def test_a_window_alone_is_read_without_the_runs_description(tmp_path: Path) -> None:
    # GIVEN a run that was killed before any part was sealed, whose description is gone
    storage = make_storage(tmp_path / "run.parquet")
    publish(storage, 10.0)
    copy = copy_as_killed(tmp_path / "run.parquet", tmp_path / "copy.parquet")
    storage.abandon()
    (copy / "rank=0" / RUN_FILE).write_bytes(b"")

    # THEN its frames are there, and what is not known is said
    left = read_left(copy)
    assert left.values == {0: 10.0}
    assert RUN_FILE in left.lost[0]


def test_where_nothing_is_left_that_is_said_and_not_called_clean(killed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(killed, copy)
    for one in (copy / "rank=0").iterdir():
        one.write_bytes(bytes(one.stat().st_size))
    with pytest.raises(DamagedTraceError, match="nothing of it can be read"):
        open_trace(copy)
