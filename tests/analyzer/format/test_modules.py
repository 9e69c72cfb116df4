"""``_modules.json``: what was written is read, and what is no such text is refused; settings by name."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from overflow_analyzer.errors import DamagedTraceError
from overflow_analyzer.format.modules import Modules, ModuleSettings, ModulesState
from tests.traces import settings

NORM = settings("4", "normalization.LayerNorm", "(64,), eps=1e-05", dtypes=("float32",), parameters=128)
DROPOUT = settings("5", "dropout.Dropout", "p=0.1, inplace=False")
OWN = replace(DROPOUT, name="6", module_class="models.Norm", extra_repr=None, attributes={"eps": "1e-06"})
MODULES = Modules(
    (
        ModulesState(0, None, (settings("", "container.Sequential"), NORM, DROPOUT), ()),
        ModulesState(7, 0, (replace(DROPOUT, extra_repr="p=0.3, inplace=False"), OWN), ("4",)),
    ),
    left_out=2,
)


def test_what_was_written_is_read() -> None:
    assert Modules.from_json(MODULES.to_json(), "_modules.json") == MODULES
    assert MODULES.states[0].modules[1].values  # computed once, and not a part of what is written
    assert "values" not in MODULES.to_json()


def test_keys_of_a_later_release_are_left_out() -> None:
    found = json.loads(MODULES.to_json())
    found["later"] = found["states"][0]["modules"][0]["later"] = 1
    assert Modules.from_json(json.dumps(found), "_modules.json") == MODULES


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        json.dumps({"version": 2}),
        json.dumps({"version": "1", "states": [], "left_out": 0}),
        json.dumps({"version": 1, "states": {}, "left_out": 0}),
        MODULES.to_json().replace('"p=0.1, inplace=False"', "3"),
        MODULES.to_json().replace('"parameters":128', '"parameters":128.0'),
        MODULES.to_json().replace('"training":true', '"training":1'),
        MODULES.to_json().replace('{"eps":"1e-06"}', '{"eps":1e-06}'),
        MODULES.to_json().replace('{"eps":"1e-06"}', "[]"),
        MODULES.to_json().replace('"removed"', '"gone"'),
    ],
)
def test_another_text_is_refused_by_the_files_name(text: str) -> None:
    with pytest.raises(DamagedTraceError, match=r"_modules\.json: "):
        Modules.from_json(text, "_modules.json")


def test_the_modules_of_a_batch() -> None:
    # GIVEN modules that changed in batch 7 THEN before it they are the first ones, from then on the others
    for batch in (-1, 0, 6):
        assert list(MODULES.at(batch)) == ["", "4", "5"]
        assert MODULES.at(batch)["5"].number("p") == 0.1
    for batch in (7, 10**30):
        assert list(MODULES.at(batch)) == ["", "5", "6"]
        assert MODULES.at(batch)["5"].number("p") == 0.3
    assert Modules(()).at(0) == {}


def test_what_may_have_changed_by_then_is_not_known() -> None:
    # GIVEN a change that was seen in batch 7, after a look in batch 0
    assert list(MODULES.known_at(0)) == ["", "4", "5"]
    # THEN in between what changed or went is not known
    assert list(MODULES.known_at(1)) == list(MODULES.known_at(6)) == [""]
    assert list(MODULES.known_at(7)) == ["", "5", "6"]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("p=0.1, inplace=False", {"p": "0.1", "inplace": "False"}),
        ("(64,), eps=1e-05", {"0": "(64,)", "eps": "1e-05"}),
        (
            "3, 16, kernel_size=(3, 3), stride=(1, 1)",
            {"0": "3", "1": "16", "kernel_size": "(3, 3)", "stride": "(1, 1)"},
        ),
        ("a=1,\n  b='x, y',\n", {"a": "1", "b": "'x, y'"}),
        ("eps: 1e-5", {"0": "eps: 1e-5"}),
        ("don't, p = 1", {"0": "don't, p = 1"}),
        (")), a=1", {"0": "))", "a": "1"}),
        ("((, a=1", {"0": "((, a=1"}),
        ("=, ==", {"0": "=", "1": "=="}),
        ("a=", {"a": ""}),
    ],
)
def test_settings_by_name(text: str, values: dict[str, str]) -> None:
    assert settings("x", "A", text).values == values


def test_a_setting_as_a_number() -> None:
    assert (NORM.number("eps"), NORM.number("p"), DROPOUT.number("inplace"), OWN.number("eps")) == (
        1e-05,
        None,
        None,
        1e-06,
    )


def changes(a: ModuleSettings, **to: object) -> list[str]:
    return [str(one) for one in a.changes_to(replace(a, **to))]  # type: ignore[arg-type]


def test_what_is_another_way() -> None:
    assert changes(NORM) == []
    assert changes(NORM, name="other", training=False) == []
    assert changes(NORM, extra_repr="(64,), eps=0.001") == ["eps 1e-05 -> 0.001"]
    assert changes(NORM, extra_repr="(64,), eps=1e-05, bias=False") == ["bias not set -> False"]
    assert changes(NORM, extra_repr="(32,), eps=1e-05", parameters=64) == ["(64,) -> (32,)", "parameters 128 -> 64"]
    assert changes(NORM, module_class="apex.FusedLayerNorm", dtypes=("float16",)) == [
        "class torch.nn.modules.normalization.LayerNorm -> apex.FusedLayerNorm",
        "dtypes float32 -> float16",
    ]


def test_a_setting_that_an_attribute_names_is_told_once() -> None:
    before = replace(NORM, attributes={"normalized_shape": "(64,)"})
    after = replace(before, extra_repr="(32,), eps=1e-05", attributes={"normalized_shape": "(32,)"})
    assert [str(one) for one in before.changes_to(after)] == ["normalized_shape (64,) -> (32,)"]
    assert before.text == "(64,), eps=1e-05"
    assert replace(before, attributes={"act": "relu"}).text == "(64,), eps=1e-05, act=relu"


def test_what_a_module_was_not_asked_for_is_no_change() -> None:
    # GIVEN a module whose extra_repr failed in the one run and names p in the other
    failed = replace(DROPOUT, extra_repr=None, attributes={"p": "0.2"})
    # THEN only what both name is compared
    assert [str(one) for one in DROPOUT.changes_to(failed)] == ["p 0.1 -> 0.2"]
