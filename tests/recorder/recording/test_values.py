from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, UserDict, deque, namedtuple
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from overflow_recorder.recording.values import MAX_DEPTH, MAX_LEAVES, More, as_tensor, walk, walk_inputs

X = torch.ones(2)

Pair = namedtuple("Pair", ["first", "second"])  # noqa: PYI024  the untyped kind, which old code has


@dataclasses.dataclass
class Output:
    logits: Any
    states: Any = None
    kind: ClassVar[str] = "not a field"
    seed: dataclasses.InitVar[int] = 0


class Custom:
    def __init__(self) -> None:
        self.tensor = X


class Color(str, enum.Enum):
    RED = "red"


class Unreadable(UserDict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise ConnectionError("the values are elsewhere")


def contexts(value: Any) -> list[str]:
    return [context for context, _ in walk(value, "output")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (X, ["output"]),
        ((X, X), ["output[0]", "output[1]"]),
        ([X, [X, (X,)]], ["output[0]", "output[1][0]", "output[1][1][0]"]),
        ({"a": X, "b": {"c": X}}, ["output[a]", "output[b][c]"]),
        (OrderedDict(logits=X), ["output[logits]"]),
        (UserDict({"ids": X}), ["output[ids]"]),
        (Pair(X, (X,)), ["output[0]", "output[1][0]"]),
        (deque([X]), ["output[0]"]),
        (Output(X, [X]), ["output[logits]", "output[states][0]"]),
        ({1: X, None: X, (2, 3): X, b"k": X}, ["output[1]", "output[None]", "output[(2, 3)]", "output[b'k']"]),
        ({Color.RED: X}, ["output[red]"]),
    ],
)
def test_contexts_of_nested_values(value: Any, expected: list[str]) -> None:
    # WHEN
    found = list(walk(value, "output"))

    # THEN every tensor is found, under the name by which one would reach it
    assert [context for context, _ in found] == expected
    assert all(leaf is X for _, leaf in found)


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "text",
        b"bytes",
        [],
        {},
        Custom(),
        Output,
        {X},
        range(3),
        np.ones(2),
        Unreadable(a=X),
    ],
)
def test_everything_else_is_one_leaf(value: Any) -> None:
    assert [(context, id(leaf)) for context, leaf in walk(value, "output")] == [("output", id(value))]


def test_a_generator_is_not_consumed() -> None:
    # GIVEN
    values = (tensor for tensor in (X, X))

    # WHEN
    found = list(walk(values, "output"))

    # THEN
    assert found == [("output", values)]
    assert len(list(values)) == 2


def test_a_packed_sequence_shows_its_tensors() -> None:
    assert contexts(pack_sequence([torch.ones(2, 3), torch.ones(1, 3)])) == [
        f"output[{position}]" for position in range(4)
    ]


def test_a_container_inside_itself_is_a_leaf() -> None:
    # GIVEN
    inside: list[Any] = [X]
    inside.append(inside)

    # THEN
    assert [(context, id(leaf)) for context, leaf in walk(inside, "output")] == [
        ("output[0]", id(X)),
        ("output[1]", id(inside)),
    ]


def test_depth_is_bounded() -> None:
    # GIVEN
    value: Any = X
    for _ in range(1000):
        value = [value]

    # WHEN
    found = list(walk(value, "output"))

    # THEN
    assert len(found) == 1
    assert found[0][0] == "output" + "[0]" * MAX_DEPTH
    assert isinstance(found[0][1], list)


def test_width_is_bounded_and_says_how_much_is_left_out() -> None:
    # WHEN
    found = list(walk([X] * 5000, "output"))

    # THEN
    assert found[MAX_LEAVES - 1][0] == f"output[{MAX_LEAVES - 1}]"
    assert len(found) == MAX_LEAVES + 1
    assert found[-1] == ("output[...]", More(5000 - MAX_LEAVES, exact=True))
    assert str(found[-1][1]) == f"{5000 - MAX_LEAVES} more values are not recorded"


def test_what_is_shared_again_and_again_is_not_counted_to_the_end() -> None:
    # GIVEN a billion leaves in thirty lists
    value: Any = X
    for _ in range(30):
        value = [value, value]

    # WHEN
    *_, (_, rest) = walk(value, "output")

    # THEN
    assert str(rest).startswith("more than 10000 more")


