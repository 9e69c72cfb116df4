"""Only regular files of a sane size are read."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from overflow_analyzer.format.files import open_regular, read_regular


def test_a_file_and_a_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"data")
    (tmp_path / "link").symlink_to("a")
    assert read_regular(tmp_path / "link", 4) == b"data"


def test_a_file_beyond_the_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"data")
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_regular(tmp_path / "a", 3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(tmp_path / "pipe")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_a_device_without_an_end() -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(Path("/dev/zero"), 10)


def test_a_socket_a_loop_and_nothing(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("socket", "loop", "nothing"):
            with pytest.raises(OSError, match=r"No such|symbolic links"):
                open_regular(tmp_path / name)
