"""Files are whole under their name or not there, and nothing is lost to them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overflow_analyzer.convert.outputs import OutputError, new_file


def contents(directory: Path) -> dict[str, str]:
    return {one.name: one.read_text() for one in directory.iterdir()}


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    with new_file(tmp_path / "a", overwrite=False) as file:
        file.write(b"half")
        assert not (tmp_path / "a").exists()
    assert contents(tmp_path) == {"a": "half"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_error_leaves_what_was_there(overwrite: bool, tmp_path: Path) -> None:
    # GIVEN a file that may be replaced, or none
    if overwrite:
        (tmp_path / "a").write_text("old")

    # WHEN writing fails in the middle
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "a", overwrite=overwrite) as file:
        file.writelines(b"new" if number else bytes(1 // number) for number in (1, 0))

    # THEN the directory is as it was
    assert contents(tmp_path) == ({"a": "old"} if overwrite else {})


def test_nothing_is_replaced_unless_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(OutputError, match="there already"), new_file(tmp_path / "a", overwrite=False):
        pytest.fail("the file was opened")
    with new_file(tmp_path / "a", overwrite=True) as file:
        file.write(b"new")
    assert contents(tmp_path) == {"a": "new"}


def test_what_comes_in_the_meantime_is_not_replaced(tmp_path: Path) -> None:
    # GIVEN a place that was free WHEN somebody else takes it while we write
    with pytest.raises(OutputError, match="there already"), new_file(tmp_path / "a", overwrite=False):
        (tmp_path / "a").write_text("theirs")

    # THEN it stays theirs
    assert contents(tmp_path) == {"a": "theirs"}


def test_where_there_are_no_links_a_rename_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    with new_file(tmp_path / "a", overwrite=False) as file:
        file.write(b"whole")
    assert contents(tmp_path) == {"a": "whole"}


@pytest.mark.parametrize("path", ["absent/a", "."])
def test_a_place_where_no_file_can_be(path: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError), new_file(tmp_path / path, overwrite=True):
        pytest.fail("the file was opened")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk that is full, under the temporary file's name
    monkeypatch.setattr(os, "getpid", lambda: 7)
    (tmp_path / ".a.7.tmp").symlink_to("/dev/full")

    # WHEN something is written there
    with pytest.raises(OutputError, match="No space left"), new_file(tmp_path / "a", overwrite=False) as file:
        file.write(b"x" * 100_000)

    # THEN nothing is left
    assert contents(tmp_path) == {}
