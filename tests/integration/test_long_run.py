"""Over a long run neither memory nor open files nor threads grow, and the disk stays below its bound."""

from __future__ import annotations

import gc
import json
import resource
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from overflow_recorder import TraceRecorder
from tests.integration.runs import (
    FRAMES,
    Seen,
    count_frames,
    input_of,
    make_model,
    make_the_ring_small,
    rows_of,
    wait_as_long_as_it_takes,
)
from tests.windows import bytes_of

if TYPE_CHECKING:
    from tests.crew import Crew

WARM, BATCHES = 400, 2000
MAX_BYTES = 1 << 18
MOST_GROWTH = 3 << 20  # the allocators' own slack; the rows of the measured batches alone are 10 MiB
SMALL_RING: dict[str, dict[str, Any]] = {
    "a window": {},
    "every batch, in many parts": {"every_n_batches": 1},
    "every batch, within a bound": {"every_n_batches": 1, "max_bytes": MAX_BYTES},
}
LARGE_RING: dict[str, dict[str, Any]] = {"every batch, in a ring that is not full": {"every_n_batches": 1}}


def resident_bytes() -> int:
    """The process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def open_descriptors() -> int:
    """How many there are; a part that is being sealed has one for a moment."""
    time.sleep(0.005)
    return len(list(Path("/proc/self/fd").iterdir()))


def holdings() -> dict[str, int]:
    """What the process holds now."""
    gc.collect()
    return {
        "bytes": resident_bytes(),
        "descriptors": min(open_descriptors() for _ in range(20)),
        "threads": threading.active_count(),
        "objects": len(gc.get_objects()),
    }


def record_for_long(path: str, seen: str, options: dict[str, Any], small: bool) -> None:
    """Record, and print what the process holds early and late."""
    if small:
        make_the_ring_small()
    wait_as_long_as_it_takes()
    model, counter = make_model(), Seen(seen)
    with TraceRecorder(model, path, **options), torch.no_grad():
        count_frames(model, counter)
        for batch in range(WARM + BATCHES):
            if batch == WARM:
                early = holdings()
            model(input_of(batch % 50))
        late = holdings()
    print(json.dumps([early, late]))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="what a process holds is read from Linux's /proc")
@pytest.mark.parametrize("name", [*SMALL_RING, *LARGE_RING])
def test_nothing_grows(name: str, crew: Crew, tmp_path: Path) -> None:
    # GIVEN a run of thousands of batches
    path, options = tmp_path / "run.parquet", {**SMALL_RING, **LARGE_RING}[name]
    ended = crew.run(record_for_long, path, tmp_path / "seen", options, name in SMALL_RING)
    assert ended.status == 0, ended.output
    early, late = json.loads(ended.output)

    # THEN at its end it holds what it held when it was warm
    assert late["bytes"] - early["bytes"] < MOST_GROWTH
    assert late["descriptors"] == early["descriptors"]
    assert late["threads"] == early["threads"]
    assert late["objects"] - early["objects"] < 100

    # AND what was recorded is there, or as much of it as the bound allows
    rows = rows_of(path)
    assert max(rows) == (WARM + BATCHES) * FRAMES - 1
    assert len(rows) == max(rows) + 1 or "max_bytes" in options or not options
    assert "max_bytes" not in options or bytes_of(path) <= MAX_BYTES
