from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from overflow_analyzer.format.columns import ROLES
from overflow_recorder import DataclassArgumentParser, RecorderArguments, TraceRecorder


def test_they_are_the_recorders_options_with_the_same_defaults() -> None:
    # GIVEN
    parameters = inspect.signature(TraceRecorder).parameters
    keywords = {name: one.default for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY}

    # THEN
    options = RecorderArguments().as_options().items()
    assert {name: tuple(value) if isinstance(value, list) else value for name, value in options} == {
        name: value for name, value in keywords.items() if name != "callbacks"
    }


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        ("max_frames_to_save", 0, ValueError, "max_frames_to_save: 0 is less than 1"),
        ("max_frames_to_save", None, TypeError, "max_frames_to_save: None is not an integer"),
        ("max_frames_to_save", True, TypeError, "max_frames_to_save: True is not an integer"),
        ("max_frames_to_save", 2.0, TypeError, "max_frames_to_save: 2.0 is not an integer"),
        ("trace_batch_nums", [-1], ValueError, "trace_batch_nums: -1 is less than 0"),
        ("trace_batch_nums", ["1"], TypeError, "trace_batch_nums: '1' is not an integer"),
        ("every_n_batches", 0, ValueError, "every_n_batches: 0 is less than 1"),
        ("abort_after_batch_num", -1, ValueError, "abort_after_batch_num: -1 is less than 0"),
        ("on_nonfinite", "stop", ValueError, "on_nonfinite: 'stop' is not one of raise, warn, ignore"),
        ("statistics", "all", ValueError, "statistics: 'all' is not one of extrema, full"),
        ("roles", "weight", TypeError, "roles: 'weight' is not a sequence of strings"),
        ("roles", ["weights"], ValueError, "roles: 'weights' is not one of weight, buffer"),
        ("roles", ["value"], ValueError, "roles: 'value' is not one of"),
        ("ignore", "a:b", TypeError, "ignore: 'a:b' is not a sequence of strings"),
        ("ignore", ["mask"], ValueError, "ignore: 'mask' is not MODULE:CONTEXT"),
        ("max_bytes", 1000, ValueError, "max_bytes: 1000 is less than 65536"),
    ],
)
def test_what_means_nothing_is_refused_by_name(option: str, value: Any, error: type[Exception], message: str) -> None:
    for build in (RecorderArguments, lambda **options: TraceRecorder(nn.Identity(), None, **options)):
        with pytest.raises(error) as raised:
            build(**{option: value})
        assert str(raised.value).startswith(message)


def test_numbers_of_other_kinds_are_integers_in_the_trace() -> None:
    options = RecorderArguments(max_frames_to_save=np.int64(5), trace_batch_nums=[np.int32(1)]).as_options()  # type: ignore[arg-type,list-item]
    assert (options["max_frames_to_save"], options["trace_batch_nums"]) == (5, [1])
    assert json.loads(json.dumps(options)) == options


def test_roles_are_named_once() -> None:
    assert RecorderArguments(roles=["output", "output"]).roles == ["output"]
    assert RecorderArguments(roles=[role for role in ROLES if role != "value"]).roles == list(ROLES[:-1])


def test_any_script_can_hand_them_to_the_parser() -> None:
    # GIVEN
    parser = DataclassArgumentParser(RecorderArguments)

    # WHEN
    (arguments,) = parser.parse_args_into_dataclasses(
        ["--trace_batch_nums", "1", "3", "--on_nonfinite", "warn", "--ignore", "*:input[mask]", "--overwrite"]
    )

    # THEN
    assert arguments == RecorderArguments(
        trace_batch_nums=[1, 3], on_nonfinite="warn", ignore=["*:input[mask]"], overwrite=True
    )
    TraceRecorder(nn.Identity(), None, **arguments.as_options())


def test_the_page_of_options_has_each_with_its_default() -> None:
    # GIVEN the table in docs/integrations.md
    page = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
    table = page.partition("| option | default |")[2].partition("\n\n")[0]
    described = dict(re.findall(r"^\| `(\w+)` \|(?: `(.*?)`)? \|", table, re.MULTILINE))
    # THEN it is that of the options, a list as it stands on a command line
    options = RecorderArguments().as_options().items()
    assert described == {name: " ".join(value) if isinstance(value, list) else str(value) for name, value in options}
