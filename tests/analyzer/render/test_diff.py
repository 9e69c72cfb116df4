"""A comparison in words and side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overflow_analyzer.diff import Tolerance, diff_traces
from overflow_analyzer.render.diff import diff_as_json, render_diff
from overflow_analyzer.text.strict_json import to_plain
from tests.analyzer.diffing import MODULES, changed, compare, renumbered, trace_of, training
from tests.traces import RUN

INF, NAN = float("inf"), float("nan")
COUNT = len(MODULES)
FRAMES = training(3)
FLIPPED = changed(FRAMES, 8, 2, abs_max=50.0)


def first_line(*arguments: object, **options: object) -> str:
    return render_diff(compare(*arguments, **options)).splitlines()[0]  # type: ignore[arg-type]


def test_no_difference() -> None:
    assert first_line(FRAMES, FRAMES) == (
        "No difference: all figures of 54 entries of 18 frames in 3 batches agree bit for bit."
    )


def test_no_difference_beyond_rounding() -> None:
    size = FRAMES[0].entries[2].abs_max or 0.0
    assert first_line(FRAMES, changed(FRAMES, 0, 2, abs_max=size * (1 - 2.0**-10))) == (
        "No difference beyond rounding: of 54 entries of 18 frames in 3 batches, 1 differ by less than is tolerated, "
        "the figures of the others agree bit for bit."
    )


FIRST = "module block.act (Linear) is the first to differ"


@pytest.mark.parametrize(
    ("at", "entry", "sentence"),
    [
        (8, 2, f"{FIRST}, in its output, while its inputs and weights agree: the module changed."),
        (8, 1, f"{FIRST}, and its input[0] does already: it came in here."),
        (8, 0, f"{FIRST}, and its weight does already: the update before batch 1."),
        (2, 0, f"{FIRST}, and its weight does already: the runs did not start from the same state."),
    ],
)
def test_the_first_line_says_what_changed(at: int, entry: int, sentence: str) -> None:
    batch = at // COUNT
    assert first_line(FRAMES, changed(FRAMES, at, entry, abs_max=50.0)) == f"In batch {batch}, {sentence}"


def test_a_buffer_may_have_been_changed_by_the_forward_itself() -> None:
    # GIVEN a running mean, which a forward in training updates before its frame is recorded
    frames = changed(FRAMES, 2, 0, role="buffer", context="running_mean")
    # WHEN it differs first THEN the state from which the runs started is not the only reason
    assert first_line(frames, changed(frames, 2, 0, abs_max=50.0)) == (
        f"In batch 0, {FIRST}, and its buffer running_mean does already: the runs did not start from the same state, "
        "or the forward itself changed it."
    )


def test_an_update_between_batches_that_were_not_recorded() -> None:
    sampled = [one for one in FRAMES if one.batch_number != 1]
    line = first_line(sampled, changed(sampled, COUNT, 0, abs_max=50.0))
    assert line.endswith("an update between batch 0 and batch 2.")


def test_a_weight_whose_module_was_not_compared_before_has_no_known_beginning() -> None:
    # GIVEN two windows that begin in batch 39, and others that begin in the middle of it
    for at in (0, 2):
        window = training(2, first_batch=39)[at:]
        place = (0, 0) if at == 0 else (COUNT - at, 0)
        # WHEN a weight differs that nothing of before is recorded of
        line = first_line(window, changed(window, *place, abs_max=50.0))
        # THEN neither the start of the runs nor the last update is blamed
        assert line.endswith(f"an update before batch {39 + bool(at)}, or the state from which the runs started.")


def test_a_nan_as_the_first_difference_is_told_once() -> None:
    burst = changed(FRAMES, 8, 2, abs_max=NAN, abs_min=NAN, finite_abs_max=1.0, nan_count=2)
    text = render_diff(compare(FRAMES, burst))
    assert text.count("In batch 1, module block.act") == 1
    assert "The runs differ before that already" not in text


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        (("weight", "output"), "while its weights agree and its inputs were not compared: what changed is not known."),
        (("output",), "while its inputs and weights were not compared: what changed is not known."),
    ],
)
def test_what_was_not_recorded_is_not_said_to_agree(roles: tuple[str, ...], sentence: str) -> None:
    pair = [
        trace_of(
            [replace(one, entries=tuple(entry for entry in one.entries if entry.role in roles)) for one in frames],
            run=replace(RUN, options={"roles": roles}),
        )
        for frames in (FRAMES, FLIPPED)
    ]
    assert render_diff(diff_traces(*pair)).splitlines()[0].endswith(f"in its output, {sentence}")


def test_inputs_that_differ_by_rounding_agree_but_for_it() -> None:
    size = FRAMES[8].entries[1].abs_max or 0.0
    rounded = changed(FLIPPED, 8, 1, abs_max=size * (1 - 2.0**-10))
    line = first_line(FRAMES, rounded)
    assert line.endswith("while its inputs and weights agree but for rounding: the module changed.")


def test_inf_in_one_run() -> None:
    burst = changed(FRAMES, 8, 2, abs_max=INF, finite_abs_max=1.0, posinf_count=1)
    assert first_line(FRAMES, burst) == (
        "In batch 1, module block.act (Linear) has inf or nan in its output in B and none in A, which its inputs and "
        "weights do not explain: it was made here."
    )


def test_a_module_that_one_run_does_not_have() -> None:
    fewer = renumbered([one for one in FRAMES if one.module_name != "block.act"])
    assert first_line(FRAMES, fewer) == (
        "In batch 0, module block.act (Linear) runs in A alone: the structure changed."
    )


def test_another_shape() -> None:
    assert first_line(FRAMES, changed(FRAMES, 0, 0, shape=(2, 2))) == (
        "In batch 0, module embed (Linear) has another shape of its weight, [4] in A and [2, 2] in B."
    )


def test_the_evidence_has_both_values_and_what_agreed_before() -> None:
    lines = render_diff(compare(FRAMES, FLIPPED)).splitlines()
    assert lines[1:4] == [
        "  It is frame 8 of A and frame 8 of B.",
        (
            "  Abs max is 2.53e+00 in A and 5.00e+01 in B: 0.95 relative, 972 epsilons of the coarser dtype; up "
            "to 2 epsilons would be taken for rounding."
        ),
        "  Before it, the figures of 24 entries were compared and agree bit for bit, 8 weights and buffers among them.",
    ]


def test_differing_lines_are_marked_between_the_two_reports() -> None:
    text = render_diff(compare(FRAMES, FLIPPED), names=("good", "bad"))
    assert (
        """\
