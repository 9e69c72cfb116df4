"""Settings that differ between two runs: the reason of a module that changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer.diff import SettingDifference, TraceDiff, diff_traces
from overflow_analyzer.format.modules import Modules, ModuleSettings, ModulesState
from overflow_analyzer.render.diff import render_diff
from overflow_analyzer.trace.opening import open_trace
from tests.analyzer.commands import analyze
from tests.analyzer.diffing import MODULES, changed, training
from tests.analyzer.samples import HOSTILE
from tests.traces import RUN, modules, settings, write_modules, write_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame

FRAMES = training(3)
BAD = changed(FRAMES, 8, 2, abs_max=50.0)
"""In batch 1 the output of block.act differs first."""
ROOT = settings("", "Model", package="models")
NORM = settings("block.act", "normalization.LayerNorm", "(64,), eps=1e-05", attributes={"normalized_shape": "(64,)"})
OTHER = replace(NORM, extra_repr="(64,), eps=0.001")
EPS = SettingDifference("block.act", "block.act", "LayerNorm", "eps", "1e-05", "0.001", 0, None)


def compared(
    tmp_path: Path,
    a: Sequence[ModuleSettings] | Modules,
    b: Sequence[ModuleSettings] | Modules,
    frames: Sequence[Frame] = BAD,
    **options: Any,
) -> TraceDiff:
    """Compare a run of some modules with one of others; block.act's output differs in batch 1 unless changed."""
    paths = [write_trace(tmp_path / name, some) for name, some in (("a", FRAMES), ("b", frames))]
    for path, found in zip(paths, (a, b), strict=True):
        write_modules(path, found if isinstance(found, Modules) else modules(ROOT, *found))
    return diff_traces(*map(open_trace, paths), **options)


def test_the_setting_is_the_reason_of_a_module_that_changed(tmp_path: Path) -> None:
    # GIVEN two runs of which one LayerNorm has another eps WHEN they are compared
    diff = compared(tmp_path, [NORM], [OTHER])

    # THEN the first line says it, and so does a table and the JSON
    assert (diff.settings, diff.first_divergence and diff.first_divergence.settings) == ((EPS,), (EPS,))
    text = render_diff(diff)
    assert text.splitlines()[0].endswith("its inputs and weights agree: the module changed (eps 1e-05 -> 0.001).")
    assert "Its settings differ" not in text
    assert (
        "\nSettings that differ:\n"
        "module     class      setting  A      B      from batch\n"
        "block.act  LayerNorm  eps      1e-05  0.001  0\n"
    ) in text
    found = json.loads(analyze("diff", tmp_path / "a", tmp_path / "b", "--format", "json").out)
    assert found["settings"] == found["first_divergence"]["settings"] == [vars(EPS)]


@pytest.mark.parametrize(("at", "entry"), [(8, 0), (8, 1)])
def test_where_something_else_differed_first_it_is_a_sentence_of_its_own(tmp_path: Path, at: int, entry: int) -> None:
    # GIVEN a module whose weight or input differs already THEN its settings are no reason, but said
    frames = changed(FRAMES, at, entry, abs_max=50.0)
    lines = render_diff(compared(tmp_path, [NORM], [OTHER], frames)).splitlines()
    assert "eps" not in lines[0]
    assert "  Its settings differ: eps 1e-05 -> 0.001." in lines


def test_another_modules_settings_are_listed_and_no_reason(tmp_path: Path) -> None:
    diff = compared(tmp_path, [replace(NORM, name="block.fc1")], [replace(OTHER, name="block.fc1")])
    assert len(diff.settings) == 1
    assert diff.first_divergence
    assert diff.first_divergence.settings == ()
    assert render_diff(diff).splitlines()[0].endswith("the module changed.")


def test_settings_alone_make_no_difference(tmp_path: Path) -> None:
    # GIVEN runs with the same figures and another eps THEN they are the same, and the eps is listed
    diff = compared(tmp_path, [NORM], [OTHER], FRAMES)
    assert (diff.same, diff.settings) == (True, (EPS,))
    assert analyze("diff", tmp_path / "a", tmp_path / "b").code == 0


