"""Names beside the ring: in the file before anyone can refer to them, at the positions that were promised."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.format.names import encode_name, read_names
from overflow_recorder.storage.name_dictionary import NameDictionary

if TYPE_CHECKING:
    from pathlib import Path

TOO_MANY = "(more names than are kept)"


@settings(max_examples=50)
@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=20))
def test_positions_are_those_of_the_file(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    # GIVEN names, some of them again
    path = tmp_path_factory.mktemp("names") / "names"
    dictionary = NameDictionary(path)

    # WHEN each is asked for
    positions = [dictionary.position(name) for name in names]

    # THEN the file has it at that position, before anything is closed
    stored, torn = read_names(path.read_bytes())
    dictionary.close()
    assert torn == 0
    assert [stored[position] for position in positions] == names
    assert len(stored) == len(set(stored)) == len({"", *names})


def test_in_memory_there_is_no_file() -> None:
    dictionary = NameDictionary(None)
    assert [dictionary.position(name) for name in ("a", "", "b", "a")] == [1, 0, 2, 1]
    assert dictionary.names == ["", "a", "b"]
    dictionary.close()


def test_a_disk_that_takes_half_a_name_spoils_no_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a disk that is full in the middle of a name
    path = tmp_path / "names"
    dictionary = NameDictionary(path)
    assert dictionary.position("first") == 1
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[: len(data) // 2]))
    with pytest.raises(OSError, match="disk is full"):
        dictionary.position("a long name that does not fit")

    # WHEN it has room again
    monkeypatch.undo()
    assert dictionary.position("next") == 2

    # THEN the next name is where it says
    assert read_names(path.read_bytes())[0][:3] == ["", "first", "next"]
    dictionary.close()


def test_an_interruption_spoils_no_later_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a KeyboardInterrupt when a name was written but is not known yet
    path = tmp_path / "names"
    dictionary = NameDictionary(path)
    whole = os.write

    def interrupted(file: int, data: bytes) -> int:
        whole(file, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dictionary.position("interrupted")
    monkeypatch.undo()

    # THEN positions and file still agree
    assert [dictionary.position(name) for name in ("other", "interrupted")] == [1, 2]
    assert read_names(path.read_bytes())[0] == ["", "other", "interrupted"]
    dictionary.close()


def test_a_signal_handler_that_records_in_between_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a handler that runs while a name is being written and needs a name itself
    dictionary = NameDictionary(tmp_path / "names")
    whole = os.write
    refused: list[Any] = []

    def with_a_handler(file: int, data: bytes) -> int:
        with pytest.raises(RuntimeError, match="signal handler") as error:
            dictionary.position("the handler's")
        refused.append(error)
        return whole(file, data)

    monkeypatch.setattr(os, "write", with_a_handler)

    # WHEN the name is added, THEN it is, alone, and nobody waits for a lock
    assert dictionary.position("ours") == 1
    assert len(refused) == 1
    assert dictionary.names == ["", "ours"]
    dictionary.close()


def test_more_names_than_are_kept_share_one(tmp_path: Path) -> None:
    # GIVEN room for two names and the one for all others
    path = tmp_path / "names"
    dictionary = NameDictionary(path, max_bytes=2 * len(encode_name("layer.0")) + len(encode_name(TOO_MANY)))

    # WHEN five are used
    positions = [dictionary.position(f"layer.{at}") for at in range(5)]

    # THEN the first two keep their names, the others have one that says so, which is not the root's empty one
    assert [dictionary.names[position] for position in positions] == [
        "layer.0",
        "layer.1",
        TOO_MANY,
        TOO_MANY,
        TOO_MANY,
    ]
    assert read_names(path.read_bytes())[0] == ["", "layer.0", "layer.1", TOO_MANY]
    dictionary.close()


def test_an_earlier_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "names"
    path.write_bytes(encode_name("earlier"))
    dictionary = NameDictionary(path)
    dictionary.position("new")
    assert read_names(path.read_bytes())[0] == ["", "new"]
    dictionary.close()
    dictionary.close()
