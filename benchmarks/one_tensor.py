"""What the figures of one tensor cost: ours, today's way, and one read of its bytes, by dtype, size and layout.

python -m benchmarks.one_tensor --dtypes bfloat16 float32 --sizes 4096 131072 16777216 --rounds 15
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from tabulate import tabulate

from overflow_recorder.statistics import DeviceBuffer, measure

DTYPES = ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int64"]
SIZES = [4096, 32768, 131072, 1 << 20, 1 << 24]
SAMPLE_SECONDS = 5e-4  # a sample of a quick function is many calls

Way = Callable[[torch.Tensor], object]


def upstream(tensor: torch.Tensor) -> tuple[float, float, bool, bool]:
    """Abs min, abs max, has nan, has inf, as transformers.debug_utils takes them for each tensor."""
    magnitudes = tensor.abs()
    extrema = magnitudes.min().item(), magnitudes.max().item()
    return *extrema, bool(torch.isnan(tensor).any().item()), bool(torch.isinf(tensor).any().item())


def one_read(tensor: torch.Tensor) -> object:
    """One reduction, by torch's threads, over the bytes in which the elements lie."""
    return _words(tensor).sum().item()


def one_read_by_numpy(tensor: torch.Tensor) -> object:
    """The same by one thread; on some machines it is the quicker."""
    return np.maximum.reduce(_words(tensor).numpy())


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, as 64-bit integers."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = tensor.as_strided((span,), (1,)).view(torch.uint8)
    return flat[: flat.numel() // 8 * 8].view(torch.int64)


WAYS: dict[str, Way] = {
    "ours": lambda tensor: measure(tensor, "extrema"),
    "full": lambda tensor: measure(tensor, "full"),
    "upstream": upstream,
    "read": one_read,
    "read by numpy": one_read_by_numpy,
}

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda matrix: matrix,
    "transposed": lambda matrix: matrix.t(),
    "strided": lambda matrix: matrix[:, : matrix.shape[1] * 3 // 4],
}


def make(dtype: str, size: int, layout: str) -> torch.Tensor:
    """A matrix of normally distributed numbers in this layout (three quarters of `size`, where strided)."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(size, generator=generator).reshape(64, -1)
    kind: torch.dtype = getattr(torch, dtype)
    return LAYOUTS[layout]((numbers if kind.is_floating_point else numbers * 1000).to(kind))


def seconds(way: Way, tensor: torch.Tensor, calls: int) -> float:
    """The time of one call, by the wall clock."""
    start = time.perf_counter()
    for _ in range(calls):
        way(tensor)
    return (time.perf_counter() - start) / calls


def compare(tensor: torch.Tensor, rounds: int) -> dict[str, list[float]]:
    """Samples of each way that can read this tensor, taken in turn, in another order each round."""
    calls: dict[str, int] = {}
    for name, way in WAYS.items():
        try:
            way(tensor)
        except (NotImplementedError, RuntimeError):  # upstream: no abs() of a float8
            continue
        calls[name] = max(1, int(SAMPLE_SECONDS / seconds(way, tensor, 3)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            samples[name].append(seconds(WAYS[name], tensor, calls[name]))
    return samples


def row(dtype: str, size: int, layout: str, rounds: int) -> list[object]:
    """Measure one kind of tensor; times in microseconds."""
    samples = compare(make(dtype, size, layout), rounds)
    medians = {name: statistics.median(times) for name, times in samples.items()}
    read = min(medians["read"], medians["read by numpy"])
    quartiles = statistics.quantiles(samples["ours"], n=4)
    upstream_median = medians.get("upstream")
    return [
        dtype,
        f"{size:,}",
        layout,
        medians["ours"] * 1e6,
        f"{quartiles[0] * 1e6:.1f}-{quartiles[2] * 1e6:.1f}",
        medians["read"] * 1e6,
        medians["read by numpy"] * 1e6,
        medians["ours"] / medians["read"],
        medians["ours"] / read,
        min(samples["ours"]) / min(samples["read"]),
        "cannot" if upstream_median is None else upstream_median * 1e6,
        None if upstream_median is None else upstream_median / medians["ours"],
        medians["full"] * 1e6,
    ]


HEADERS = [
    "dtype",
    "elements",
    "layout",
    "ours us",
    "quartiles",
    "read us",
    "numpy read us",
    "ours / read",
    "ours / quicker read",
    "the fastest runs",
    "upstream us",
    "upstream / ours",
    "full us",
]


def _batch(buffer: DeviceBuffer, tensor: torch.Tensor) -> None:
    for _ in range(100):
        buffer.measure(tensor)
    buffer.collect()


def device_row(dtype: str, size: int, rounds: int) -> list[object]:
    """On a GPU: one batch of 100 tensors, enqueued and collected; microseconds a tensor."""
    tensor = make(dtype, size, "contiguous").cuda()
    ways: dict[str, Callable[[], object]] = {
        "triton": partial(_batch, DeviceBuffer(tensor.device, "extrema", "triton"), tensor),
        "torch": partial(_batch, DeviceBuffer(tensor.device, "extrema", "torch"), tensor),
        "upstream": lambda: [upstream(tensor) for _ in range(100)],
        "read": lambda: [_words(tensor).sum() for _ in range(100)],
    }
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            way()
            torch.cuda.synchronize()
            if turn:  # the first compiles
                samples[name].append((time.perf_counter() - start) / 100)
    medians = [statistics.median(times) * 1e6 for times in samples.values()]
    return [dtype, f"{size:,}", *medians, medians[0] / medians[3], medians[2] / medians[0]]


DEVICE_HEADERS = [
    "dtype",
    "elements",
    "Triton us",
    "torch us",
    "upstream us",
    "read us",
    "Triton / read",
    "upstream / Triton",
]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", nargs="+", default=DTYPES)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    kinds = [(dtype, size) for dtype in options.dtypes for size in options.sizes]
    if options.device == "cuda":
        floats = [kind for kind in kinds if not kind[0].startswith(("float8", "int"))]
        rows = [device_row(*kind, options.rounds) for kind in floats]
        print(tabulate(rows, headers=DEVICE_HEADERS, floatfmt=".2f"))
        return
    rows = [row(*kind, layout, options.rounds) for kind in kinds for layout in options.layouts]
    print(f"{torch.get_num_threads()} threads of torch; medians of {options.rounds} interleaved runs")
    print(tabulate(rows, headers=HEADERS, floatfmt=".2f"))


if __name__ == "__main__":
    main()
