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
from overflow_recorder.recording.session import Session

INTEGERS = {2: torch.int16, 4: torch.int32}  # of the width of a float

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


@contextmanager
def _one_read(model: nn.Module) -> Iterator[None]:
    """Read every weight once a batch and every other tensor once, by torch's own maximum, and keep nothing.

    Nothing that looks at all elements can cost less.
    """
    seen: set[int] = set()
    alive: list[torch.Tensor] = []  # so that no id is given to another tensor

    def read(value: object) -> None:
        if isinstance(value, (tuple, list)):
            for one in value:
                read(one)
        elif isinstance(value, dict):
            read(list(value.values()))
        elif isinstance(value, torch.Tensor) and value.is_floating_point() and id(value) not in seen:
            seen.add(id(value))
            alive.append(value)
            value.detach().view(INTEGERS[value.element_size()]).amax()

    def hook(module: nn.Module, args: object, kwargs: object, output: object) -> None:
        read([*module.parameters(recurse=False), *module.buffers(recurse=False), args, kwargs, output])
        if module is model:
            seen.clear()
            alive.clear()

    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in model.modules()]
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
    "one read of each tensor": _one_read,
    "isfinite().all().item() hook": _isfinite_item,
    "DebugUnderflowOverflow": _upstream,
}


class Training:
    """A watched model of its own that takes a step when asked, and how long its steps took."""

    def __init__(self, name: str, dtype: torch.dtype, watcher: str, stack: contextlib.ExitStack) -> None:
        torch.manual_seed(0)
        self._workload = WORKLOADS[name]()
        self.model = self._workload.model.to(dtype).train()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), 1e-6)
        self.wall: list[float] = []
        self.processor: list[float] = []
        self.broken: str | None = None
        stack.enter_context(WATCHERS[watcher](self.model))

    def step(self) -> None:
        """Take a step."""
        self._workload.loss().backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self._optimizer.zero_grad()

    def timed_steps(self, count: int) -> None:
        """Take some steps and note the mean time of one."""
        if self.broken:
            return
        began, began_cpu = time.perf_counter(), time.process_time()
        try:
            for _ in range(count):
                self.step()
        except Exception as error:  # noqa: BLE001  a tool that cannot watch this model is a result
            self.broken = type(error).__name__
            return
        self.wall.append((time.perf_counter() - began) / count)
        self.processor.append((time.process_time() - began_cpu) / count)


def run(name: str, dtype: torch.dtype, watchers: list[str], rounds: int, steps: int) -> list[list[object]]:
    """Return a table row a watcher.

    Each watches a model of its own and stays attached, as it would in a training; the models take steps in turn.
    """
    label = [name, str(dtype)[6:]]
    with contextlib.ExitStack() as stack:
        trainings = {watcher: Training(name, dtype, watcher, stack) for watcher in watchers}
        for round_number in range(rounds + 1):
            at = round_number % len(watchers)
            for watcher in watchers[at:] + watchers[:at]:
                trainings[watcher].timed_steps(steps)
        base = trainings["base"]
        rows: list[list[object]] = [[*label, watcher, *_cells(one, base)] for watcher, one in trainings.items()]
    rows.append([*label, "time inside our hooks, share of a step", "", f"{_share(name, dtype, steps):.4f}"])
    return rows


def _cells(watched: Training, base: Training) -> list[str]:
    if watched.broken:
        return [f"fails: {watched.broken}"]
    wall, processor = watched.wall[1:], watched.processor[1:]  # the first round warms everything up
    ratios = [one / other for one, other in zip(wall, base.wall[1:], strict=True)]
    return [
        f"{statistics.median(wall) * 1e3:.1f}",
        f"{statistics.median(ratios):.3f}",
        f"{min(ratios):.3f} .. {max(ratios):.3f}",
        f"{min(wall) / min(base.wall[1:]):.3f}",
        f"{statistics.median(processor) / statistics.median(base.processor[1:]):.3f}",
    ]


def _share(name: str, dtype: torch.dtype, steps: int) -> float:
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
    with contextlib.ExitStack() as stack:
        training = Training(name, dtype, "ours, every frame to disk", stack)
        training.step()
        Session.before_forward, Session.after_forward = timed(before), timed(after)  # type: ignore[method-assign]
        try:
            began = time.perf_counter_ns()
            for _ in range(steps):
                training.step()
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
