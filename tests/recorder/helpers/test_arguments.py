"""The parser's options and defaults, what comes back, and plain argparse beside them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from typing import Any, ClassVar

import pytest

from overflow_recorder.helpers.arguments import DataclassArgumentParser, UnrecognizedArgumentsError
from tests.recorder.subprocesses import output_without_torch


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Train:
    learning_rate_scale: float = 1.0
    steps: int = 10


@dataclass
class Evaluate:
    eval_every: int = 5


def _parse(dataclass_types: Any, *texts: str) -> Any:
    (made,) = DataclassArgumentParser(dataclass_types).parse_args_into_dataclasses(list(texts))
    return made


def _one_field(hint: Any, default: Any = ...) -> Any:
    return make_dataclass("Args", [("x", hint) if default is ... else ("x", hint, default)])


def _usage_error(capsys: pytest.CaptureFixture[str], dataclass_type: Any, *texts: str) -> str:
    """The last line that a usage error prints."""
    with pytest.raises(SystemExit) as stopped:
        _parse(dataclass_type, *texts)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# --- options


@pytest.mark.parametrize("option", ["--learning_rate_scale", "--learning-rate-scale"])
def test_underscores_may_be_hyphens(option: str) -> None:
    assert _parse(Train, option, "3") == Train(3.0, 10)


def test_several_dataclasses_come_back_in_order() -> None:
    parser = DataclassArgumentParser([Train, Evaluate])

    assert parser.parse_args_into_dataclasses(["--eval_every", "1", "--steps", "2"]) == (Train(steps=2), Evaluate(1))


def test_options_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    error = _usage_error(capsys, Train, "--learning_rate", "3")

    assert "unrecognized arguments: --learning_rate 3" in error
    assert "did you mean --learning_rate_scale?" in error


def test_abbreviation_can_be_asked_for() -> None:
    parser = DataclassArgumentParser(Train, allow_abbrev=True)

    assert parser.parse_args_into_dataclasses(["--learning_rate", "3"]) == (Train(3.0),)


def test_unknown_arguments_are_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="--unknown") as raised:
        _parse(Train, "--unknown", "3")

    assert isinstance(raised.value, UnrecognizedArgumentsError)


def test_unknown_arguments_can_be_asked_for() -> None:
    parser = DataclassArgumentParser(Train)

    made = parser.parse_args_into_dataclasses(["--unknown", "3", "--steps", "1"], return_remaining_strings=True)

    assert made == (Train(steps=1), ["--unknown", "3"])


def test_a_field_without_a_default_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert _usage_error(capsys, _one_field(int)).endswith("the following arguments are required: --x")
    assert _parse(_one_field(int), "--x", "1").x == 1


def test_an_enum_without_a_default_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert "required: --x" in _usage_error(capsys, _one_field(Colour))


@pytest.mark.parametrize("texts", [[], ["--x", "red"]])
def test_an_enums_default_and_its_text_give_the_same_type(texts: list[str]) -> None:
    assert _parse(_one_field(Colour, Colour.RED), *texts).x is Colour.RED


@pytest.mark.parametrize("aliases", ["-x", ["-x", "--other"]])
def test_aliases(aliases: Any) -> None:
    kind = _one_field(int, field(default=1, metadata={"aliases": aliases}))

    assert _parse(kind, "-x", "3").x == 3


def test_fields_outside_init_are_no_arguments() -> None:
    # GIVEN a field and a class variable whose types no text could make
    @dataclass
    class Args:
        x: int = 1
        made: Any = field(default=None, init=False)
        shared: ClassVar[int] = 3

    # THEN
    assert _parse(Args, "--x", "2").x == 2
    with pytest.raises(UnrecognizedArgumentsError):
        _parse(Args, "--made", "2")


def test_inherited_and_keyword_only_fields() -> None:
    @dataclass(kw_only=True)
    class More(Train):
        extra: str

    assert _parse(More, "--extra", "a", "--steps", "3") == More(steps=3, extra="a")


def test_a_negative_form_leaves_the_option_of_a_field_alone() -> None:
    # GIVEN
    @dataclass
    class Args:
        cuda: bool = True
        no_cuda: bool = False

    # THEN
    assert _parse(Args, "--no_cuda") == Args(cuda=True, no_cuda=True)


def test_choices_of_the_metadata(capsys: pytest.CaptureFixture[str]) -> None:
    kind = _one_field(str | None, field(default=None, metadata={"choices": {"fork": 1, "spawn": 2}.keys()}))

    assert _parse(kind).x is None
    assert _parse(kind, "--x", "fork").x == "fork"
    assert "Args.x: expected one of fork, spawn, got 'thread'" in _usage_error(capsys, kind, "--x", "thread")
    with pytest.raises(ValueError, match=r"Args\.x: expected one of fork, spawn"):
        DataclassArgumentParser(kind).parse_dict({"x": "thread"})


def test_choices_of_each_element() -> None:
    kind = _one_field(list[int], field(default_factory=list, metadata={"choices": [1, 2]}))

    assert _parse(kind, "--x", "1", "2", "1").x == [1, 2, 1]
    with pytest.raises(SystemExit):
        _parse(kind, "--x", "1", "3")


def test_foreign_metadata_is_left_alone() -> None:
    metadata = {"nargs": "?", "type": print, "choices": 3, "help": object(), "metavar": 1, "mine": [], 5: 6}

    assert _parse(_one_field(int, field(default=1, metadata=metadata)), "--x", "3").x == 3


# --- defaults


def test_a_default_factory_is_called_for_each_result() -> None:
    # GIVEN
    kind = make_dataclass("Args", [("x", dict, field(default_factory=lambda: {"a": [1]}))])
    parser = DataclassArgumentParser(kind)

    # WHEN
    (first,) = parser.parse_args_into_dataclasses([])
    first.x["a"].append(2)
    (second,) = parser.parse_args_into_dataclasses([])

    # THEN
    assert second.x == {"a": [1]}


def test_defaults_are_taken_as_they_are() -> None:
    default = object()

    assert _parse(_one_field(int, default)).x is default
    assert _parse(_one_field(int, "3")).x == "3"


# --- native argparse


def test_added_arguments_come_back_as_a_namespace_after_the_dataclasses() -> None:
    # GIVEN
    parser = DataclassArgumentParser([Train, Evaluate])
    parser.add_argument("--comment", default="none")
    parser.add_argument("file", nargs="?")

    # WHEN
    made = parser.parse_args_into_dataclasses(["--steps", "3", "a.txt", "-z"], return_remaining_strings=True)

    # THEN
    assert made == (Train(steps=3), Evaluate(), argparse.Namespace(comment="none", file="a.txt"), ["-z"])


def test_a_parser_without_dataclasses_is_argparse() -> None:
    parser = DataclassArgumentParser(prog="train", description="Trains.")
    parser.add_argument("--x", type=int)

    assert parser.parse_args_into_dataclasses(["--x", "3"]) == (argparse.Namespace(x=3),)
    assert parser.format_help().startswith("usage: train")


def test_parse_args_gives_one_namespace_of_converted_values() -> None:
    parsed = DataclassArgumentParser(Train).parse_args(["--steps", "3"])

    assert parsed == argparse.Namespace(learning_rate_scale=1.0, steps=3)


def test_set_defaults_are_used() -> None:
    # GIVEN
    kind = make_dataclass("Args", [("x", int, 1), ("several", list[int], field(default_factory=list))])
    parser = DataclassArgumentParser(kind)
    parser.set_defaults(x=5, several=[7])

    # THEN
    (made,) = parser.parse_args_into_dataclasses([])
    assert (made.x, made.several) == (5, [7])


def test_subparsers() -> None:
    # GIVEN
    parser = DataclassArgumentParser(Train)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("fit").add_argument("--fast", action="store_true")

    # WHEN
    train, others = parser.parse_args_into_dataclasses(["--steps", "3", "fit", "--fast"])

    # THEN
    assert train == Train(steps=3)
    assert others == argparse.Namespace(command="fit", fast=True)


def test_errors_can_be_raised_instead_of_exiting() -> None:
    parser = DataclassArgumentParser(Train, exit_on_error=False)

    with pytest.raises(argparse.ArgumentError, match=r"Train\.steps: expected int, got 'x'"):
        parser.parse_args_into_dataclasses(["--steps", "x"])


# --- without torch


def test_works_without_torch() -> None:
    code = """
        import sys
        from dataclasses import dataclass
        from overflow_recorder.helpers.arguments import DataclassArgumentParser
        @dataclass
        class Args:
            x: int | None = None
        print(DataclassArgumentParser(Args).parse_args_into_dataclasses(["--x", "3"]), "torch" in sys.modules)
    """

    assert output_without_torch(code) == "(Args(x=3),) False\n"
