"""Who may write where: nothing foreign and nothing living is ever touched."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer.format.files import NAMES_FILE, RING_FILE, RUN_FILE
from overflow_recorder.errors import TraceExistsError
from overflow_recorder.storage.claiming import check_no_foreign_files, claim, clear, other_ranks

if TYPE_CHECKING:
    from pathlib import Path

OWN = (RUN_FILE, RING_FILE, NAMES_FILE, "part-00000000.parquet", "part-123456789.parquet")
TEMPORARY = ("_part-00000001.parquet.tmp", f"_{RUN_FILE}.tmp", f"{RING_FILE}.tmp")
FOREIGN = ("part-notes.txt", "part-0.parquet", "weights.pt", "_run.json.bak", ".hidden", "part-00000000.parquet.bak")


def names_in(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.iterdir())


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    """An empty rank's directory."""
    directory = tmp_path / "run.parquet" / "rank=0"
    directory.mkdir(parents=True)
    return directory


def lock(path: Path) -> int:
    """Lock a file as a living run does; the lock is the descriptor's."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def claimed(directory: Path, *, overwrite: bool) -> int:
    """The descriptor of a claim where there are locks."""
    descriptor = claim(directory, overwrite=overwrite)
    assert descriptor is not None
    return descriptor


def test_clearing_removes_what_a_recorder_wrote_and_nothing_else(rank: Path) -> None:
    for name in (*OWN, *TEMPORARY, *FOREIGN):
        (rank / name).write_text("x")
    clear(rank)
    assert names_in(rank) == sorted(FOREIGN)


@pytest.mark.parametrize("name", ["notes.txt", "rank=x", "rank=0.bak", "metadata.json"])
def test_a_directory_with_something_else_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "rank=0").mkdir()
    (tmp_path / name).write_text("mine")
    with pytest.raises(TraceExistsError, match=name):
        check_no_foreign_files(tmp_path)


def test_hidden_files_of_the_system_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".DS_Store").write_text("")
    (tmp_path / "rank=12").mkdir()
    check_no_foreign_files(tmp_path)
    check_no_foreign_files(tmp_path / "not there")


def test_a_file_and_a_dangling_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("file", "link"):
        with pytest.raises(TraceExistsError, match="a file is there"):
            check_no_foreign_files(tmp_path / name)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_claim_ends_with_its_descriptor(rank: Path, *, overwrite: bool) -> None:
    # GIVEN an empty directory that is claimed
    descriptor = claimed(rank, overwrite=overwrite)
    assert names_in(rank) == [RING_FILE]

    # THEN nobody else gets it, with overwrite or without
    for again in (False, True):
        with pytest.raises(TraceExistsError):
            claim(rank, overwrite=again)
    assert names_in(rank) == [RING_FILE]

    # UNTIL the descriptor is closed, as the kernel does when the process dies
    os.close(descriptor)
    with pytest.raises(TraceExistsError, match="overwrite=True"):
        claim(rank, overwrite=False)
    os.close(claimed(rank, overwrite=True))


def test_overwriting_replaces_own_files_alone(rank: Path) -> None:
    for name in (*OWN, *TEMPORARY, *FOREIGN):
        (rank / name).write_text("x")
    os.close(claimed(rank, overwrite=True))
    assert names_in(rank) == sorted([*FOREIGN, RING_FILE])
    assert (rank / RING_FILE).read_bytes() == b""


def test_the_ring_of_an_ended_run_is_replaced_and_not_truncated(rank: Path) -> None:
    # GIVEN a ring that a process still maps, on a file system whose locks say nothing
    (rank / RING_FILE).write_bytes(b"rows")
    with (rank / RING_FILE).open("rb") as mapped:
        # WHEN another run takes its place
        os.close(claimed(rank, overwrite=True))

        # THEN the mapped file is as it was: a mapping beyond a file's end is a SIGBUS
        assert mapped.read() == b"rows"


def test_without_locks_a_claim_still_works(rank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    os.close(claimed(rank, overwrite=False))
    assert names_in(rank) == [RING_FILE]


def test_a_reader_that_looks_whether_a_run_lives_is_no_living_run(rank: Path) -> None:
    # GIVEN a reader that holds the shared lock for a moment
    (rank / RING_FILE).write_bytes(b"")
    reader = os.open(rank / RING_FILE, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)

    def let_go() -> None:
        time.sleep(0.05)
        os.close(reader)

    waiting = threading.Thread(target=let_go)
    waiting.start()

    # WHEN a run starts meanwhile, THEN it waits for that moment
    os.close(claimed(rank, overwrite=True))
    waiting.join()


def test_a_run_that_ended_between_the_look_and_the_lock_is_not_overwritten(
    rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a directory that is empty when it is looked at, and has a whole trace when the lock is taken
    take = fcntl.flock

    def late(descriptor: int, how: int) -> None:
        take(descriptor, how)
        (rank / RUN_FILE).write_text("{}")

    monkeypatch.setattr(fcntl, "flock", late)

    # WHEN it is claimed, THEN it is refused and left as the other run left it
    with pytest.raises(TraceExistsError):
        claim(rank, overwrite=False)
    assert names_in(rank) == [RUN_FILE]


def test_ranks_of_a_larger_run(tmp_path: Path) -> None:
    for name in ("rank=0", "rank=1", "rank=2", "rank=10", "rank=x"):
        (tmp_path / name).mkdir()
    assert [one.name for one in other_ranks(tmp_path, 2)] == ["rank=10", "rank=2"]

    # WHEN one of them lives, THEN nothing may be taken from it
    living = lock(tmp_path / "rank=2" / RING_FILE)
    with pytest.raises(TraceExistsError, match="a living run"):
        list(other_ranks(tmp_path, 2))
    os.close(living)
    assert [one.name for one in other_ranks(tmp_path, 2)] == ["rank=10", "rank=2"]
