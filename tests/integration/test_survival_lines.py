"""A kill at any line of the recorder's storage: while it starts, publishes, seals, removes and closes."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer.errors import EmptyTraceError, TraceError
from overflow_analyzer.format.run_info import EndInfo
from overflow_analyzer.trace.opening import open_trace
from tests.integration.runs import Seen, make_the_ring_small, wait_as_long_as_it_takes
from tests.windows import bytes_of, make_storage, publish, read_left

if TYPE_CHECKING:
    from types import FrameType

    from tests.crew import Crew

FRAMES = 120
WINDOW = 4
KILLS = 15
MAX_BYTES = 1 << 16


class Line:
    """Counts the lines that the recorder's storage runs, on all threads, and dies at one of them."""

    def __init__(self, dies_at: int) -> None:
        self._count = itertools.count()
        self._dies_at = dies_at
        threading.settrace(self.called)
        sys.settrace(self.called)

    def called(self, frame: FrameType, event: str, _: Any) -> Any:
        """A function is called: those of other files are not looked at."""
        path = Path(frame.f_code.co_filename)
        return self.reached if path.parts[-3:-1] == ("overflow_recorder", "storage") else None

    def reached(self, frame: FrameType, event: str, _: Any) -> Any:
        """A line is about to run."""
        if event == "line" and next(self._count) == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.reached

    def seen(self) -> int:
        """Lines so far."""
        return next(self._count)


def record(path: str, seen: str, options: dict[str, Any], dies_at: int) -> None:
    """Record, seal, close; print how many lines that took."""
    line, counter = Line(dies_at), Seen(seen)
    make_the_ring_small(128)
    wait_as_long_as_it_takes()
    storage = make_storage(Path(path), every_n_batches=1, max_frames_to_save=WINDOW, **options)
    for at in range(FRAMES):
        assert publish(storage, at * 10.0, rows=3) == at
        counter.frames = at + 1
        if at == FRAMES // 2:
            storage.window.keep_window()
    storage.close(EndInfo("closed", 1))
    print(line.seen())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"max_bytes": MAX_BYTES}], ids=["unbounded", "bounded"])
def test_a_kill_at_any_line(options: dict[str, Any], crew: Crew, tmp_path: Path) -> None:
    # GIVEN the number of lines of a whole run
    whole = crew.run(record, tmp_path / "whole.parquet", tmp_path / "whole", options, -1)
    assert whole.status == 0, whole.output
    lines = int(whole.output)
    kept = set(read_left(tmp_path / "whole.parquet").values)
    assert kept == set(range(FRAMES)) if not options else len(kept) < FRAMES

    # The first and the last lines, where it starts and closes, and any in between.
    targets = {*range(0, 400, 45), *range(lines - 600, lines, 70), *(random.randrange(lines) for _ in range(KILLS))}
    for target in sorted(targets):
        path, seen = tmp_path / f"{target}.parquet", Seen(tmp_path / f"{target}")
        ended = crew.run(record, path, tmp_path / f"{target}", options, target)
        if ended.status == 0:
            continue  # the writer's thread ran another way, and there were fewer lines
        assert ended.status == -signal.SIGKILL, ended.output

        # THEN its trace opens, unless it was killed before there was one; whole frames, none twice, true figures
        try:
            left = read_left(path)
        except TraceError:
            assert seen.frames == 0
            continue
        assert all(value == number * 10.0 for number, value in left.values.items())
        assert left.lost == ()

        # AND every frame whose publishing had returned is there; within a bound, the latest and the kept window
        published = set(range(seen.frames))
        middle = set(range(FRAMES // 2 - WINDOW + 1, FRAMES // 2 + 1))
        newest = set(range(max(0, seen.frames - WINDOW), seen.frames))
        if not options:
            assert published <= set(left.values)
        assert newest <= set(left.values)
        if seen.frames > FRAMES // 2 + 1:
            assert middle <= set(left.values)
        if options:
            assert bytes_of(path) <= MAX_BYTES

        # AND the next run can take its place
        make_storage(path, overwrite=True).close(EndInfo("closed", 1))
        with pytest.raises(EmptyTraceError):
            open_trace(path)
