"""A window, a directory and a writer, for tests that seal."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer.format.parts import read_footer
from overflow_recorder.storage.directory import TraceDirectory
from overflow_recorder.storage.window import Window
from overflow_recorder.storage.writer import PartWriter
from tests.windows import RUN, append

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE = 60.0
"""Seconds after which something that must happen has not; nothing is measured with it."""


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.005)


class Bench:
    """A window, a directory and a writer whose thread is started by who needs it."""

    def __init__(self, path: Path, capacity: int, window_frames: int, max_bytes: int | None, **options: Any) -> None:
        self.path = path
        self.errors: list[Exception] = []
        self.directory = TraceDirectory(path, 0, 1, max_bytes=max_bytes, overwrite=False)
        self.directory.write_run(RUN)
        self.window = Window(self.directory.path, capacity, window_frames)
        self.writer = PartWriter(
            self.window, self.directory, RUN, options.pop("numbered", ()), self.errors.append, **options
        )

    def fill(self, frames: int = 20) -> None:
        """Append frames as a recorder does, who tells the writer of each."""
        for at in range(frames):
            append(self.window, at * 10.0)
            self.writer.notice()

    def hang(self, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
        """Let the disk hang; return what is set once it does, and what to set for it to answer."""
        begun, answers, seal = threading.Event(), threading.Event(), self.directory.seal

        def hanging_seal(*arguments: Any) -> None:
            begun.set()
            assert answers.wait(PATIENCE)
            seal(*arguments)

        monkeypatch.setattr(self.directory, "seal", hanging_seal)
        return begun, answers

    def parts(self) -> list[tuple[int, int, int]]:
        """First frame, last frame and rows of each row group of each part."""
        footers = [read_footer(one) for one in sorted(self.directory.path.glob("part-*.parquet"))]
        return [(group.first_frame, group.last_frame, group.rows) for one in footers for group in one.row_groups]

    def files(self) -> int:
        return len(list(self.directory.path.glob("part-*.parquet")))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """``bench(capacity=64, window_frames=3)`` makes one; all are stopped at the end."""
    made: list[Bench] = []

    def make(capacity: int = 64, window_frames: int = 3, max_bytes: int | None = None, **options: Any) -> Bench:
        made.append(Bench(tmp_path / f"run{len(made)}.parquet", capacity, window_frames, max_bytes, **options))
        return made[-1]

    yield make
    for one in made:
        one.writer.stop()
        one.window.close()
        one.directory.release()
