"""How two runs were started, where they differ: facts before the figures."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer.diff import RunDifference, diff_traces
from overflow_analyzer.render.diff import render_diff
from overflow_analyzer.text.strict_json import to_plain
from tests.analyzer.commands import analyze
from tests.analyzer.diffing import changed, trace_of, training
from tests.analyzer.samples import HOSTILE
from tests.traces import RUN, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.run_info import RunInfo

FRAMES = training(1)
FULL = replace(
    RUN,
    command=("train.py", "--steps", "10", "--eps", "1e-5"),
    python_version="3.11.7",
    recorder_version="0.1.0",
    seeds={"seed": 3, "deterministic": False, "environment": {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}},
    optimizers={"Adam": {"lr": 1e-3, "eps": 1e-8}},
    environment={"device": "cpu", "OMP_NUM_THREADS": "2", "torch.get_num_threads": "2"},
)


def differences(b: RunInfo, a: RunInfo = FULL) -> tuple[RunDifference, ...]:
    return diff_traces(trace_of(FRAMES, run=a), trace_of(FRAMES, run=b)).run_differences


def with_environment(**values: str) -> RunInfo:
    return replace(FULL, environment={**FULL.environment, **values})


def test_runs_that_were_started_alike_have_none() -> None:
    assert differences(FULL) == ()
    # GIVEN what is another run's in any case THEN it is none either
    assert differences(replace(FULL, run_id="2", started_ns=1, hostname="b", process_id=7, notes=("x",))) == ()


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        (replace(FULL, command=("train.py",)), ("command", "", FULL.command, ("train.py",))),
        (replace(FULL, model_class="Other"), ("model", "", "Model", "Other")),
        (replace(FULL, world_size=4), ("ranks", "", 1, 4)),
        (replace(FULL, torch_version="2.12.0"), ("version", "torch", "2.13.0", "2.12.0")),
        (replace(FULL, python_version="3.12.1"), ("version", "Python", "3.11.7", "3.12.1")),
        (replace(FULL, recorder_version="0.2.0"), ("version", "overflow-trace", "0.1.0", "0.2.0")),
        (replace(FULL, seeds=None), ("seed", "", 3, None)),
        (replace(FULL, seeds={"seed": 3, "deterministic": True}), ("seed", "deterministic", None, True)),
        (
            replace(FULL, options={**FULL.options, "roles": ["output"]}),
            ("option", "roles", ["weight", "buffer", "input", "output"], ["output"]),
        ),
        (
            replace(FULL, optimizers={"Adam": {"lr": 1e-2, "eps": 1e-8}}),
            ("optimizer", "Adam lr", 1e-3, 1e-2),
        ),
        (with_environment(device="NVIDIA H200"), ("device", "", "cpu", "NVIDIA H200")),
        (with_environment(OMP_NUM_THREADS="4"), ("environment", "OMP_NUM_THREADS", "2", "4")),
        (with_environment(NVIDIA_TF32_OVERRIDE="0"), ("environment", "NVIDIA_TF32_OVERRIDE", None, "0")),
    ],
)
def test_each_difference_alone(b: RunInfo, expected: tuple[Any, ...]) -> None:
    assert differences(b) == (RunDifference(*expected),)


@pytest.mark.parametrize(
    "b",
    [
        replace(FULL, environment={}),
        replace(FULL, optimizers={}),
        replace(FULL, command=()),
        replace(FULL, python_version=""),
        replace(FULL, options={}),
        replace(FULL, options={**FULL.options, "later": 1}),
        with_environment(**{"torch.later": "True"}),
        replace(FULL, run_id="", model_class="", world_size=7),
    ],
)
def test_what_a_recorder_did_not_say_is_no_difference(b: RunInfo) -> None:
    assert differences(b) == ()
    assert differences(FULL, b) == ()


def test_dtypes_are_among_them() -> None:
    # GIVEN one output in another format THEN the runs differ in dtypes, said once
    one = changed(changed(FRAMES, 2, 2, dtype="float32"), 3, 2, dtype="float32")
    found = diff_traces(trace_of(FRAMES), trace_of(one)).run_differences
    assert found == (RunDifference("dtype", "", "float16", "float32"),)


def test_they_stand_before_the_evidence_a_line_each() -> None:
    # GIVEN two runs with another command, seed and variable, and one other figure
    b = replace(with_environment(OMP_NUM_THREADS="4"), command=(*FULL.command[:-1], "1e-3"), seeds=None)
    bad = changed(FRAMES, 2, 2, abs_max=50.0)
    diff = diff_traces(trace_of(FRAMES, run=FULL), trace_of(bad, run=b))

    # WHEN it is rendered THEN the verdict's line comes first, then they, then what the verdict rests on
    lines = render_diff(diff).splitlines()
    assert lines[0].startswith("In batch 0, module block.act")
    assert lines[1:6] == [
        "",
        "command       train.py ... 1e-5 -> train.py ... 1e-3",
        "seed          3 -> not set",
        "environment   OMP_NUM_THREADS: 2 -> 4",
        "",
    ]
    assert lines[6] == "  It is frame 2 of A and frame 2 of B."
    assert render_diff(diff, markdown=True).splitlines()[2:5] == [
        "- **command**: train.py ... 1e-5 -&#62; train.py ... 1e-3",
        "- **seed**: 3 -&#62; not set",
        "- **environment**: OMP&#95;NUM&#95;THREADS: 2 -&#62; 4",
    ]


@pytest.mark.parametrize(
    ("a", "b", "line"),
    [
        (("t.py",), ("t.py", "--x", "1 2"), "t.py -> t.py --x '1 2'"),
        (("t.py", "1e-5"), ("t.py", "1e-3"), "t.py 1e-5 -> t.py 1e-3"),
        (("t.py", "a", "b"), ("t.py", "a", "b", "c"), "t.py ... -> t.py ... c"),
        (("t.py", "a", "b", "c"), ("t.py", "a", "b"), "t.py ... c -> t.py ..."),
    ],
)
def test_commands_without_what_they_share(a: tuple[str, ...], b: tuple[str, ...], line: str) -> None:
    runs = (replace(FULL, command=command) for command in (a, b))
    text = render_diff(diff_traces(*(trace_of(FRAMES, run=run) for run in runs)))
    assert f"\ncommand       {line}\n" in text


def test_json_has_the_values_whole(tmp_path: Path) -> None:
    other = replace(FULL, command=("train.py",), options={**FULL.options, "max_bytes": 1 << 20})
    paths = [write_trace(tmp_path / name, FRAMES, run) for name, run in (("a", FULL), ("b", other))]
    ran = analyze("diff", *paths, "--format", "json")
    assert ran.code == 0
    assert json.loads(ran.out)["run_differences"] == [
        {"what": "command", "name": "", "a": list(FULL.command), "b": ["train.py"]},
        {"what": "option", "name": "max_bytes", "a": None, "b": 1 << 20},
    ]


def test_hostile_values_are_escaped() -> None:
    run = replace(FULL, command=(HOSTILE,), options={**FULL.options, HOSTILE: {HOSTILE: [HOSTILE]}}, seeds={"seed": []})
    odd = replace(run, options={**FULL.options, HOSTILE: HOSTILE}, environment={"device": HOSTILE, HOSTILE: HOSTILE})
    diff = diff_traces(trace_of(FRAMES, run=run), trace_of(FRAMES, run=odd))
    for text in (render_diff(diff), render_diff(diff, markdown=True)):
        assert not {"\x1b", "\u202e"} & set(text)
    assert len(to_plain(diff)["run_differences"]) == 4
