"""Every example in docs/helpers.md runs, and its table of bools is true."""

from __future__ import annotations

import re
import shlex
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any, Optional

import pytest

from overflow_recorder.helpers.arguments import DataclassArgumentParser
from tests.recorder.subprocesses import output_of

PAGE = (Path(__file__).parents[3] / "docs" / "helpers.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
FIELD_TYPES = {"bool": bool, "Optional[bool]": Optional[bool]}  # noqa: UP045 - as the table spells it
VALUES = {"True": True, "False": False, "None": None}


def _bool_table() -> list[tuple[str, str, str]]:
    """The cells of the table as (field, command line, result)."""
    lines = PAGE.partition("### bool\n")[2].partition("###")[0].splitlines()
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    header, _, *body = rows
    return [(row[0], line, result) for row in body for line, result in zip(header[1:], row[1:], strict=True)]


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.splitlines()[-1][:40] for example in EXAMPLES])
def test_the_example_runs(example: str, tmp_path: Path) -> None:
    output_of(example, cwd=tmp_path)


def test_there_is_an_example_of_each_helper() -> None:
    headings = re.findall(r"^## (\S+)$", PAGE, flags=re.MULTILINE)

    assert len(headings) == 6
    for heading in headings:
        assert f"](#{heading.lower()})" in PAGE
        assert any(re.search(rf"^from overflow_recorder import .*{heading}", one, re.MULTILINE) for one in EXAMPLES)


@pytest.mark.parametrize(("declaration", "line", "result"), _bool_table())
def test_the_table_of_bools(declaration: str, line: str, result: str) -> None:
    # GIVEN
    name, kind, default = re.fullmatch(r"(\w+): ([\w\[\]]+)(?: = (\w+))?", declaration).groups()  # type: ignore[union-attr]  # or the test fails
    field: Any = (name, FIELD_TYPES[kind], *([VALUES[default]] if default else []))
    parser = DataclassArgumentParser(make_dataclass("Made", [field]))

    # WHEN
    (made,) = parser.parse_args_into_dataclasses([] if line == "absent" else shlex.split(line))

    # THEN
    assert made.f is VALUES[result]
