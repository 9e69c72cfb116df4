"""How the cost of a frame grows with the number of modules and with a tensor's size: straight lines, one hopes.

python -m benchmarks.growth
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from tabulate import tabulate
from torch import nn

from overflow_recorder import TraceRecorder


class Chain(nn.Module):
    """Calls its modules one after the other; each passes a new tensor on, so that every output is measured."""

    def __init__(self, modules: int) -> None:
        super().__init__()
        self.links = nn.ModuleList(nn.Hardtanh(-1e30, 1e30) for _ in range(modules))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` gone through every link."""
        for link in self.links:
            x = link(x)
        return x


def seconds_of_a_call(model: nn.Module, x: torch.Tensor, repeats: int) -> float:
    """Return the fastest of several calls, in this thread's own processor time."""
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        model(x)
        times.append(time.thread_time() - began)
    return min(times)


def cost_of_a_frame(modules: int, elements: int, dtype: torch.dtype, repeats: int) -> float:
    """Return what recording adds to a frame, in microseconds."""
    model, x = Chain(modules), torch.randn(elements).to(dtype)
    base = seconds_of_a_call(model, x, repeats)
    with tempfile.TemporaryDirectory() as directory, TraceRecorder(model, Path(directory) / "run", every_n_batches=1):
        model(x)
        watched = seconds_of_a_call(model, x, repeats)
    return (watched - base) / (modules + 1) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    rows = [
        [n, f"{cost_of_a_frame(n, 64, torch.float32, repeats):.1f}"] for n in (10, 30, 100, 300, 1000, 3000, 10_000)
    ]
    print(tabulate(rows, ["modules", "us a frame (2 rows, 1 new tensor of 64 elements)"]), end="\n\n")
    rows = []
    for power in range(8, 25, 2):
        costs = [cost_of_a_frame(4, 1 << power, dtype, repeats) for dtype in (torch.float32, torch.bfloat16)]
        rows.append([f"2^{power}", *(f"{cost:.1f}" for cost in costs), f"{costs[0] / (1 << power) * 1e3:.3f}"])
    print(tabulate(rows, ["elements", "us a frame, float32", "us a frame, bfloat16", "ns an element, float32"]))


if __name__ == "__main__":
    main()
