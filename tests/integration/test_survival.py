"""However a run ends, what was recorded is in its trace when it is opened again."""

from __future__ import annotations

import json
import random
import signal
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from overflow_analyzer.trace.opening import open_trace
from overflow_recorder import TraceRecorder
from tests.integration.runs import FRAMES, ROWS, Seen, count_frames, input_of, make_model, rows_of, train, train_and_end

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crew import Crew

BATCHES = 6
MODES: dict[str, dict[str, Any]] = {
    "detection": {"max_frames_to_save": 10},
    "batches by number": {"trace_batch_nums": [2, 4]},
    "every batch": {"every_n_batches": 1},
    "every third batch": {"every_n_batches": 3, "max_frames_to_save": 4},
}


def kept(mode: str, frames: int) -> set[int]:
    """The numbers of the frames that a trace must have when so many have been seen."""
    if mode == "detection":
        return set(range(max(0, frames - 10), frames))
    if mode == "batches by number":
        return {frame for frame in range(frames) if frame // FRAMES in {2, 4}}
    if mode == "every batch":
        return set(range(frames))
    return {frame for frame in range(frames) if frame // FRAMES % 3 == 0 or frame >= frames - 4}


class Ending(NamedTuple):
    """How a run ends."""

    name: str
    status: int
    """As without a recorder."""
    how: str
    """What the trace says."""
    reason: str = ""


ENDINGS = [
    Ending("an exception", 1, "exception", "RuntimeError: not the recorder's"),
    Ending("an exception in someone else's hook", 1, "exception", "RuntimeError: not the recorder's"),
    Ending("sys.exit", 3, "exception", "SystemExit: 3"),
    Ending("SIGINT", -signal.SIGINT, "exception", "KeyboardInterrupt"),
    Ending("os._exit", 3, "killed"),
    Ending("os.abort", -signal.SIGABRT, "killed"),
    Ending("a segmentation fault", -signal.SIGSEGV, "killed"),
    Ending("SIGKILL", -signal.SIGKILL, "killed"),
    Ending("SIGTERM", -signal.SIGTERM, "killed"),
    Ending("SIGHUP", -signal.SIGHUP, "killed"),
    Ending("SIGXCPU", -signal.SIGXCPU, "killed"),
]
HANDLERS = [
    Ending("exits", 143, "exception", "SystemExit: 143"),
    Ending("closes", 143, "closed", "SIGTERM"),
    Ending("raises", 1, "exception", "RuntimeError: the handler's"),
]


@pytest.fixture(scope="module")
def control(crew: Crew, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """All rows of a run that ended well."""
    path = tmp_path_factory.mktemp("control")
    assert crew.run(train, path / "run.parquet", path / "seen", {"every_n_batches": 1}, BATCHES + 1).status == 0
    rows = rows_of(path / "run.parquet")
    assert len(rows) == (BATCHES + 1) * FRAMES
    assert sum(map(len, rows.values())) == (BATCHES + 1) * ROWS
    return rows


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.name)
def test_every_ending(
    mode: str, ending: Ending, crew: Crew, tmp_path: Path, control: dict[int, list[dict[str, Any]]]
) -> None:
    # GIVEN a run that ends in some way
    path = tmp_path / "run.parquet"
    ended = crew.run(train_and_end, path, tmp_path / "seen", MODES[mode], BATCHES, ending.name)

    # THEN it ends as it would without a recorder
    assert ended.status == ending.status, ended.output

    # AND every frame that was to be kept is there, once, with the figures of a run that ended well
    rows = rows_of(path)
    seen = Seen(tmp_path / "seen").frames
    assert seen >= BATCHES * FRAMES
    if ending.name == "an exception in someone else's hook":
        seen = max(rows) + 1  # its frames of the last batch are there too, one of them of a forward that raised
    assert kept(mode, seen) <= set(rows)
    finite = {number: group for number, group in rows.items() if number < BATCHES * FRAMES}
    assert finite == {number: control[number] for number in finite}

    # AND the trace says how it ended, and that nothing is lost
    trace = open_trace(path)
    (rank,) = trace.ranks
    assert (rank.ended, rank.lost, trace.lost, rank.dropped_frames) == (ending.how, (), (), 0)
    found = "" if rank.run.end is None else rank.run.end.reason or ""
    assert found.startswith(ending.reason)
    assert bool(found) == bool(ending.reason)


@pytest.mark.parametrize("mode", MODES)
def test_a_kill_at_any_moment(mode: str, crew: Crew, tmp_path: Path, control: dict[int, list[dict[str, Any]]]) -> None:
    for attempt in range(5):
        # GIVEN a run that is killed after a random number of frames
        path, file = tmp_path / f"run{attempt}.parquet", tmp_path / f"seen{attempt}"
        seen, target = Seen(file), random.randrange(BATCHES * FRAMES, 1500)
        member = crew.start(train, path, file, MODES[mode])
        member.wait_until(lambda seen=seen, target=target: seen.frames >= target)  # type: ignore[misc]
        member.kill()
        assert member.wait().status == -signal.SIGKILL

        # THEN every frame that was to be kept is there
        rows = rows_of(path)
        number = max(rows, default=-1) + 1 if mode != "batches by number" else seen.frames
        assert number >= seen.frames
        assert kept(mode, number) <= set(rows)
        known = {frame: group for frame, group in rows.items() if frame in control}
        assert known == {frame: control[frame] for frame in known}
        (rank,) = open_trace(path).ranks
        assert (rank.ended, rank.lost) == ("killed", ())


def train_with_a_handler(path: str, seen: str, options: dict[str, Any], handling: str) -> None:
    """Record without an end, with a handler for SIGTERM that the user has installed."""
    model, counter = make_model(), Seen(seen)
    recorder = TraceRecorder(model, path, **options)

    def handle(number: int, _: object) -> None:
        if handling == "raises":
            raise RuntimeError("the handler's")
        if handling == "closes":
            recorder.close(reason="SIGTERM")
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, handle)
    with recorder:
        count_frames(model, counter)
        batch = 0
        while True:
            model(input_of(batch))
            batch += 1


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda ending: ending.name)
def test_the_users_own_handler_for_sigterm_runs_as_always(handler: Ending, crew: Crew, tmp_path: Path) -> None:
    for attempt in range(6):
        # GIVEN a run with a handler for SIGTERM, which comes at a random moment, in the middle of a frame too
        path, file = tmp_path / f"run{attempt}.parquet", tmp_path / f"seen{attempt}"
        seen, target = Seen(file), random.randrange(50, 500)
        member = crew.start(train_with_a_handler, path, file, {"every_n_batches": 1}, handler.name)
        member.wait_until(lambda seen=seen, target=target: seen.frames >= target)  # type: ignore[misc]
        member.kill(signal.SIGTERM)

        # THEN the handler decides how the process ends, and nobody waits for a lock
        ended = member.wait()
        assert ended.status == handler.status, ended.output
        assert "RecorderWarning" not in ended.output

        # AND the trace is whole and says how it ended
        rows = rows_of(path)
        assert set(range(seen.frames)) <= set(rows)
        (rank,) = open_trace(path).ranks
        assert rank.run.end is not None
        assert (rank.ended, rank.run.end.reason, rank.lost) == (handler.how, handler.reason, ())


