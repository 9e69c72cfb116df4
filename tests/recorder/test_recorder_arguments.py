from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_recorder import DataclassArgumentParser, RecorderArguments, TraceRecorder

# option -> what stands behind it on a command line, and its value
EVERY_FIELD: dict[str, tuple[list[str], Any]] = {
    "max_frames_to_save": (["5"], 5),
    "trace_batch_nums": (["1", "3"], [1, 3]),
    "every_n_batches": (["10"], 10),
    "abort_after_batch_num": (["0"], 0),
    "on_nonfinite": (["ignore"], "ignore"),
    "roles": (["weight", "grad_output"], ["weight", "grad_output"]),
    "statistics": (["full"], "full"),
    "ignore": (["*.attention:input[mask]"], ["*.attention:input[mask]"]),
    "max_bytes": (["65536"], 65536),
    "overwrite": ([], True),
}

WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("max_frames_to_save", 0, ValueError, "max_frames_to_save: 0 is less than 1"),
    ("max_frames_to_save", None, TypeError, "max_frames_to_save: None is not an integer"),
    ("max_frames_to_save", True, TypeError, "max_frames_to_save: True is not an integer"),
    ("trace_batch_nums", [1, -1], ValueError, "trace_batch_nums: -1 is less than 0"),
    ("trace_batch_nums", [1.0], TypeError, "trace_batch_nums: 1.0 is not an integer"),
    ("every_n_batches", 0, ValueError, "every_n_batches: 0 is less than 1"),
    ("abort_after_batch_num", -1, ValueError, "abort_after_batch_num: -1 is less than 0"),
    ("on_nonfinite", "stop", ValueError, "on_nonfinite: 'stop' is not one of raise, warn, ignore"),
    ("roles", ["value"], ValueError, "roles: 'value' is not one of weight"),
    ("roles", "weight", TypeError, "roles: 'weight' is not a sequence of strings"),
    ("statistics", "all", ValueError, "statistics: 'all' is not one of extrema, full"),
    ("ignore", ["attention"], ValueError, r"ignore: 'attention' is not MODULE:CONTEXT, such as"),
    ("max_bytes", 65535, ValueError, "max_bytes: 65535 is less than 65536"),
]


def test_every_field_is_in_the_tables() -> None:
    names = {field.name for field in dataclasses.fields(RecorderArguments)}

    assert names == set(EVERY_FIELD)
    assert {name for name, *_ in WRONG} == names - {"overwrite"}  # any bool is right


@pytest.mark.parametrize("name", EVERY_FIELD)
@pytest.mark.parametrize("spelling", ["--{}", "hyphens"])
def test_every_field_is_an_option(name: str, spelling: str) -> None:
    # GIVEN
    texts, value = EVERY_FIELD[name]
    option = f"--{name}" if spelling == "--{}" else f"--{name.replace('_', '-')}"

    # WHEN
    (made,) = DataclassArgumentParser(RecorderArguments).parse_args_into_dataclasses([option, *texts])

    # THEN it alone has changed
    assert made == dataclasses.replace(RecorderArguments(), **{name: value})
    assert made.as_options()[name] == value


def test_every_field_at_once_also_from_a_dict() -> None:
    parser = DataclassArgumentParser(RecorderArguments)
    line = [text for name, (texts, _) in EVERY_FIELD.items() for text in (f"--{name}", *texts)]
    values = {name: value for name, (_, value) in EVERY_FIELD.items()}

    (from_line,), (from_dict,) = parser.parse_args_into_dataclasses(line), parser.parse_dict(values)

    assert from_line == from_dict == RecorderArguments(**values)


def test_the_options_stand_in_a_group_of_their_own() -> None:
    text = DataclassArgumentParser(RecorderArguments).format_help()

    assert "--max_frames_to_save" in text.partition("\ntrace recorder:\n")[2]
    assert "_argument_group_name" not in text


def test_defaults_are_those_of_the_recorder() -> None:
    parameters = inspect.signature(TraceRecorder).parameters

    for name, value in RecorderArguments().as_options().items():
        expected = parameters[name].default
        assert value == (list(expected) if isinstance(expected, tuple) else expected), name
    assert set(parameters) - set(EVERY_FIELD) == {"model", "path", "callbacks"}


def test_two_objects_share_no_list() -> None:
    one, other = RecorderArguments(), RecorderArguments()
    one.roles.append("grad_input")
    one.ignore.append("a:b")

    assert other == RecorderArguments()


@pytest.mark.parametrize(("name", "value", "kind", "message"), WRONG)
def test_a_wrong_value_is_refused_by_name(name: str, value: object, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        RecorderArguments(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


@given(st.lists(st.integers(min_value=0, max_value=2**62), max_size=5), st.integers(min_value=1, max_value=2**62))
def test_numbers_come_back_from_a_command_line(numbers: list[int], frames: int) -> None:
    line = ["--trace_batch_nums", *map(str, numbers), "--max_frames_to_save", str(frames)]

    (made,) = DataclassArgumentParser(RecorderArguments).parse_args_into_dataclasses(line)

    assert made == RecorderArguments(trace_batch_nums=numbers, max_frames_to_save=frames)
