"""``_origin.json``: what was written is read, and what is no such text is refused."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from overflow_analyzer.errors import DamagedTraceError
from overflow_analyzer.format.origin import Operation, Origin, Place, SourceLine, TensorFigures, Tried

LINE = SourceLine("models/attention.py", 41, "Attention.forward", "scores = q @ k.transpose(-1, -2)")
QUERY = TensorFigures("self", "", "float16", (8, 6, 64), 3072, 410.0, 410.0, 0, 0, 0)
KEY = TensorFigures("mat2", "weight of key", "float16", (8, 64, 6), 3072, 390.0, 390.0, 0, 0, 0)
SCORES = TensorFigures("result", "", "float16", (8, 6, 6), 288, math.inf, 65000.0, 0, 12, 3)
OPERATION = Operation(
    name="torch.matmul",
    aten="aten.bmm",
    module_name="layers.3.attention",
    module_class="Attention",
    source=LINE,
    calls=(),
    called_at=SourceLine("train.py", 7, "<module>", "model(x)"),
    operands=(QUERY, KEY),
    scalars=(),
    result=SCORES,
    place=Place(15, 288, (5, 0, 1), (5, None, None), whole=False),
    tried=Tried("float32", finite=True, abs_max=1.6e5),
    cause="overflow",
    evidence=(),
)
ORIGIN = Origin(
    batch_number=3,
    frame_number=70,
    module_name="layers.3.attention.out",
    module_class="Linear",
    role="input",
    context="input[0]",
    place=Place(384, 3072, (5, 0, 0), (5, None, None), whole=True),
    replayed="layers.3.attention",
    operation=OPERATION,
    reason=None,
    draws=False,
    seconds=0.25,
)


def test_what_was_written_is_read() -> None:
    nothing = dataclasses.replace(ORIGIN, operation=None, place=None, replayed=None, reason="it communicates")
    for origin in (ORIGIN, nothing):
        assert Origin.from_json(origin.to_json(), "_origin.json") == origin


def test_it_is_strict_json() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(ORIGIN.to_json(), parse_constant=refuse)
    assert found["operation"]["result"]["abs_max"] == "inf"
    assert found["operation"]["source"]["line"] == 41


def test_keys_of_a_later_release_are_left_out() -> None:
    found = json.loads(ORIGIN.to_json())
    found["later"] = found["operation"]["later"] = 1
    assert Origin.from_json(json.dumps(found), "_origin.json") == ORIGIN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        json.dumps({"version": 2}),
        ORIGIN.to_json().replace('"line": 41', '"line": "41"'),
        ORIGIN.to_json().replace('"batch_number": 3', '"batch_number": true'),
        ORIGIN.to_json().replace('"shape": [', '"shape": 3, "x": ['),
        ORIGIN.to_json().replace('"seconds"', '"minutes"'),
    ],
)
def test_another_text_is_refused_by_the_files_name(text: str) -> None:
    with pytest.raises(DamagedTraceError, match=r"_origin\.json: "):
        Origin.from_json(text, "_origin.json")