def show_handlers(path: str, seen: str) -> None:
    """Print how each signal is handled before, while and after something is recorded, faults included."""

    def handlers() -> list[str]:
        return [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())]

    print(json.dumps(handlers()))
    model = make_model()
    with TraceRecorder(model, path, every_n_batches=1):
        model(input_of(0))
        print(json.dumps(handlers()))
    print(json.dumps(handlers()))


def test_no_signal_handler_is_installed(crew: Crew, tmp_path: Path) -> None:
    ended = crew.run(show_handlers, tmp_path / "run.parquet", "")
    assert ended.status == 0
    before, during, after = map(json.loads, ended.output.splitlines())
    assert before == during == after
    assert len(before) > 30


def train_without_a_close(path: str, seen: str, ending: str) -> None:
    """Start a recorder that nobody closes, and come to the end of the script."""
    model, counter = make_model(), Seen(seen)
    TraceRecorder(model, path, every_n_batches=1).start()
    count_frames(model, counter)
    for batch in range(BATCHES):
        model(input_of(batch))
    if ending == "an exception":
        raise RuntimeError("unhandled")


@pytest.mark.parametrize(("ending", "status", "how"), [("", 0, "closed"), ("an exception", 1, "exception")])
def test_a_script_that_never_closes_its_recorder(
    ending: str, status: int, how: str, crew: Crew, tmp_path: Path
) -> None:
    path = tmp_path / "run.parquet"
    ended = crew.run(train_without_a_close, path, tmp_path / "seen", ending)
    assert ended.status == status, ended.output
    assert set(rows_of(path)) == set(range(BATCHES * FRAMES))
    (rank,) = open_trace(path).ranks
    assert rank.ended == how
    assert rank.ring.num_rows == 0
