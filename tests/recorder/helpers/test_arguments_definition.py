"""What is refused when the parser is made; postponed annotations, as this module's are."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field, make_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

from overflow_recorder.helpers.arguments import DataclassArgumentParser

if TYPE_CHECKING:
    from decimal import Decimal


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


# --- errors when the parser is made


def test_two_dataclasses_that_share_a_field_are_refused_with_both_names() -> None:
    other = make_dataclass("Other", [("steps", int, 1)])

    with pytest.raises(ValueError, match=r"^Other\.steps: Train\.steps has this name already"):
        DataclassArgumentParser([Train, other])


def test_the_same_dataclass_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Train\.learning_rate_scale"):
        DataclassArgumentParser([Train, Train])


@pytest.mark.parametrize(
    "kind",
    [
        make_dataclass("Args", [("help", int, 1)]),
        make_dataclass("Args", [("x", int, field(default=1, metadata={"aliases": "-h"}))]),
    ],
)
def test_an_option_that_is_taken_is_refused_with_class_and_field(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"^Args\.(help|x): .*conflicting option string"):
        DataclassArgumentParser(kind)


@pytest.mark.parametrize("wrong", [Train(), int, [Train, int], ["Train"]])
def test_what_is_no_dataclass_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected dataclasses"):
        DataclassArgumentParser(wrong)


@pytest.mark.parametrize("hint", [Colour, Colour | None])
def test_an_enums_default_may_be_the_text_of_a_member(hint: Any) -> None:
    # GIVEN a field as older scripts have it
    kind = make_dataclass("Args", [("x", hint, field(default="red", metadata={"help": "X."}))])

    # THEN it is the member, wherever it comes from
    assert _parse(kind).x is Colour.RED
    assert DataclassArgumentParser(kind).parse_dict({})[0].x is Colour.RED
    assert "(default: Colour.RED)" in DataclassArgumentParser(kind).format_help()


def test_an_enums_default_that_may_be_a_text_stays_one() -> None:
    assert _parse(make_dataclass("Args", [("x", Colour | str, "red")])).x == "red"


def test_an_enums_default_that_is_no_member_is_refused_with_class_and_field() -> None:
    kind = make_dataclass("Args", [("x", Colour, "green")])

    with pytest.raises(ValueError, match=r"^Args\.x: its default: expected Colour, one of red, blue, got 'green'$"):
        DataclassArgumentParser(kind)


# --- InitVar


def test_what_only_the_constructor_takes_is_an_argument() -> None:
    # GIVEN postponed annotations
    @dataclass
    class Args:
        size: InitVar[int]
        scale: InitVar[list[float] | None] = None
        area: float = field(init=False)

        def __post_init__(self, size: int, scale: list[float] | None) -> None:
            self.area = size * sum(scale or [1.0])

    # THEN
    assert _parse(Args, "--size", "3").area == 3.0
    assert _parse(Args, "--size", "3", "--scale", "1", "2").area == 9.0
    assert DataclassArgumentParser(Args).parse_dict({"size": "2"})[0].area == 2.0
    with pytest.raises(ValueError, match=r"^Args\.size: expected int, got 'x'"):
        DataclassArgumentParser(Args).parse_dict({"size": "x"})
    with pytest.raises(ValueError, match=r"^Args\.size: missing"):
        DataclassArgumentParser(Args).parse_dict({})


@pytest.mark.parametrize("annotation", [InitVar[int], InitVar["int"]])
def test_an_initvar_however_it_is_written(annotation: Any) -> None:
    seen: list[object] = []
    kind = make_dataclass("Args", [("x", annotation)], namespace={"__post_init__": lambda self, x: seen.append(x)})

    _parse(kind, "--x", "3")

    assert seen == [3]


# --- postponed annotations (this module's are)


def test_postponed_annotations_of_a_local_dataclass() -> None:
    @dataclass
    class Local:
        colour: Colour = Colour.RED
        several: list[int] | None = None

    assert _parse(Local, "--colour", "blue", "--several", "1") == Local(Colour.BLUE, [1])


def test_a_local_dataclass_may_contain_itself() -> None:
    @dataclass
    class Node:
        size: int = 1
        child: Node | None = None

    assert _parse(Node, "--child", '{"child": {"size": 3}}') == Node(1, Node(1, Node(3)))


def test_a_local_type_in_a_postponed_annotation_is_refused_and_says_what_to_do() -> None:
    # GIVEN
    class Shape(Enum):
        ROUND = "round"

    @dataclass
    class Local:
        shape: Shape = Shape.ROUND

    # THEN
    message = r"^Local\.shape: the annotation 'Shape' cannot be resolved .*not defined.*define .* not in a function"
    with pytest.raises(TypeError, match=message):
        DataclassArgumentParser(Local)


def test_a_type_that_only_the_type_checker_imports_is_refused() -> None:
    @dataclass
    class Args:
        amount: Decimal | None = None

    with pytest.raises(TypeError, match=r"^Args\.amount: .*TYPE_CHECKING"):
        DataclassArgumentParser(Args)


def test_a_field_may_be_called_what_its_type_is() -> None:
    @dataclass
    class Args:
        Colour: Colour = Colour.RED

    assert _parse(Args, "--Colour", "blue").Colour is Colour.BLUE


def test_the_dataclass_is_left_as_it_was() -> None:
    before = {name: one.type for name, one in Train.__dataclass_fields__.items()}

    DataclassArgumentParser(Train)

    assert {name: one.type for name, one in Train.__dataclass_fields__.items()} == before
