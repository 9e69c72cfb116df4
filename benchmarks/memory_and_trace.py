"""Memory above the plain run, bytes a row in the trace, rows a second through the writer.

Each run has a process of its own.

python -m benchmarks.memory_and_trace
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate


def child(directory: str, dtype: str, steps: int) -> None:
    """Train an mt5-small shape and print what it took."""
    import contextlib

    import torch

    from benchmarks.training_models import WORKLOADS
    from overflow_recorder import TraceRecorder

    torch.manual_seed(0)
    workload = WORKLOADS["mt5-small"]()
    model = workload.model.to(getattr(torch, dtype)).train()
    path = Path(directory) / "run.parquet"
    watched = bool(directory)
    recorder = TraceRecorder(model, path, every_n_batches=1) if watched else contextlib.nullcontext()
    with recorder:
        for _ in range(steps):
            workload.loss().backward()  # type: ignore[no-untyped-call]
            model.zero_grad()
    print(json.dumps({"peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))


def peak_kib(directory: str, dtype: str, steps: int) -> int:
    """Return the peak resident memory of one run."""
    command = [sys.executable, "-m", "benchmarks.memory_and_trace", "--child", directory, dtype, str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1])["peak_kib"])


def writer_rows_a_second() -> float:
    """Return how fast frames go through ring, Arrow and Parquet, measured over a million rows."""
    import torch

    from overflow_recorder import TraceRecorder

    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(1000)])
    x = torch.ones(4)
    with tempfile.TemporaryDirectory() as directory:
        began = time.perf_counter()
        with TraceRecorder(model, Path(directory) / "run", every_n_batches=1):
            for _ in range(500):
                model(x)
        return 500 * 2 * 1001 / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        directory, dtype, steps = arguments.child
        child(directory, dtype, int(steps))
        return
    from overflow_analyzer import open_trace

    rows = []
    for dtype in ("float32", "bfloat16"):
        with tempfile.TemporaryDirectory() as directory:
            base = min(peak_kib("", dtype, arguments.steps) for _ in range(2))
            watched = min(peak_kib(directory, dtype, arguments.steps) for _ in range(1))
            trace = open_trace(Path(directory) / "run.parquet").ranks[0]
            rows.append(
                [dtype, base // 1024, f"{(watched - base) / 1024:.1f}", trace.rows, f"{trace.bytes / trace.rows:.1f}"]
            )
    headers = ["mt5-small shape", "plain run, MiB", "above it, MiB", "rows", "bytes a row"]
    print(tabulate(rows, headers), end="\n\n")
    print(f"{writer_rows_a_second():,.0f} rows a second through hooks, ring, Arrow and Parquet")


if __name__ == "__main__":
    main()
