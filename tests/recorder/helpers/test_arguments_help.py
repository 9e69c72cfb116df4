"""The parser's help and groups."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest

from overflow_recorder.helpers.arguments import DataclassArgumentParser


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def _parse(dataclass_types: Any, *texts: str) -> Any:
    (made,) = DataclassArgumentParser(dataclass_types).parse_args_into_dataclasses(list(texts))
    return made


def _one_field(hint: Any, default: Any = ...) -> Any:
    return make_dataclass("Args", [("x", hint) if default is ... else ("x", hint, default)])


def _help(dataclass_types: Any) -> str:
    return " ".join(DataclassArgumentParser(dataclass_types, prog="train").format_help().split())


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("50% of", "50% of"),
        ("50%", "50%"),
        ("100%(all)s", "100%(all)s"),
        ("50%% of", "50% of"),
        ("%d %s", "%d %s"),
        ("half of %(default)s%", "half of 4%"),
    ],
)
def test_percent_signs_are_printed(written: str, shown: str) -> None:
    assert f"--x X {shown}" in _help(_one_field(int, field(default=4, metadata={"help": written})))


def test_the_help_shows_defaults_and_no_false_ones() -> None:
    @dataclass
    class Args:
        required: int = field(metadata={"help": "Must be there."})
        optional: int = field(default=4, metadata={"help": "May be there."})
        several: list[int] = field(default_factory=lambda: [1, 2], metadata={"help": "Some."})

    text = _help(Args)
    assert "Must be there. --optional" in text
    assert "May be there. (default: 4)" in text
    assert "Some. (default: [1, 2])" in text


def test_the_help_shows_choices() -> None:
    text = _help(make_dataclass("Args", [("colour", Colour), ("mode", Literal["a", 1]), ("options", dict)]))

    assert "--colour {red,blue}" in text
    assert "--mode {a,1}" in text
    assert "--options JSON" in text


@pytest.mark.parametrize(
    "extras",
    [
        ("How many.",),
        ({"help": "How many."},),
        (3, {"other": 1}, "How many."),
        (argparse.Namespace(documentation="How many."),),
    ],
)
def test_the_help_may_stand_in_annotated(extras: tuple[Any, ...]) -> None:
    hint = Annotated.__class_getitem__((int, *extras))  # type: ignore[attr-defined]  # Annotated[int, *extras] from 3.11

    assert "--x X How many." in _help(_one_field(hint, 1))


def test_annotated_may_give_aliases_and_the_fields_metadata_comes_first() -> None:
    hint = Annotated[int, {"help": "From the hint.", "aliases": "-x"}]
    kind = _one_field(hint, field(default=1, metadata={"help": "From the field."}))

    assert "-x X From the field." in _help(kind)


# --- groups


def test_a_group_name_makes_a_group() -> None:
    # GIVEN
    @dataclass
    class Grouped:
        _argument_group_name = "training"
        x: int = 1

    # THEN
    assert "training: --x X" in _help(Grouped)
    assert _parse(Grouped, "--x", "2") == Grouped(2)


def test_an_annotated_group_name_is_no_option() -> None:
    # GIVEN
    @dataclass
    class Grouped:
        _argument_group_name: str = "training"
        x: int = 1

    # THEN
    text = _help(Grouped)
    assert "training: --x X" in text
    assert "argument_group_name" not in text
    made = _parse(Grouped, "--x", "2")
    assert (made.x, made._argument_group_name) == (2, "training")
    with pytest.raises(ValueError, match="_argument_group_name"):
        DataclassArgumentParser(Grouped).parse_dict({"_argument_group_name": "other"})


def test_dataclasses_may_share_a_group() -> None:
    # GIVEN
    kinds = [
        make_dataclass("A", [("a", int, 1)], namespace={"_argument_group_name": "both"}),
        make_dataclass("B", [("b", int, 1)], namespace={"_argument_group_name": "both"}),
    ]

    # THEN
    assert "both: --a A --b B" in _help(kinds)
