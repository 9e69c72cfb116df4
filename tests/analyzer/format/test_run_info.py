"""What is known about a run, written and read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.errors import DamagedTraceError, TraceError, UnknownVersionError
from overflow_analyzer.format.run_info import EndInfo, RunInfo, check_format_version
from tests.traces import RUN

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.parametrize("end", [None, EndInfo("exception", 5, 3, 7, "ValueError: x", 9, 1, 2)])
def test_a_run_is_read_back(end: EndInfo | None) -> None:
    run = replace(RUN, command=("train.py", "模块"), seeds={"seed": 3}, environment={"device": "cpu"}, end=end)
    assert RunInfo.from_json(run.to_json(), "a") == run


def test_fields_of_a_later_release_are_left_out() -> None:
    text = json.dumps(
        {**json.loads(RUN.to_json()), "colour": "blue", "end": {"how": "closed", "time_ns": 1, "mood": "good"}}
    )
    assert RunInfo.from_json(text, "a").end == EndInfo("closed", 1)


@given(field=st.sampled_from(sorted(json.loads(RUN.to_json()))), value=JSON)
def test_a_field_of_any_other_kind_is_refused_or_harmless(field: str, value: Any) -> None:
    # GIVEN a run's description with anything in a field
    text = json.dumps({**json.loads(RUN.to_json()), field: value})

    # WHEN it is read, THEN it is a run whose fields have their types, or an error of ours
    try:
        run = RunInfo.from_json(text, "a")
    except TraceError:
        return
    assert type(run.rank) is int
    assert type(run.world_size) is int
    assert all(isinstance(word, str) for word in (*run.command, *run.environment.values()))


@given(field=st.sampled_from(sorted(vars(EndInfo("closed", 1)))), value=JSON)
def test_an_end_of_any_other_kind_is_refused_or_harmless(field: str, value: Any) -> None:
    text = json.dumps({**json.loads(RUN.to_json()), "end": {"how": "closed", "time_ns": 1, field: value}})
    try:
        end = RunInfo.from_json(text, "a").end
    except TraceError:
        return
    assert end is not None
    assert isinstance(end.how, str)
    assert type(end.time_ns) is int
    assert end.frames_seen is None or type(end.frames_seen) is int
    assert type(end.frames_dropped) is int
    assert type(end.parts_removed) is int
    assert end.reason is None or isinstance(end.reason, str)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "3", "{}", '{"format_version": 1}', "[" * 100_000, b"\xff"])
def test_what_is_no_run_names_the_file(text: str | bytes) -> None:
    with pytest.raises(DamagedTraceError, match=r"^here/_run\.json: "):
        RunInfo.from_json(text, "here/_run.json")


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.5, [1]])
def test_another_version_says_what_to_do(version: object) -> None:
    with pytest.raises(UnknownVersionError, match="install the overflow-trace that wrote it"):
        check_format_version(version, "a")