def test_a_mapping_of_millions_is_not_read_to_the_end() -> None:
    # GIVEN
    class Endless(UserDict[int, Any]):
        def __iter__(self) -> Any:
            number = 0
            while True:
                yield number
                number += 1

        def __getitem__(self, key: int) -> Any:
            return X

    # THEN
    *_, (_, rest) = walk(Endless(), "output")
    assert isinstance(rest, More)


def test_keys_are_bounded_and_are_text() -> None:
    # GIVEN keys whose own text is endless, fails, costs a wait for a device, or is no text at all
    class Unprintable:
        def __repr__(self) -> str:
            raise ValueError("no text")

    value = {"k" * 1000: X, Unprintable(): X, X: X, "\udc80": X}

    # THEN
    assert contexts(value) == [f"output[{'k' * 80}...]", "output[Unprintable 1]", "output[Tensor 2]", r"output[\udc80]"]


def test_inputs_by_position_and_by_name() -> None:
    # WHEN
    found = list(walk_inputs((X, None, 3), {"mask": X, "past": None, "use_cache": True, "extra": {"a": [X, 1]}}))

    # THEN positions are all there; of keywords those that hold a tensor
    assert [context for context, _ in found] == [
        "input[0]",
        "input[1]",
        "input[2]",
        "input[mask]",
        "input[extra][a][0]",
        "input[extra][a][1]",
    ]


NESTED = st.recursive(
    st.integers(0, 9),
    lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(max_size=5), inner)),
    max_leaves=40,
)


def _resolve(value: Any, path: list[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all leaves, written without the module under test."""
    if isinstance(value, dict) and value:
        return [one for key, child in value.items() for one in _paths(child, (*path, key))]
    if isinstance(value, (list, tuple)) and value:
        return [one for key, child in enumerate(value) for one in _paths(child, (*path, key))]
    return [path]


@given(NESTED)
def test_every_leaf_is_found_once_in_order(value: Any) -> None:
    # WHEN
    found = list(walk(value, "v"))

    # THEN
    paths = _paths(value)
    assert [leaf for _, leaf in found] == [_resolve(value, list(path)) for path in paths]
    assert [context for context, _ in found] == ["v" + "".join(f"[{key}]" for key in path) for path in paths]


# Numbers that are no tensors.


@pytest.mark.parametrize(
    ("value", "dtype", "elements"),
    [
        (1.5, torch.float64, [1.5]),
        (1e300, torch.float64, [1e300]),
        (float("nan"), torch.float64, [float("nan")]),
        (-7, torch.int64, [-7]),
        (3 + 4j, torch.complex128, [3 + 4j]),
        (np.float32(2), torch.float32, [2.0]),
        (np.float16(6e4), torch.float16, [6e4]),
        (np.array([1, 2], np.int8), torch.int8, [1, 2]),
        (np.array([1, 2], np.uint16), torch.uint16, [1, 2]),
        (np.array([True]), torch.bool, [True]),
        (np.array([1.0, 2.0], ">f8"), torch.float64, [1.0, 2.0]),
        (np.arange(3.0)[::-1], torch.float64, [2.0, 1.0, 0.0]),
        (np.array([1.0], np.longdouble), torch.float64, [1.0]),
    ],
)
def test_numbers_become_tensors(value: Any, dtype: torch.dtype, elements: list[Any]) -> None:
    # WHEN
    tensor = as_tensor(value)

    # THEN
    assert tensor.dtype == dtype
    assert np.array_equal(
        tensor.reshape(-1).numpy(), np.array(elements, tensor.numpy().dtype), equal_nan=dtype.is_floating_point
    )


def test_a_read_only_array_becomes_a_tensor_of_its_own() -> None:
    # GIVEN
    array = np.ones(3)
    array.setflags(write=False)

    # WHEN
    tensor = as_tensor(array)
    tensor.zero_()

    # THEN no warning came, and the array is as it was
    assert array.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "value", [True, None, "text", 10**400, np.array(["a"]), np.array([None]), np.zeros(2, "f4,i4"), X]
)
def test_what_is_no_number_stays_what_it_is(value: Any) -> None:
    result = as_tensor(value)
    assert result is value or (isinstance(value, np.ndarray) and result.dtype == value.dtype)
