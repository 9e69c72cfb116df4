"""The same arguments for this parser and for transformers', where both define what happens; and where they differ."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, make_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Optional, Union

import pytest

from overflow_recorder.helpers.arguments import DataclassArgumentParser

HfArgumentParser: Any = pytest.importorskip("transformers.hf_argparser").HfArgumentParser


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


@dataclass
class Args:
    required: int
    number: float = 0.5
    text: str = field(default="toto", metadata={"help": "A text.", "aliases": ["--txt", "-t"]})
    flag: bool = False
    on: bool = True
    bare: bool = field(default=False)
    maybe: Optional[bool] = None  # noqa: UP045 - as older scripts spell it
    literal: Literal["titi", "toto", 42] = "toto"
    whole: int | None = None
    numbers: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=lambda: ["a", "b"])
    either: Union[str, float] = 1.0  # noqa: UP007 - as older scripts spell it
    path: Path = Path("p")


@dataclass
class Grouped:
    _argument_group_name = "second"
    depth: int = 3


LINES = [
    [],
    ["--number", "1e-3", "--text", "a b", "--whole", "7"],
    ["--txt", "a"],
    ["-t", "a"],
    ["--flag"],
    ["--flag", "no"],
    ["--flag", "True"],
    ["--on", "false"],
    ["--no_on"],
    ["--no-on"],
    ["--maybe", "yes"],
    ["--maybe", "0"],
    ["--literal", "titi"],
    ["--literal", "42"],
    ["--numbers", "1", "2", "-3"],
    ["--texts", "c"],
    ["--numbers", "1", "--numbers", "2"],
    ["--either", "1.5"],
    ["--path", "a/b"],
    ["--depth", "4", "--depth", "5"],
    ["--number=inf"],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_the_same_from_a_command_line(line: list[str]) -> None:
    # GIVEN
    line = ["--required", "1", *line]

    # WHEN
    ours = DataclassArgumentParser([Args, Grouped]).parse_args_into_dataclasses(line, look_for_args_file=False)
    theirs = HfArgumentParser([Args, Grouped]).parse_args_into_dataclasses(line, look_for_args_file=False)

    # THEN
    assert ours == theirs
    assert repr(ours) == repr(theirs)  # the types of the values too


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["--required", "x"],
        ["--required", "1", "--literal", "tata"],
        ["--required", "1", "--maybe", "perhaps"],
        ["--required", "1", "--numbers", "a"],
    ],
    ids=" ".join,
)
def test_the_same_is_a_usage_error(line: list[str]) -> None:
    for kind in (DataclassArgumentParser, HfArgumentParser):
        with pytest.raises(SystemExit) as stopped:
            kind([Args, Grouped]).parse_args_into_dataclasses(line, look_for_args_file=False)
        assert stopped.value.code == 2


def test_the_same_comes_back_beside_the_dataclasses() -> None:
    results = []
    for kind in (DataclassArgumentParser, HfArgumentParser):
        parser = kind(Grouped, description="d")
        parser.add_argument("--extra", type=int)
        line = ["--extra", "3", "--unknown", "4"]
        results.append(
            parser.parse_args_into_dataclasses(line, return_remaining_strings=True, look_for_args_file=False)
        )

    assert results[0] == results[1]


def test_unknown_arguments_are_a_value_error_for_both() -> None:
    for kind in (DataclassArgumentParser, HfArgumentParser):
        with pytest.raises(ValueError, match="--unknown"):
            kind(Grouped).parse_args_into_dataclasses(["--unknown", "4"], look_for_args_file=False)


@pytest.mark.parametrize("name", ["parse_dict", "parse_json_file", "parse_yaml_file"])
def test_the_same_from_well_typed_files(name: str, tmp_path: Path) -> None:
    # GIVEN
    source: Any = {
        "required": 3,
        "text": "a",
        "flag": True,
        "numbers": [1, 2],
        "literal": 42,
        "whole": None,
        "depth": 1,
        "zz": 0,
    }
    if name != "parse_dict":
        path = tmp_path / "file"
        path.write_text(json.dumps(source), encoding="utf-8")
        source = path

    # WHEN
    ours, theirs = (
        getattr(kind([Args, Grouped]), name)(source, allow_extra_keys=True)
        for kind in (DataclassArgumentParser, HfArgumentParser)
    )

    # THEN
    assert ours == theirs
    for kind in (DataclassArgumentParser, HfArgumentParser):
        with pytest.raises(ValueError, match="zz"):
            getattr(kind([Args, Grouped]), name)(source)


def test_the_same_from_args_files(tmp_path: Path) -> None:
    # GIVEN
    first, second = tmp_path / "first.args", tmp_path / "second.args"
    first.write_text("--required 1 --number 2\n--text a", encoding="utf-8")
    second.write_text("--number 3 --numbers 4 5", encoding="utf-8")
    line = ["--args_file", str(second), "--text", "b"]

    # WHEN
    ours, theirs = (
        kind(Args).parse_args_into_dataclasses(line, args_filename=str(first), args_file_flag="--args_file")
        for kind in (DataclassArgumentParser, HfArgumentParser)
    )

    # THEN
    assert ours == theirs == (Args(1, 3.0, "b", numbers=[4, 5]),)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what importing the Trainer's dependencies warns about
@pytest.mark.parametrize(
    "line",
    [
        [],
        ["--eval_strategy", "steps", "--eval_steps", "5", "--report_to", "none", "--learning_rate", "1e-3"],
        ["--no_dataloader_pin_memory", "--label_names", "a", "b", "--disable_tqdm", "true", "--log_level", "info"],
        ["--lr_scheduler_kwargs", '{"a": 1}', "--gradient_checkpointing", "--include_for_metrics", "inputs", "loss"],
    ],
    ids=["defaults", "strategies", "flags and lists", "dicts"],
)
def test_the_same_training_arguments(line: list[str], tmp_path: Path) -> None:
    # GIVEN the dataclass with most fields that anyone parses
    kind = pytest.importorskip("transformers").TrainingArguments
    line = ["--output_dir", str(tmp_path), "--use_cpu", *line]

    # WHEN
    (ours,) = DataclassArgumentParser(kind).parse_args_into_dataclasses(line)
    (theirs,) = HfArgumentParser(kind).parse_args_into_dataclasses(line)

    # THEN
    for one in fields(kind):
        assert repr(getattr(ours, one.name)) == repr(getattr(theirs, one.name)), one.name


# --- what differs on purpose, as docs/helpers.md lists it


def _outcome(parser: Any, kind: Any, line: list[str]) -> Any:
    try:
        (made,) = parser(kind).parse_args_into_dataclasses(line, look_for_args_file=False)
    except (Exception, SystemExit):  # noqa: BLE001 - whatever the other parser raises
        return "fails"
    return made.x


def _field(hint: Any, default: Any = ..., **options: Any) -> Any:
    options.setdefault("metadata", {})
    return make_dataclass("X", [("x", hint, field(**options) if default is ... else field(default=default, **options))])


@pytest.mark.parametrize(
    ("kind", "line", "theirs", "ours"),
    [
        (_field(Mode, Mode.FAST), ["--x", "slow"], "slow", Mode.SLOW),
        (_field(dict), ["--x", '{"a": 1}'], "fails", {"a": 1}),
        (_field(int | str), ["--x", "auto"], "fails", "auto"),
        (_field(int | str, "auto"), [], "fails", "auto"),
        (_field(int | float), ["--x", "0.5"], "fails", 0.5),
        (_field(list[bool]), ["--x", "False"], [True], [False]),
        (_field(float), ["--x", "-1e-4"], "fails", -1e-4),
        (_field(list), ["--x", "a"], "fails", ["a"]),
        (_field(tuple[int, str]), ["--x", "1", "a"], "fails", (1, "a")),
        (_field(list[int], default_factory=lambda: [1]), ["--x"], "fails", []),
        (_field(bool, default=False), ["--no_x"], "fails", False),
        (_field(bool | None, None), ["--x"], "fails", True),
        (_field(int, 1, metadata={"mine": 1}), [], "fails", 1),
        (
            make_dataclass("X", [("x_scale", int, 1)], namespace={"x": property(lambda self: self.x_scale)}),
            ["--x_s", "3"],
            3,
            "fails",
        ),
    ],
)
def test_differences_on_the_command_line(kind: Any, line: list[str], theirs: object, ours: object) -> None:
    assert _outcome(HfArgumentParser, kind, line) == theirs
    assert _outcome(DataclassArgumentParser, kind, line) == ours


def test_their_default_factory_is_shared() -> None:
    results = {}
    for parser_kind in (DataclassArgumentParser, HfArgumentParser):
        parser = parser_kind(_field(list[int], default_factory=list))
        (first,), (second,) = (parser.parse_args_into_dataclasses([], look_for_args_file=False) for _ in range(2))
        results[parser_kind] = first.x is second.x

    assert results == {DataclassArgumentParser: False, HfArgumentParser: True}


def test_their_help_fails_on_a_percent_sign() -> None:
    kind = _field(int, 1, metadata={"help": "50% of"})

    assert "50% of" in DataclassArgumentParser(kind).format_help()
    with pytest.raises((ValueError, TypeError)):
        HfArgumentParser(kind).format_help()


def test_their_values_from_dicts_are_kept_as_they_are() -> None:
    kind = _field(int, 1)

    assert HfArgumentParser(kind).parse_dict({"x": "3"})[0].x == "3"
    assert DataclassArgumentParser(kind).parse_dict({"x": "3"})[0].x == 3


def test_their_group_name_becomes_an_option_where_annotated() -> None:
    kind = make_dataclass("X", [("_argument_group_name", str, "group"), ("x", int, 1)])

    assert "--_argument_group_name" in HfArgumentParser(kind).format_help()
    assert "--_argument_group_name" not in DataclassArgumentParser(kind).format_help()


def test_their_named_args_file_need_not_be_there(tmp_path: Path) -> None:
    missing = tmp_path / "none.args"

    assert HfArgumentParser(Grouped).parse_args_into_dataclasses([], args_filename=missing) == (Grouped(),)
    with pytest.raises(FileNotFoundError):
        DataclassArgumentParser(Grouped).parse_args_into_dataclasses([], args_filename=missing)
