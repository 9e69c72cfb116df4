"""Fuzz every reader: forged and damaged traces by seed, each given to every command, within memory and time.

    python -m tests.verification.fuzz_readers --minutes 60

Prints each complaint with its seed and keeps the trace that caused it. The exit code is their number, at most 100.
Traces are tried in child processes, some in each: a trace that ends its process is a complaint too, and the next child
goes on behind it.
"""

from __future__ import annotations

import argparse
import faulthandler
import mmap
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.verification.fuzzing import COMMANDS, ORIGINALS, Forger, complaint, write_originals

if TYPE_CHECKING:
    from collections.abc import Callable

MEMORY_LIMIT = 3 << 30  # bytes of address space; Arrow and its threads take one GiB of it before anything is read
SECONDS_A_TRACE = 60  # of processor time; by the clock ten times as many, since a busy machine is no fault
TRACES_A_CHILD = 50


class Progress:
    """What a child has done, in memory that its parent sees however it ends."""

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 16)).cast("Q")

    @property
    def tried(self) -> int:
        """Traces that were begun."""
        return self._numbers[0]

    @tried.setter
    def tried(self, count: int) -> None:
        self._numbers[0] = count

    @property
    def complaints(self) -> int:
        """What was complained about so far."""
        return self._numbers[1]

    @complaints.setter
    def complaints(self, count: int) -> None:
        self._numbers[1] = count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on")
    parser.add_argument("--traces", type=int, default=None, help="stop after this many traces")
    parser.add_argument("--seed", type=int, default=None, help="of the first trace; the next has the next number")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="where traces that failed are kept")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["OVERFLOW_ANALYZE_TRACEBACK"] = "1"
    warnings.simplefilter("error")
    first = int.from_bytes(os.urandom(4), "little") if arguments.seed is None else arguments.seed
    progress, stop = Progress(), time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        in_child(lambda: write_originals(work))
        originals = [work / name for name in ORIGINALS]
        while time.monotonic() < stop and progress.tried != arguments.traces:
            begun = progress.tried
            count = min(TRACES_A_CHILD, (arguments.traces or sys.maxsize) - begun)
            seeds = range(first + begun, first + begun + count)

            def try_some(seeds: range = seeds) -> None:
                for seed in seeds:
                    if time.monotonic() < stop:
                        progress.tried += 1
                        progress.complaints += try_one(seed, originals, work / "forged", arguments.keep)

            ended = in_child(try_some)
            if ended is not None:
                progress.complaints += 1
                seed = first + progress.tried - 1
                print(f"seed {seed}: {ended}", flush=True)
                keep(work / "forged", arguments.keep, seed)
    print(f"{progress.tried} traces from seed {first}, {progress.complaints} complaints, peak {peak_megabytes()} MB")
    return min(progress.complaints, 100)


def in_child(work: Callable[[], object]) -> str | None:
    """Do something in a forked process; return how that ended, None where it ended well."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            work()
            sys.stdout.flush()
            os._exit(0)
        except BaseException:  # noqa: BLE001  a child must never go on as its parent
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not code:
        return None
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def try_one(seed: int, originals: list[Path], work: Path, kept: Path) -> int:
    """Forge one trace, ask every command about it, and return how many complaints there are."""
    work.mkdir()
    trace = Forger(seed).forge(originals, work)
    if sys.stderr.isatty():
        print(f"seed {seed}", end="\r", file=sys.stderr, flush=True)
    faulthandler.register(signal.SIGPROF, chain=True)
    signal.setitimer(signal.ITIMER_PROF, SECONDS_A_TRACE)
    faulthandler.dump_traceback_later(10 * SECONDS_A_TRACE, exit=True)
    found = [said for command in COMMANDS if (said := complaint(command, trace, work)) is not None]
    faulthandler.cancel_dump_traceback_later()
    signal.setitimer(signal.ITIMER_PROF, 0)
    for said in found:
        print(f"seed {seed}: {said}")
    if found:
        keep(work, kept, seed)
    else:
        shutil.rmtree(work)
    return len(found)


def keep(work: Path, kept: Path, seed: int) -> None:
    """Keep the trace that was worked on."""
    kept.mkdir(exist_ok=True)
    for name in ORIGINALS:
        if (work / name).exists():
            shutil.move(work / name, kept / f"{seed}-{name}")
    shutil.rmtree(work)


def peak_megabytes() -> int:
    """Return the most resident memory of a child so far."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
