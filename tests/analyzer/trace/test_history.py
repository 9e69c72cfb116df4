"""One tensor over batches: its figure, its calls, its jumps."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer.errors import NotRecordedError
from overflow_analyzer.render.history import history_as_csv, render_history
from overflow_analyzer.trace.history import history_of
from overflow_analyzer.trace.opening import open_trace
from tests.analyzer.commands import analyze
from tests.analyzer.samples import HOSTILE
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.trace.history import TensorHistory

INF, NAN = math.inf, math.nan


def write(path: Path, figures: list[float | None], *, name: str = "a.b", **changes: Any) -> Path:
    """A trace with one output a batch."""
    frames = [
        frame(batch, batch, name, tensor("output", "output", 0.0, value, **counts(value), **changes), in_batch=0)  # type: ignore[arg-type]  # None: unknown
        for batch, value in enumerate(figures)
    ]
    return write_trace(path, frames)


def counts(value: float | None) -> dict[str, Any]:
    """What a tensor with this largest magnitude counts."""
    if value is None:
        return {"finite_abs_max": None}
    return {
        "finite_abs_max": value if math.isfinite(value) else None,
        "nan_count": int(math.isnan(value)),
        "posinf_count": int(math.isinf(value)),
    }


def only(path: Path, *patterns: str, **options: Any) -> TensorHistory:
    """The one tensor that matches."""
    (one,) = history_of(open_trace(path), patterns, **options).tensors
    return one


def test_a_tensor_over_batches(tmp_path: Path) -> None:
    # GIVEN an output that doubles, then jumps by a factor of 16, then is infinite
    one = only(write(tmp_path / "run.parquet", [1.0, 2.0, 4.0, 64.0, INF]), "a.b:output")

    # THEN each batch has its figure and the doublings since the one before
    assert [point.batch_number for point in one.points] == [0, 1, 2, 3, 4]
    assert [point.value for point in one.points] == [1.0, 2.0, 4.0, 64.0, INF]
    assert [point.change_bits for point in one.points] == [None, 1.0, 1.0, 4.0, None]
    assert [point.nonfinite_count for point in one.points] == [0, 0, 0, 0, 1]

    # AND the jumps are the last two
    assert [point.batch_number for point in one.jumps] == [3, 4]
    assert (one.module_name, one.module_class, one.role, one.context, one.dtype) == (
        "a.b", "Linear", "output", "output", "float16",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "jumps"),
    [
        ([1.0, 7.9], []),  # less than a factor of 8
        ([1.0, 8.0], [1]),
        ([8.0, 1.0], [1]),
        ([1.0, 8.0, 64.0, 512.0], [1]),  # what changes so in every batch does not jump
        ([1.0, 0.0, 0.0, 1.0], [1, 3]),
        ([1.0, NAN, NAN, 1.0], [1]),  # what follows a nan cannot be told
        ([INF, 1.0], []),
        ([1.0, None, 1000.0], []),  # nothing was known in between
    ],
)
def test_jumps(figures: list[float | None], jumps: list[int], tmp_path: Path) -> None:
    one = only(write(tmp_path / "run.parquet", figures), "a.b")
    assert [point.batch_number for point in one.jumps] == jumps


def test_of_several_calls_the_largest_counts(tmp_path: Path) -> None:
    # GIVEN a module that is called three times in one batch and twice in the next, once with a nan
    values = [(0, 1.0), (0, 5.0), (0, 3.0), (1, NAN), (1, 2.0)]
    frames = [
        frame(at, batch, "m", tensor("output", "output", 0.0, value, **counts(value)), call_index=at)
        for at, (batch, value) in enumerate(values)
    ]
    write_trace(tmp_path / "run.parquet", frames)

    # THEN
    first, second = only(tmp_path / "run.parquet", "m").points
    assert (first.value, first.calls) == (5.0, 3)
    assert second.value is not None
    assert math.isnan(second.value)
    assert (second.calls, second.nonfinite_count) == (2, 1)


def write_modules(path: Path) -> Path:
    """Modules ``a``, ``a.b`` and the root, two ranks, two batches."""
    frames = [
        frame(3 * batch + at, batch, name, tensor("weight", "weight"), tensor("output", "output[0]"), in_batch=at)
        for batch in range(2)
        for at, name in enumerate(["a.b", "a", ""])
    ]
    for rank in range(2):
        write_trace(path, frames, replace(RUN, rank=rank, world_size=2))
    return path


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["a.b"], ["a.b:weight", "a.b:output[0]"]),
        (["a"], ["a:weight", "a:output[0]"]),
        ([""], [":weight", ":output[0]"]),
        (["*:output[0]"], ["a.b:output[0]", "a:output[0]", ":output[0]"]),
        (["a?b:weight"], ["a.b:weight"]),
        (["a:w*", ":weight"], ["a:weight", ":weight"]),
    ],
)
def test_patterns(patterns: list[str], found: list[str], tmp_path: Path) -> None:
    history = history_of(open_trace(write_modules(tmp_path / "run.parquet")), patterns, rank=1)
    assert [f"{one.module_name}:{one.context}" for one in history.tensors] == found
    assert {one.rank for one in history.tensors} == {1}


def test_role_since_and_limit(tmp_path: Path) -> None:
    trace = open_trace(write_modules(tmp_path / "run.parquet"))
    history = history_of(trace, ["*"], role="weight", since=1, limit=4)
    assert [(one.rank, one.module_name, one.role) for one in history.tensors] == [
        (0, "a.b", "weight"), (0, "a", "weight"), (0, "", "weight"), (1, "a.b", "weight"),
    ]  # fmt: skip
    assert {point.batch_number for one in history.tensors for point in one.points} == {1}
    assert history.left_out == 2


@pytest.mark.parametrize(
    ("patterns", "options", "message"),
    [
        (["encodr"], {}, r"no recorded tensor matches 'encodr'; modules with a like name: 'encoder'"),
        (["encoder:nosuch"], {}, "no recorded tensor matches 'encoder:nosuch'"),
        (["encoder"], {"role": "weight"}, "no recorded tensor of role weight matches"),
        (["encoder"], {"since": 9}, "from batch 9 on"),
        (["enc[o]der"], {}, "no recorded tensor matches"),
    ],
)
def test_nothing_matches(patterns: list[str], options: dict[str, Any], message: str, tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "run.parquet", [1.0], name="encoder"))
    with pytest.raises(NotRecordedError, match=message):
        history_of(trace, patterns, **options)


def test_a_figure_that_no_trace_has(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "run.parquet", [1.0]))
    with pytest.raises(ValueError, match="'shape' is no figure of a trace; known are abs_min, abs_max"):
        history_of(trace, ["*"], figure="shape")


def test_another_figure(tmp_path: Path) -> None:
    path = write(tmp_path / "run.parquet", [1.0, 1.0], zero_count=3)
    assert [point.value for point in only(path, "a.b", figure="zero_count").points] == [3, 3]
    # AND what was not counted is unknown, not 0
    assert [point.value for point in only(path, "a.b", figure="subnormal_count").points] == [None, None]


def test_the_table_shows_the_last_batches_and_every_jump(tmp_path: Path) -> None:
    # GIVEN a jump long ago
    history = history_of(open_trace(write(tmp_path / "run.parquet", [1.0, 32768.0, *[32768.0] * 8])), ["a.b"])

    # WHEN three batches are shown
    lines = render_history(history, points=3).splitlines()

    # THEN the jump is there too, against its format's limit: 32768 / 65504 is 50.0%
    assert lines[0] == "a.b:output  Linear, output, float16, abs_max, 10 batches from 0 to 9"
    assert lines[1] == "▁█████████"
    assert [line.split()[0] for line in lines[3:7]] == ["1", "7", "8", "9"]
    assert lines[3].endswith("x3.28e+04  jump, 3.28e+04 is 50.0% of float16's 65504")
    assert lines[7] == "6 earlier batches without a jump not shown (--points)"


def test_csv_has_every_batch(tmp_path: Path) -> None:
    history = history_of(open_trace(write(tmp_path / "run.parquet", [1.0, NAN, INF])), ["a.b"])
    rows = list(csv.DictReader(io.StringIO("".join(history_as_csv(history)))))
    assert [(row["batch_number"], row["value"], row["jumped"]) for row in rows] == [
        ("0", "1.0", "False"), ("1", "nan", "True"), ("2", "inf", "False"),
    ]  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path / "run.parquet", [1.0, NAN])
    ran = analyze("history", path, "a.b", "--format", "json")
    assert ran.code == 0
    (one,) = json.loads(ran.out)["tensors"]
    assert [point["value"] for point in one["points"]] == [1.0, "nan"]
    assert analyze("history", path, "a.b").out.startswith("a.b:output  Linear")
    assert analyze("history", path, "a.b", "--format", "csv").out.count("\n") == 3
    assert "`▅N`" in analyze("history", path, "a.b", "--format", "markdown").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch"], "no recorded tensor matches"),
        (["a.b", "--figure", "shape"], "'shape' is not one of abs_min, abs_max"),
        ([], "Missing argument"),
    ],
)
def test_usage_errors(arguments: list[str], message: str, tmp_path: Path) -> None:
    ran = analyze("history", write(tmp_path / "run.parquet", [1.0]), *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize("kind", ["text", "json", "markdown"])
def test_a_hostile_name_is_data(kind: str, tmp_path: Path) -> None:
    ran = analyze("history", write(tmp_path / "run.parquet", [1.0], name=HOSTILE), "*", "--format", kind)
    assert ran.code == 0
    assert not any(
        character in ran.out for character in ("\x1b", "\u202e", "<script>"[:8] if kind != "text" else "\x1b")
    )