def test_modules_inside_that_are_never_called_speak_for_the_one_around_them(tmp_path: Path) -> None:
    # GIVEN a projection without frames of its own, and a called module elsewhere
    inner = settings("block.act.proj", "linear.Linear", "bias=True")
    called = settings("block.fc1", "dropout.Dropout", "p=0.1")
    diff = compared(
        tmp_path, [inner, called], [replace(inner, extra_repr="bias=False"), replace(called, extra_repr="p=0.2")]
    )
    assert len(diff.settings) == 2
    assert render_diff(diff).splitlines()[0].endswith("the module changed (block.act.proj: bias True -> False).")


def changing(before: ModuleSettings, after: ModuleSettings, batch: int, seen_before: int) -> Modules:
    first = modules(ROOT, before).states[0]
    return Modules((first, ModulesState(batch, seen_before, (after,), ())))


def test_a_change_during_the_run_has_its_batch(tmp_path: Path) -> None:
    # GIVEN an eps that B changed at some time after batch 0, as a look in batch 2 has shown
    diff = compared(tmp_path, [NORM], changing(NORM, OTHER, 2, 0))

    # THEN the divergence in batch 1 may come from it, and the sentence says when it was seen
    assert diff.settings == (replace(EPS, batch_number=2, after=0),)
    assert "the module changed (eps 1e-05 -> 0.001, seen in batch 2)." in render_diff(diff)
    assert "0.001  1 to 2\n" in render_diff(diff)


def test_a_change_after_the_divergence_is_no_reason(tmp_path: Path) -> None:
    diff = compared(tmp_path, [NORM], changing(NORM, OTHER, 2, 1))
    assert len(diff.settings) == 1
    assert render_diff(diff).splitlines()[0].endswith("the module changed.")


def test_the_same_change_in_both_runs_is_no_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, changing(NORM, OTHER, 2, 0), changing(NORM, OTHER, 2, 0)).settings == ()


def test_what_changes_as_both_run_is_no_setting(tmp_path: Path) -> None:
    # GIVEN a count of calls, which is another one at the end because the one run was longer
    def counted(calls: int) -> ModuleSettings:
        return replace(NORM, attributes={"calls": str(calls)})

    a, b = changing(counted(0), counted(3), 2, 0), changing(counted(0), counted(9), 8, 0)
    assert compared(tmp_path / "both", a, b).settings == ()

    # GIVEN one that is not the same from the start, or that one run alone changes THEN it is one
    assert len(compared(tmp_path / "start", changing(counted(1), counted(3), 2, 0), b).settings) == 1
    assert len(compared(tmp_path / "one", a, [counted(0)]).settings) == 1


def test_what_nobody_looked_at_any_more_is_not_compared(tmp_path: Path) -> None:
    # GIVEN an eps that A changed, and a run B that was killed, whose modules were seen at its start alone
    paths = [
        write_modules(write_trace(tmp_path / "a", FRAMES), changing(NORM, OTHER, 2, 0)),
        write_modules(write_trace(tmp_path / "b", FRAMES, replace(RUN, end=None)), modules(ROOT, NORM)),
    ]
    assert diff_traces(*map(open_trace, paths)).settings == ()


def test_one_batch_alone_is_compared_as_it_was_then(tmp_path: Path) -> None:
    a, b = modules(ROOT, NORM), changing(NORM, OTHER, 2, 1)
    assert compared(tmp_path / "1", a, b, batch=1).settings == ()
    assert compared(tmp_path / "2", a, b, batch=2).settings == (replace(EPS, batch_number=2),)


def test_batches_are_laid_beside_each_other(tmp_path: Path) -> None:
    # GIVEN a run that was resumed at batch 100 with another eps from its second batch on
    later = training(3, first_batch=100)
    resumed = Modules((ModulesState(100, None, (ROOT, NORM), ()), ModulesState(101, 100, (OTHER,), ())))
    diff = compared(tmp_path, [NORM], resumed, later, offset=100)
    assert diff.settings == (replace(EPS, batch_number=1, after=0),)


