"""How much a training step slows down under each way of watching it: interleaved runs in one process, and ratios.

python -m benchmarks.training_step --models mt5-small minilm --dtypes float32 bfloat16 --rounds 7
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from tabulate import tabulate
from torch import nn

from benchmarks.training_models import WORKLOADS
from overflow_recorder import TraceRecorder
from overflow_recorder.session import Session

Watcher = Callable[[nn.Module], contextlib.AbstractContextManager[object]]


@contextmanager
def _ours(model: nn.Module, **options: object) -> Iterator[None]:
    directory = Path(tempfile.mkdtemp())
    try:
        with TraceRecorder(model, directory / "run.parquet", on_nonfinite="ignore", **options):  # type: ignore[arg-type]
            yield
    finally:
        shutil.rmtree(directory)


@contextmanager
def _upstream(model: nn.Module) -> Iterator[None]:
    from transformers.debug_utils import DebugUnderflowOverflow

    DebugUnderflowOverflow(model)
    try:
        yield
    finally:
        for module in model.modules():
            module._forward_hooks.clear()  # noqa: SLF001  it has no other way to be removed


@contextmanager
def _isfinite_item(model: nn.Module) -> Iterator[None]:
    def hook(_module: nn.Module, _args: object, output: object) -> None:
        for value in output if isinstance(output, tuple) else (output,):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and not torch.isfinite(value).all().item():
                raise ValueError("inf or nan")

    handles = [module.register_forward_hook(hook) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


WATCHERS: dict[str, Watcher] = {
    "base": lambda _model: contextlib.nullcontext(),
    "ours, every frame to disk": lambda model: _ours(model, every_n_batches=1),
    "ours, detection": _ours,
    "ours, idle": lambda model: _ours(model, trace_batch_nums=[1 << 40]),
    "ours, full statistics": lambda model: _ours(model, every_n_batches=1, statistics="full"),
    "isfinite().all().item() hook": _isfinite_item,
    "DebugUnderflowOverflow": _upstream,
}


def run(name: str, dtype: torch.dtype, watchers: list[str], rounds: int, steps: int) -> list[list[object]]:
    """Return a table row a watcher."""
    torch.manual_seed(0)
    workload = WORKLOADS[name]()
    model = workload.model.to(dtype).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6)

    def step() -> None:
        workload.loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    wall: dict[str, list[float]] = {watcher: [] for watcher in watchers}
    processor: dict[str, list[float]] = {watcher: [] for watcher in watchers}
    broken: dict[str, str] = {}
    for round_number in range(rounds + 1):
        for watcher in watchers[round_number % len(watchers) :] + watchers[: round_number % len(watchers)]:
            if watcher in broken:
                continue
            try:
                with WATCHERS[watcher](model):
                    step()
                    began, began_cpu = time.perf_counter(), time.process_time()
                    for _ in range(steps):
                        step()
                    if round_number:  # the first round warms everything up
                        wall[watcher].append((time.perf_counter() - began) / steps)
                        processor[watcher].append((time.process_time() - began_cpu) / steps)
            except Exception as error:  # noqa: BLE001  a tool that cannot watch this model is a result
                broken[watcher] = type(error).__name__
                optimizer.zero_grad()
    rows: list[list[object]] = []
    for watcher in watchers:
        label = [name, str(dtype)[6:], watcher]
        if watcher in broken:
            rows.append([*label, f"fails: {broken[watcher]}"])
            continue
        ratios = [one / base for one, base in zip(wall[watcher], wall["base"], strict=False)]
        rows.append(
            [
                *label,
                f"{statistics.median(wall[watcher]) * 1e3:.1f}",
                f"{statistics.median(ratios):.3f}",
                f"{min(ratios):.3f} .. {max(ratios):.3f}",
                f"{min(wall[watcher]) / min(wall['base']):.3f}",
                f"{statistics.median(processor[watcher]) / statistics.median(processor['base']):.3f}",
            ]
        )
    rows.append(
        [name, str(dtype)[6:], "time inside our hooks, share of a step", "", f"{_share(model, step, steps):.4f}"]
    )
    return rows


def _share(model: nn.Module, step: Callable[[], None], steps: int) -> float:
    """Time the hooks themselves: what noise between runs hardly touches. The writer's thread is not in it."""
    spent = 0

    def timed(method: Callable[..., None]) -> Callable[..., None]:
        def call(*args: object) -> None:
            nonlocal spent
            began = time.perf_counter_ns()
            try:
                method(*args)
            finally:
                spent += time.perf_counter_ns() - began

        return call

    before, after = Session.before_forward, Session.after_forward
    with WATCHERS["ours, every frame to disk"](model):
        step()
        Session.before_forward, Session.after_forward = timed(before), timed(after)  # type: ignore[method-assign]
        try:
            began = time.perf_counter_ns()
            for _ in range(steps):
                step()
            whole = time.perf_counter_ns() - began
        finally:
            Session.before_forward, Session.after_forward = before, after  # type: ignore[method-assign]
    return spent / whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--watchers", nargs="+", default=list(WATCHERS), choices=list(WATCHERS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    watchers = list(dict.fromkeys(["base", *arguments.watchers]))
    headers = ["model", "dtype", "watched by", "ms a step", "median ratio", "ratios", "fastest runs", "CPU time"]
    for name in arguments.models:
        for dtype in arguments.dtypes:
            rows = run(name, getattr(torch, dtype), watchers, arguments.rounds, arguments.steps)
            print(tabulate(rows, headers), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