A: good                              B: bad
abs min  abs max  metadata           abs min  abs max  metadata
                  embed Linear                         embed Linear
"""
        in text
    )
    assert "3.96e-02 2.53e+00 output           ! 3.96e-02 5.00e+01 output\n" in text
    assert text.count(" ! ") == 1


def test_lines_of_one_run_alone_are_marked_by_their_side() -> None:
    fewer = [replace(FRAMES[0], entries=FRAMES[0].entries[:2]), *FRAMES[1:]]
    assert "3.12e-02 2.00e+00 output           <\n" in render_diff(compare(FRAMES, fewer))
    assert "                                   > 3.12e-02 2.00e+00 output\n" in render_diff(compare(fewer, FRAMES))


def test_a_narrow_terminal_gets_narrow_columns() -> None:
    long = training(1, tuple(f"encoder.{'block.' * 20}{name}" for name in MODULES))
    text = render_diff(compare(long, changed(long, 0, 2, abs_max=9.0)), width=83)
    beside = text[text.index("A: A") : text.index("Modules that differ")]
    assert max(map(len, beside.splitlines())) <= 83


def test_names_act_on_nothing() -> None:
    hostile = training(1, ("\x1b[31m`|<b>", "\u202e"))
    diff = compare(hostile, changed(hostile, 0, 2, abs_max=9.0))
    for markdown in (False, True):
        text = render_diff(diff, names=("a\x1b", "b\u202e"), markdown=markdown)
        assert "\x1b" not in text
        assert "\u202e" not in text
    outside_of_the_fence = render_diff(diff, markdown=True).split("```")[::2]
    assert "<b>" not in "".join(outside_of_the_fence)


def test_limit_shortens_tables_and_lists_and_says_so() -> None:
    frames = other = training(1)
    for at in range(COUNT):
        other = changed(other, at, 2, abs_max=99.0)
    diff = compare(frames, other)
    assert "Modules that differ, most first (2 of 6):" in render_diff(diff, limit=2)
    assert len(diff_as_json(diff, limit=2)["differences"]) == 2
    assert len(diff_as_json(diff)["differences"]) == COUNT
    assert "(2 of" not in render_diff(diff, limit=None)


def test_json_has_what_programs_rely_on() -> None:
    found = to_plain(diff_as_json(compare(FRAMES, FLIPPED)))
    first = found["first_divergence"]
    assert found["same"] is False
    assert {name: first[name] for name in ("rank", "batch_number", "module_name", "role", "context", "kind")} == {
        "rank": 0,
        "batch_number": 1,
        "module_name": "block.act",
        "role": "output",
        "context": "output",
        "kind": "module",
    }
    assert found["only_in_a"] == found["only_in_b"] == []
    assert found["differences"][0]["module_name"] == "block.act"


@pytest.mark.parametrize(
    ("tolerance", "words"),
    [
        (Tolerance(), "2 epsilons of the coarser dtype, 4 in float32 and float64"),
        (Tolerance(rtol=1e-3), "0.001 relative"),
        (Tolerance(rtol=1e-3, atol=1e-6), "0.001 relative, and 1e-06 absolute"),
        (Tolerance(exact=True), "nothing: figures and dtypes must be the same bit for bit"),
    ],
)
def test_what_is_tolerated_is_said(tolerance: Tolerance, words: str) -> None:
    assert f"tolerated     {words}" in render_diff(compare(FRAMES, FRAMES, tolerance=tolerance))