def test_names_inside_wrappers(tmp_path: Path) -> None:
    # GIVEN a run whose model is inside a wrapper, and a module that has no frame THEN both match without it
    names = [f"module.{name}" if name else "module" for name in MODULES]
    frames = [replace(one, module_name=names[MODULES.index(one.module_name)]) for one in BAD]
    inner = settings("block.act.proj", "linear.Linear", "bias=True")
    wrapped = [replace(OTHER, name="module.block.act"), replace(inner, name="module.block.act.proj", extra_repr="")]
    diff = compared(tmp_path, [NORM, inner], wrapped, frames)
    assert [(one.module_name, one.module_name_b, one.setting) for one in diff.settings] == [
        ("block.act", "module.block.act", "eps"),
        ("block.act.proj", "module.block.act.proj", "bias"),
    ]


def test_what_the_rows_and_the_phases_say_is_not_said_again(tmp_path: Path) -> None:
    # GIVEN other dtypes and devices, and a whole model in eval mode THEN no setting differs
    one = replace(NORM, dtypes=("float16",), devices=("cuda:0",), training=False)
    assert compared(tmp_path / "whole", [NORM], modules(replace(ROOT, training=False), one)).settings == ()

    # GIVEN one module that does not follow the model THEN that is a setting
    (found,) = compared(tmp_path / "one", [NORM], [replace(NORM, training=False)]).settings
    assert (found.setting, found.a, found.b) == ("training", "True", "False")


def test_a_class_of_the_script_itself_may_be_imported_elsewhere(tmp_path: Path) -> None:
    own = replace(NORM, module_class="__main__.Norm")
    assert compared(tmp_path / "same", [own], [replace(own, module_class="models.Norm")]).settings == ()
    (found,) = compared(tmp_path / "other", [own], [replace(own, module_class="models.Other")]).settings
    assert (found.setting, found.a, found.b) == ("class", "__main__.Norm", "models.Other")


def test_a_trace_without_them_is_compared_without_them(tmp_path: Path) -> None:
    a, b = write_trace(tmp_path / "a", FRAMES), write_modules(write_trace(tmp_path / "b", BAD), modules(ROOT, NORM))
    assert diff_traces(open_trace(a), open_trace(b)).settings == ()


def test_another_ranks_module_is_looked_at_where_it_differs_first(tmp_path: Path) -> None:
    # GIVEN two ranks with modules of their own, the second of which has another eps and other figures
    for name, eps, frames in (("a", NORM, FRAMES), ("b", OTHER, BAD)):
        for rank in range(2):
            path = write_trace(tmp_path / name, frames if rank else FRAMES, replace(RUN, rank=rank, world_size=2))
            write_modules(path, modules(ROOT, eps if rank else NORM), rank)
    diff = diff_traces(open_trace(tmp_path / "a"), open_trace(tmp_path / "b"))
    assert diff.first_divergence
    assert (diff.first_divergence.rank, diff.first_divergence.settings) == (1, (EPS,))


def test_many_and_long_settings_are_cut_and_hostile_ones_escaped(tmp_path: Path) -> None:
    a = {f"s{number}": "x" * 100 for number in range(6)}
    diff = compared(tmp_path / "many", [replace(NORM, attributes=a)], [replace(NORM, attributes=dict.fromkeys(a, "y"))])
    cut = "x" * 57 + "..."
    line = render_diff(diff).splitlines()[0]
    assert line.endswith(f"(s0 {cut} -> y; s1 {cut} -> y; s2 {cut} -> y; s3 {cut} -> y; 2 more).")

    diff = compared(tmp_path / "odd", [replace(NORM, extra_repr=f"a={HOSTILE}")], [replace(NORM, extra_repr="a=1")])
    for text in (render_diff(diff), render_diff(diff, markdown=True)):
        assert not {"\x1b", "\u202e"} & set(text)
