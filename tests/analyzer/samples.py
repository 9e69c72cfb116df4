"""Traces that the tests of the command line look at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from overflow_analyzer.format.frames import Entry
from overflow_analyzer.format.run_info import EndInfo
from tests.rings import write_killed
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame

INF, NAN = float("inf"), float("nan")
HOSTILE = "\x1b[31m`|<script>模块\u202e"
"""A name that would colour a terminal, break out of a code span, a table and a page, and turn what follows around."""

WELL_KNOWN_REPORT = """\
Detected inf/nan during batch_number=0
Last 5 forward frames:
abs min  abs max  metadata
                  encoder.block.2.layer.1.DenseReluDense.wi_0 Linear
2.17e-07 4.50e+00 weight
1.79e-06 4.65e+00 input[0]
2.68e-06 3.70e+01 output
                  encoder.block.2.layer.1.DenseReluDense.wi_1 Linear
8.08e-07 2.66e+01 weight
1.79e-06 4.65e+00 input[0]
1.27e-04 2.37e+02 output
                  encoder.block.2.layer.1.DenseReluDense.wo Linear
1.01e-06 6.44e+00 weight
0.00e+00 9.74e+03 input[0]
3.18e-04 6.27e+04 output
                  encoder.block.2.layer.1.DenseReluDense T5DenseGatedGeluDense
1.79e-06 4.65e+00 input[0]
3.18e-04 6.27e+04 output
                  encoder.block.2.layer.1.dropout Dropout
3.18e-04 6.27e+04 input[0]
0.00e+00      inf output
"""


def well_known_frames() -> list[Frame]:
    """The frames of the report above; the first of the batch is not among them."""
    block = "encoder.block.2.layer.1"

    def weight(low: float, high: float) -> Entry:
        return tensor("weight", "weight", low, high)

    def given(low: float, high: float) -> Entry:
        return tensor("input", "input[0]", low, high)

    def made(low: float, high: float) -> Entry:
        return tensor("output", "output", low, high)

    hidden = given(1.79e-06, 4.65)
    overflown = replace(made(0, INF), finite_abs_max=3.0, neginf_count=1)
    return [
        frame(10, 0, f"{block}.DenseReluDense.wi_0", weight(2.17e-07, 4.5), hidden, made(2.68e-06, 37.0)),
        frame(11, 0, f"{block}.DenseReluDense.wi_1", weight(8.08e-07, 26.6), hidden, made(1.27e-04, 237.0)),
        frame(12, 0, f"{block}.DenseReluDense.wo", weight(1.01e-06, 6.44), given(0, 9.74e3), made(3.18e-04, 6.27e4)),
        frame(13, 0, f"{block}.DenseReluDense", hidden, made(3.18e-04, 6.27e4), module_class="T5DenseGatedGeluDense"),
        frame(14, 0, f"{block}.dropout", given(3.18e-04, 6.27e4), overflown, module_class="Dropout"),
    ]


def two_batches(start: int = 0) -> list[Frame]:
    """Six finite frames of two batches of a root, two modules in it, one of each kind of entry."""
    odd = (Entry("input", "input[1]", "none"), Entry("input", "input[mask]", "other"))
    empty = Entry("output", "output[1]", "tensor", "float16", "cpu", "strided", (0,), 0)
    frames = []
    for batch in range(2):
        at = start + 3 * batch
        frames += [
            frame(at, batch, "embed", tensor("weight", "weight"), tensor("output", "output", 0, 3), in_batch=0),
            frame(
                at + 1,
                batch,
                "head",
                tensor("input", "input[0]"),
                *odd,
                tensor("output", "output[0]"),
                empty,
                in_batch=1,
            ),
            frame(at + 2, batch, "", tensor("output", "output[logits]"), in_batch=2, module_class="Model"),
        ]
    return frames


def write_well_known(path: Path) -> Path:
    """A run that a detection ended."""
    end = EndInfo("detected", 1_700_000_001_000_000_000, batch_number=0, frame_number=14, frames_seen=15)
    options = {**RUN.options, "every_n_batches": None, "max_frames_to_save": 5}
    return write_trace(path, well_known_frames(), replace(RUN, options=options, end=end))


def write_clean(path: Path) -> Path:
    """A run without inf/nan, whose seeds and command are known."""
    run = replace(
        RUN,
        command=("train.py", "--lr", "3e-4", "--name", "a b"),
        seeds={"seed": 3, "full_determinism": True, "environment": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}},
        hostname="node7",
        python_version="3.11.7",
        recorder_version="0.1.0",
    )
    return write_trace(path, two_batches(), run, frames_per_part=3)


def write_ranks(path: Path) -> Path:
    """Ranks 0, 1 and 3 of four: 1 has a nan, 3 was killed and has a gap."""
    bad = tensor("output", "output", NAN, NAN, finite_abs_max=2.0, nan_count=2)
    run = replace(RUN, world_size=4)
    write_trace(path, two_batches(), run)
    write_trace(path, [*two_batches(), frame(6, 2, "embed", bad, in_batch=0)], replace(run, rank=1))
    write_killed(path, [*two_batches()[:2], *two_batches()[4:]], replace(run, rank=3, end=None))
    return path


def write_hostile(path: Path) -> Path:
    """Names that would act on a terminal or a page, in every place where a name can be."""
    bad = tensor("output", HOSTILE, 0, INF, finite_abs_max=1.0, posinf_count=1, dtype=HOSTILE)
    frames = [frame(0, 0, HOSTILE, tensor("weight", HOSTILE), bad, in_batch=0, module_class=HOSTILE)]
    end = EndInfo("exception", 1_700_000_001_000_000_000, batch_number=0, reason=f"ValueError: {HOSTILE}")
    run = replace(RUN, model_class=HOSTILE, hostname=HOSTILE, command=(HOSTILE,), run_id=HOSTILE, end=end)
    return write_trace(path, frames, replace(run, options={**RUN.options, "ignore": [HOSTILE]}))


def write_changed(path: Path) -> Path:
    """The run without inf/nan again, but for one figure of its fifth frame."""
    frames = two_batches()
    *entries, last = frames[4].entries
    changed = replace(entries[-1], abs_max=2.5, finite_abs_max=2.5)
    frames[4] = replace(frames[4], entries=(*entries[:-1], changed, last))
    return write_trace(path, frames)
