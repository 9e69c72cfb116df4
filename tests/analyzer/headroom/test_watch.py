"""Following a run that grows while it is looked at."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer.errors import TraceError
from overflow_analyzer.format.files import RING_FILE, RUN_FILE
from overflow_analyzer.format.float_formats import FLOAT_FORMATS
from overflow_analyzer.headroom.tally import Nearest
from overflow_analyzer.headroom.watching import Alarm, Headroom, Snapshot, Watcher
from overflow_analyzer.render.watch import LineDisplay, ScreenDisplay
from overflow_analyzer.trace.rank_trace import RankTrace
from tests.analyzer.commands import analyze, analyze_terminal
from tests.analyzer.samples import HOSTILE, INF, NAN, write_clean, write_hostile, write_well_known
from tests.rings import Ring, write_killed
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.format.parts import RowGroup

LIVING = replace(RUN, end=None)
SCRIPT = [sys.executable, "-m", "overflow_analyzer", "watch"]


def growing(count: int, start: int = 0) -> list[Frame]:
    """A frame a batch, its output doubling from one to the next."""
    return [frame(at, at, "a", tensor("output", "output", 0, 2.0**at), in_batch=0) for at in range(start, count)]


def grow(path: Path, frames: Sequence[Frame]) -> None:
    """What the ring of a run looks like a moment later."""
    Ring(64).append(frames).save(path / "rank=0")


def test_each_look_reads_what_is_new(tmp_path: Path) -> None:
    # GIVEN a run that is looked at
    path = write_killed(tmp_path / "run.parquet", growing(3), LIVING)
    watcher = Watcher(path)
    first = watcher.snapshot()

    # WHEN it has gone on by two batches, THEN the next look has these
    grow(path, growing(5))
    second = watcher.snapshot()
    assert (first.batch_number, first.frame_number, first.changed) == (2, 2, True)
    assert (second.batch_number, second.frame_number, second.changed) == (4, 4, True)

    # WHEN it has not gone on, THEN nothing is new, and the last headroom still shows
    third = watcher.snapshot()
    assert (third.changed, third.worst) == (False, second.worst)


def test_headroom_is_that_of_what_came_last(tmp_path: Path) -> None:
    path = write_killed(tmp_path / "run.parquet", growing(5), LIVING)
    watcher = Watcher(path)
    watcher.snapshot()
    grow(path, growing(11, start=5))
    (worst,) = watcher.snapshot().worst
    # log2(65504 / 2**10)
    assert worst.bits == pytest.approx(5.99929, abs=1e-5)
    assert (worst.module_name, worst.nearest.context, worst.nearest.abs_max) == ("a", "output", 1024.0)


def test_the_worst_come_first_and_only_formats_with_a_limit(tmp_path: Path) -> None:
    # GIVEN modules of growing output, and one whose integers have no such limit
    frames = [frame(at, 0, f"m{at}", tensor("output", "output", 0, 2.0**at)) for at in range(8)]
    counted = frame(8, 0, "counter", tensor("output", "output", 0, 1e18, dtype="int64"))
    path = write_trace(tmp_path / "run.parquet", [*frames, counted])

    # THEN those nearest to the limit are named
    assert [one.module_name for one in Watcher(path, most=3).snapshot().worst] == ["m7", "m6", "m5"]


def test_a_tensor_is_alarmed_about_once(tmp_path: Path) -> None:
    # GIVEN a run whose output is bad in two batches, and an ignored mask
    bad = tensor("output", "output", 0, NAN, nan_count=2, posinf_count=1, neginf_count=3, finite_abs_max=1.0)
    mask = tensor("input", "input[mask]", 0, INF, neginf_count=4, finite_abs_max=0.0, note="ignored")
    frames = [frame(at, at, "a", mask, bad) for at in range(3)]
    path = write_killed(tmp_path / "run.parquet", frames[:2], LIVING)
    watcher = Watcher(path)

    # THEN there is one alarm, for the first, with its counts
    assert watcher.snapshot().alarms == (Alarm(0, 0, 0, "a", "output", 2, 4),)
    grow(path, frames)
    assert watcher.snapshot().alarms == ()


def test_what_is_proven_finite_is_read_for_its_headroom_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN many sealed parts, one of them with a nan
    frames = growing(12)
    frames[4] = frame(4, 4, "a", tensor("output", "output", 0, NAN, nan_count=1, finite_abs_max=1.0))
    path = write_trace(tmp_path / "run.parquet", frames, frames_per_part=2)
    read: list[int] = []
    real = RankTrace.read

    def spy(self: RankTrace, group: RowGroup, columns: Sequence[str] | None = None) -> Any:
        read.append(group.first_frame)
        return real(self, group, columns)

    monkeypatch.setattr(RankTrace, "read", spy)

    # WHEN the run is looked at for the first time
    look = Watcher(path).snapshot()

    # THEN the bad part and the last one were read
    assert read == [4, 10]
    assert [alarm.frame_number for alarm in look.alarms] == [4]
    assert look.frame_number == 11


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        Watcher(tmp_path / "absent").snapshot()
    assert analyze("watch", tmp_path / "absent").code == 3


LOOK = Snapshot(("still running",), 3, 17, changed=True, worst=(), alarms=())


def test_a_line_a_look_where_something_is_new() -> None:
    display = LineDisplay()
    assert display.show(LOOK) == "still running  batch 3  frame 17  0 alarms\n"
    assert display.show(replace(LOOK, changed=False)) == ""
    assert display.show(replace(LOOK, changed=False, ended=("closed",))) == "closed  batch 3  frame 17  0 alarms\n"


def test_alarms_are_lines_of_their_own_and_counted() -> None:
    display = LineDisplay()
    look = replace(LOOK, alarms=(Alarm(1, 3, 16, "", HOSTILE, 2, 1), Alarm(0, 3, 17, "b", "weight", 0, 5)))
    assert display.show(look).splitlines() == [
        "ALARM rank 1 batch 3 frame 16: 2 nan, 1 inf in (root) \\x1b[31m`|<script>模块\\u202e",
        "ALARM rank 0 batch 3 frame 17: 5 inf in b weight",
        "still running  batch 3  frame 17  2 alarms",
    ]


def test_a_display_takes_off_what_it_put_there() -> None:
    # GIVEN a display that has shown something
    display = ScreenDisplay("run.parquet")
    before = display.show(LOOK)

    # WHEN it shows the next, THEN as many lines are erased as there were
    assert before.count("\n") == 4
    assert display.show(LOOK).startswith("\x1b[4F\x1b[J")


@pytest.mark.parametrize(("write", "code"), [(write_clean, 0), (write_well_known, 1), (write_hostile, 1)])
def test_watching_ends_with_the_run(write: object, code: int, tmp_path: Path) -> None:
    ran = analyze("watch", write(tmp_path / "run.parquet"))  # type: ignore[operator]  # one of the three
    assert (ran.code, ran.err) == (code, "")


def test_a_killed_run_has_ended(tmp_path: Path) -> None:
    ran = analyze("watch", write_killed(tmp_path / "run.parquet", growing(3), LIVING))
    assert ran.code == 0
    assert ran.out.startswith("killed  batch 2  frame 2  0 alarms")


def test_a_living_run_is_followed_until_it_ends(tmp_path: Path) -> None:
    # GIVEN a run that somebody is recording, told by the lock on its ring
    path = write_killed(tmp_path / "run.parquet", growing(3), LIVING)
    with (path / "rank=0" / RING_FILE).open("rb") as ring:
        fcntl.flock(ring, fcntl.LOCK_EX)
        process = subprocess.Popen([*SCRIPT, str(path), "--interval", "0.1"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        first = process.stdout.readline()

        # WHEN it goes on, and then ends
        (path / "rank=0" / RING_FILE).write_bytes(_grown(path, growing(6)))
        second = process.stdout.readline()
        (path / "rank=0" / RUN_FILE).write_text(RUN.to_json())

    # THEN each is told, and the command is done
    rest = process.stdout.read()
    process.stdout.close()
    assert first.startswith("still running  batch 2  frame 2")
    assert second.startswith("still running  batch 5  frame 5")
    assert rest.startswith("closed  batch 5  frame 5")
    assert process.wait() == 0


def _grown(path: Path, frames: Sequence[Frame]) -> bytes:
    elsewhere = path.parent / "elsewhere"
    Ring(256).append(frames).save(elsewhere)
    return (elsewhere / RING_FILE).read_bytes()


def test_before_the_first_frame_it_waits(tmp_path: Path) -> None:
    # GIVEN a run that has recorded nothing yet
    path = write_trace(tmp_path / "run.parquet", [], LIVING)
    Ring(64).save(path / "rank=0")
    process = subprocess.Popen(
        [*SCRIPT, str(path), "--interval", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None

    # WHEN the first frames come
    assert "waiting for the first frame" in process.stderr.readline()
    grow(path, growing(2))

    # THEN they are shown
    assert process.stdout.readline().startswith("killed  batch 1  frame 1")
    process.communicate()
    assert process.returncode == 0


def test_once_does_not_wait(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.parquet", [], LIVING)
    Ring(64).save(path / "rank=0")
    assert analyze("watch", path, "--once").code == 3


def test_an_interrupt_ends_it_without_a_traceback(tmp_path: Path) -> None:
    # GIVEN a command that follows a living run
    path = write_killed(tmp_path / "run.parquet", growing(3), LIVING)
    with (path / "rank=0" / RING_FILE).open("rb") as ring:
        fcntl.flock(ring, fcntl.LOCK_EX)
        process = subprocess.Popen(
            [*SCRIPT, str(path), "--interval", "0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()

        # WHEN Ctrl-C is pressed
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()

    # THEN it is gone, quietly
    assert (process.returncode, out, err) == (130, "", "")


def test_on_a_terminal_the_display_stays_in_place(tmp_path: Path) -> None:
    # GIVEN a terminal of 60 columns WHEN a run is watched on it
    ran = analyze_terminal("watch", write_well_known(tmp_path / "run.parquet"), columns=60)

    # THEN the worst modules are a table that fits, and alarms are red
    assert ran.code == 1
    assert "headroom bits" in ran.out
    assert "\n         0.06" in ran.out
    assert "\x1b[31mALARM" in ran.out
    assert all(len(line) < 60 + len("\x1b[31m\x1b[0m") for line in ran.out.splitlines())


def test_where_nobody_can_tell_whether_a_run_lives_patience_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a trace that another tool wrote, and a clock that runs fast
    path = write_trace(tmp_path / "run.parquet", growing(3), LIVING)
    clock = iter(range(0, 100_000, 25))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(time, "sleep", lambda _: None)

    # THEN watching ends by itself
    assert analyze("watch", path).out.startswith("unknown  batch 2  frame 2")


def test_looking_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN looks that take three seconds each
    path = write_trace(tmp_path / "run.parquet", growing(3), LIVING)
    clock = iter(range(0, 100_000, 3))
    slept: list[float] = []
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(time, "sleep", slept.append)

    # WHEN they were to come every second, THEN most of the time is still the run's own
    analyze("watch", path, "--interval", "1")
    assert min(slept) >= 60


def test_a_display_draws_how_near_the_limit_was_at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN looks at which a figure is 8, 4 and 1 bits from its limit
    monkeypatch.setattr("overflow_analyzer.render.watch.shows_bars", lambda _: True)
    nearest = Nearest("output", "output", "float16", 0, 1.0, FLOAT_FORMATS["float16"])
    display = ScreenDisplay("run.parquet")
    looks = [display.show(replace(LOOK, worst=(Headroom(bits, "m", nearest),))) for bits in (8.0, 4.0, 1.0)]
    # THEN from the second on there is a curve, which rises towards the limit: 4 bits are 4/7 of the way from 8 to 1
    assert [look.count("look by look") for look in looks] == [0, 1, 1]
    assert "nearest to a limit, look by look  ▁▅█\n" in looks[2]
