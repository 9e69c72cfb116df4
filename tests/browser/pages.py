"""Pages that several tests look at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.analyzer.commands import analyze
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from overflow_analyzer.format.frames import Entry, Frame

FIXTURES = Path(__file__).parents[2] / "fixtures"
NAN, INF = float("nan"), float("inf")
HOSTILE_NAMES = (
    "</script><img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    "\"'><b id=injected>",
    "{{ 7 * 7 }}${7 * 7}",
    "__proto__",
    "constructor",
    "--><!--<script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    "\x1b[31m\x00\u202e\u2028模块",
    "&lt;i&gt;",
)


def page_of(directory: Path, *traces: Path) -> Path:
    """Write the page of one trace or of two."""
    page = directory / f"{traces[0].name}.html"
    ran = analyze("html", *traces, "-o", page)
    assert (ran.code, ran.err) == (0, "")
    return page


def write_hostile_names(path: Path, largest: float = INF) -> Path:
    """Each of the names as a module, a class, a context, a dtype and what the run says of itself."""
    odd = {"abs_max": largest, "posinf_count": int(largest == INF)}

    def one(number: int, name: str) -> Frame:
        output = tensor("output", name, finite_abs_max=1.0, **odd)
        return frame(number, 0, name, tensor("weight", name, dtype=name), output, module_class=name)

    run = replace(RUN, model_class=HOSTILE_NAMES[0], hostname=HOSTILE_NAMES[0], command=HOSTILE_NAMES[:4])
    return write_trace(path, [one(number, name) for number, name in enumerate(HOSTILE_NAMES)], run)


def write_values(path: Path) -> Path:
    """Batches 0 to 9 and 20 to 24, an optimizer step a batch but for batch 5, a loss and a loss scale."""
    frames = []
    for at, batch in enumerate([*range(10), *range(20, 25)]):
        step = batch - (batch > 5)
        weight = tensor("weight", "weight", abs_max=1.0 + at, finite_abs_max=1.0 + at)
        scale = 2.0 ** (16 - (at > 5))
        frames += [
            frame(3 * at, batch, "model.head", weight, optimizer_step=step),
            frame(3 * at + 1, batch, "loss", _value("loss", 2.0 / (1 + at)), phase="manual", optimizer_step=step),
            frame(3 * at + 2, batch, "scaler", _value("loss_scale", scale), phase="manual", optimizer_step=step),
        ]
    return write_trace(path, frames)


def _value(context: str, figure: float) -> Entry:
    return tensor("value", context, figure, figure, dtype="float32", finite_abs_max=figure)


def write_many_ranks(path: Path, ranks: int, missing: int) -> Path:
    """Ranks of a run, one of them missing; rank 7 is the first with a nan, the others have it a batch later."""
    for rank in range(ranks):
        if rank == missing:
            continue
        frames = [
            frame(batch, batch, "lin", tensor("weight", "weight", finite_abs_max=2.0, **_nan(batch >= 3 - (rank == 7))))
            for batch in range(4)
        ]
        write_trace(path, frames, replace(RUN, rank=rank, world_size=ranks))
    return path


def _nan(is_nan: object) -> dict[str, float]:
    return {"abs_max": NAN, "nan_count": 1} if is_nan else {}
