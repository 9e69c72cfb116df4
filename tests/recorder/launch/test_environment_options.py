from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest

from overflow_recorder.launch.cli import LaunchArguments, environment_options
from overflow_recorder.recorder_arguments import RecorderArguments

EVERY_OPTION = {
    "OUTPUT": ("runs/1.parquet", Path("runs/1.parquet")),
    "MODEL": ("trainer.model", "trainer.model"),
    "MAX_FRAMES_TO_SAVE": ("50", 50),
    "TRACE_BATCH_NUMS": ("1 3", [1, 3]),
    "EVERY_N_BATCHES": ("100", 100),
    "ABORT_AFTER_BATCH_NUM": ("7", 7),
    "ON_NONFINITE": ("warn", "warn"),
    "ROLES": ("weight output", ["weight", "output"]),
    "STATISTICS": ("full", "full"),
    "IGNORE": ("'*.two words:input[mask]' a:b", ["*.two words:input[mask]", "a:b"]),
    "MAX_BYTES": ("1000000", 1_000_000),
    "OVERWRITE": ("yes", True),
    "REPLAY": ("no", False),
}


@dataclass
class Named:
    names: dict[str, int] = field(default_factory=dict)


@pytest.mark.parametrize("name", EVERY_OPTION)
def test_every_option_has_a_variable(name: str) -> None:
    text, value = EVERY_OPTION[name]

    found = environment_options([LaunchArguments, RecorderArguments], {f"OVERFLOW_RECORD_{name}": text, "HOME": "/"})

    assert found == {name.lower(): value}


def test_no_option_is_left_out() -> None:
    names = {one.name.upper() for kind in (LaunchArguments, RecorderArguments) for one in fields(kind)}

    assert names == set(EVERY_OPTION)


def test_an_empty_variable_is_none() -> None:
    assert environment_options([RecorderArguments], {"OVERFLOW_RECORD_MAX_BYTES": ""}) == {}


def test_a_dict_is_json_with_its_blanks() -> None:
    assert environment_options([Named], {"OVERFLOW_RECORD_NAMES": '{"a b": 1}'}) == {"names": {"a b": 1}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("MAX_BYTE", "1", r"OVERFLOW_RECORD_MAX_BYTE is no option's \(did you mean OVERFLOW_RECORD_MAX_BYTES\?\)"),
        ("MAX_BYTES", "many", "OVERFLOW_RECORD_MAX_BYTES: expected int, got 'many'"),
        ("ON_NONFINITE", "stop", "OVERFLOW_RECORD_ON_NONFINITE: expected one of raise, warn, ignore, got 'stop'"),
        ("TRACE_BATCH_NUMS", "1,3", "OVERFLOW_RECORD_TRACE_BATCH_NUMS: element 0: expected int"),
        ("ROLES", "weights", "OVERFLOW_RECORD_ROLES: expected one of weight, buffer"),
        ("IGNORE", "'a:b", "OVERFLOW_RECORD_IGNORE: No closing quotation"),
    ],
)
def test_a_wrong_variable_is_named(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        environment_options([RecorderArguments], {f"OVERFLOW_RECORD_{name}": text})
