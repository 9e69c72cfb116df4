"""``info --modules``: what every module is, in text, Markdown and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer.format.modules import MODULES_FILE, Modules, ModulesState
from overflow_analyzer.trace.opening import open_trace
from tests.analyzer.commands import analyze
from tests.analyzer.samples import HOSTILE, two_batches, write_clean
from tests.traces import RUN, modules, settings, write_modules, write_trace

if TYPE_CHECKING:
    from pathlib import Path

ROOT = settings("", "Model", package="models")
EMBED = settings(
    "embed", "linear.Linear", "in_features=4, out_features=4", dtypes=("float16",), devices=("cpu",), parameters=20
)
NORM = settings("norm", "normalization.LayerNorm", "(4,), eps=1e-05", attributes={"normalized_shape": "(4,)"})
TABLE = """
Modules:
module  class                    settings                       mode   dtypes   devices  parameters
(root)  models.Model                                            train
embed   linear.Linear            in_features=4, out_features=4  train  float16  cpu              20
norm    normalization.LayerNorm  (4,), eps=1e-05                train
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_clean(tmp_path / "run.parquet")


def test_the_modules_stand_behind_the_rest(trace: Path) -> None:
    # GIVEN a trace WHEN its modules are asked for THEN they follow what info shows anyway
    write_modules(trace, modules(ROOT, EMBED, NORM))
    without, listed = analyze("info", trace), analyze("info", trace, "--modules")
    assert listed == (0, f"{without.out}{TABLE}", "")


def test_what_changed_has_a_table_of_its_own(trace: Path) -> None:
    # GIVEN modules of which one changes, one comes and one goes
    later = (
        replace(NORM, extra_repr="(4,), eps=0.001", dtypes=("float16",)),
        replace(EMBED, training=False),
        settings("drop", "dropout.Dropout", "p=0.1"),
    )
    states = modules(ROOT, EMBED, NORM).states
    write_modules(trace, Modules((*states, ModulesState(24, 7, later, ("old",))), left_out=3))
    assert analyze("info", trace, "--modules").out.endswith(f"""{TABLE}
Changes:
seen in batch  last seen otherwise  module  change
           24  batch 7              norm    eps 1e-05 -> 0.001, dtypes none -> float16
           24  batch 7              embed   to mode eval
           24  batch 7              drop    new: Dropout p=0.1
           24  batch 7              old     removed

3 modules or changes are left out: there was no room for them.
""")


def test_ranks_with_the_same_modules_are_listed_together(tmp_path: Path) -> None:
    # GIVEN three ranks, of which the second has another module
    path = tmp_path / "run.parquet"
    for rank in range(3):
        write_trace(path, two_batches(), replace(RUN, rank=rank, world_size=3))
        write_modules(path, modules(ROOT, EMBED if rank == 1 else NORM), rank)
    titles = [line for line in analyze("info", path, "--modules").out.splitlines() if line.startswith("Modules")]
    assert titles == ["Modules of ranks 0, 2:", "Modules of rank 1:"]
    found = json.loads(analyze("info", path, "--modules", "--format", "json").out)
    assert [one["ranks"] for one in found["modules"]] == [[0, 2], [1]]


def test_json_has_them_only_where_asked_for(trace: Path) -> None:
    write_modules(trace, modules(ROOT, NORM))
    assert "modules" not in json.loads(analyze("info", trace, "--format", "json").out)
    (found,) = json.loads(analyze("info", trace, "--modules", "--format", "json").out)["modules"]
    assert found["left_out"] == 0
    assert found["states"][0]["modules"][1] == {
        "name": "norm",
        "module_class": "torch.nn.modules.normalization.LayerNorm",
        "extra_repr": "(4,), eps=1e-05",
        "attributes": {"normalized_shape": "(4,)"},
        "training": True,
        "dtypes": [],
        "devices": [],
        "parameters": 0,
    }


def test_a_trace_without_them_says_so(trace: Path) -> None:
    ran = analyze("info", trace, "--modules")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "the trace does not say what the modules are")
    assert json.loads(analyze("info", trace, "--modules", "--format", "json").out)["modules"] == []


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"version": 2}', "x" * (1 << 23)])
def test_what_cannot_be_read_is_said_and_costs_nothing_else(trace: Path, text: str) -> None:
    # GIVEN a damaged or huge file
    path = trace / "rank=0" / MODULES_FILE
    path.write_text(text)

    # THEN the trace is opened, every other answer is the same, and the loss is said by name
    (rank,) = open_trace(trace).ranks
    assert rank.modules is None
    assert rank.lost == ()
    assert str(path) in (rank.lost_modules or "")
    ran = analyze("info", trace, "--modules")
    assert ran.code == 0
    assert str(path) in ran.out.splitlines()[-1]


def test_names_and_settings_are_escaped(trace: Path) -> None:
    hostile = settings(HOSTILE, HOSTILE, HOSTILE, attributes={HOSTILE: HOSTILE}, devices=(HOSTILE,))
    write_modules(trace, Modules((*modules(hostile).states, ModulesState(1, 0, (hostile,), (HOSTILE,)))))
    for layout in ("text", "markdown", "json"):
        ran = analyze("info", trace, "--modules", "--format", layout)
        assert ran.code == 0
        assert not {"\x1b", "\u202e"} & set(ran.out)
    assert "<script>" not in analyze("info", trace, "--modules", "--format", "markdown").out.replace("`", "")
