"""Fuzz every reader: forged and damaged traces by seed, each given to every command, within memory and time.

    python -m tests.verification.fuzz_readers --minutes 60

Prints each complaint with its seed and keeps the trace that caused it. The exit code is their number, at most 100.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.verification.fuzzing import COMMANDS, Forger, complaint, write_originals

MEMORY_LIMIT = 3 << 30  # bytes of address space; Arrow and its threads take one GiB of it before anything is read
SECONDS_A_TRACE = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on")
    parser.add_argument("--traces", type=int, default=None, help="stop after this many traces")
    parser.add_argument("--seed", type=int, default=None, help="of the first trace; the next has the next number")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="where traces that failed are kept")
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    os.environ["OVERFLOW_ANALYZE_TRACEBACK"] = "1"
    warnings.simplefilter("error")
    first = int.from_bytes(os.urandom(4), "little") if arguments.seed is None else arguments.seed
    complaints = seed = 0
    stop = time.monotonic() + 60 * arguments.minutes
    with tempfile.TemporaryDirectory() as work:
        originals = write_originals(Path(work))
        while time.monotonic() < stop and seed != arguments.traces:
            complaints += try_one(first + seed, originals, Path(work) / "forged", arguments.keep)
            seed += 1
    print(f"{seed} traces from seed {first}, {complaints} complaints, peak {peak_megabytes()} MB")
    return min(complaints, 100)


def try_one(seed: int, originals: list[Path], work: Path, keep: Path) -> int:
    """Forge one trace, ask every command about it, and return how many complaints there are."""
    work.mkdir()
    trace = Forger(seed).forge(originals, work)
    if sys.stderr.isatty():
        print(f"seed {seed}", end="\r", file=sys.stderr, flush=True)
    faulthandler.dump_traceback_later(SECONDS_A_TRACE, exit=True)
    found = [said for command in COMMANDS if (said := complaint(command, trace, work)) is not None]
    faulthandler.cancel_dump_traceback_later()
    for said in found:
        print(f"seed {seed}: {said}")
    if found:
        keep.mkdir(exist_ok=True)
        shutil.move(trace, keep / f"{seed}-{trace.name}")
    shutil.rmtree(work)
    return len(found)


def peak_megabytes() -> int:
    """Return the most resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    sys.exit(main())
