"""What a trace is said not to cover."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer import EndInfo, open_trace
from overflow_analyzer.first_nonfinite.finding import find_first_nonfinite
from overflow_analyzer.render.explanation import render_explanation
from overflow_analyzer.trace.coverage import coverage_of
from tests.analyzer.findings import bad, making, passing, with_options
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.format.run_info import RunInfo

ALL_ROLES = [
    "weight", "buffer", "input", "output", "grad_input", "grad_output", "weight_grad", "optimizer_state",
]  # fmt: skip
WHOLE = with_options(roles=ALL_ROLES)
FRAMES = [passing(0, 0, "a", in_batch=0), passing(1, 0, "")]


def coverage(path: Path, run: RunInfo, frames: list[Frame] = FRAMES) -> tuple[str, ...]:
    return coverage_of(open_trace(write_trace(path / "run.parquet", frames, run)))


def ended(run: RunInfo, how: Any = "closed", **changes: Any) -> RunInfo:
    return replace(run, end=EndInfo(how=how, time_ns=1, **changes))


def test_a_trace_of_everything_leaves_nothing_to_say(tmp_path: Path) -> None:
    assert coverage(tmp_path, WHOLE) == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"trace_batch_nums": [1]}, "Only batch 1 was measured: nothing is known of the others."),
        ({"trace_batch_nums": [1, 2, 3, 7]}, "Only batches 1-3, 7 were measured: nothing is known of the others."),
        ({"trace_batch_nums": [1], "every_n_batches": 10},
         "Only batch 1 and one batch in 10 were measured: nothing is known of the others."),
        ({}, "Only the last 21 frames were kept: nothing is known of the others."),
        ({"max_frames_to_save": 5}, "Only the last 5 frames were kept: nothing is known of the others."),
        ({"every_n_batches": 10}, "One batch in 10 was kept whole; of the others only the last 21 frames were kept: nothing is known of the others."),  # noqa: E501  one sentence
    ],
)  # fmt: skip
def test_batches_that_were_not_kept(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    run = with_options(WHOLE, **{"every_n_batches": None, **options})
    assert coverage(tmp_path, run) == (said,)


def test_how_many_frames_there_were_is_told_where_it_is_known(tmp_path: Path) -> None:
    run = ended(with_options(WHOLE, every_n_batches=None), frames_seen=48213)
    said = "Only the last 21 frames were kept of the 48213 that ran: nothing is known of the others."
    assert coverage(tmp_path, run) == (said,)


def test_a_run_as_short_as_its_window_is_whole(tmp_path: Path) -> None:
    assert coverage(tmp_path, ended(with_options(WHOLE, every_n_batches=None), frames_seen=21)) == ()


def test_a_run_that_ended_within_the_chosen_batches_is_whole(tmp_path: Path) -> None:
    run = with_options(WHOLE, every_n_batches=None, trace_batch_nums=[0, 1, 2, 9])
    assert coverage(tmp_path / "a", ended(run, batch_number=2)) == ()
    assert len(coverage(tmp_path / "b", ended(run, batch_number=3))) == 1


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (["weight", "buffer", "input", "output"], "Not recorded: gradients, optimizer state."),
        (["output"], "Not recorded: weights, buffers, inputs, gradients, optimizer state."),
        (
            ["weight", "buffer", "input", "output", "weight_grad"],
            "Not recorded: gradients of inputs, gradients of outputs, optimizer state.",
        ),
    ],
)
def test_roles_that_were_not_recorded(tmp_path: Path, roles: list[str], said: str) -> None:
    assert coverage(tmp_path, with_options(roles=roles)) == (said,)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (
            EndInfo("switched off", 1, reason="OSError: disk full"),
            "The recorder switched itself off (OSError: disk full): nothing is known of what came after.",
        ),
        (None, "How the run ended is not known."),
        (EndInfo("killed", 1), "The run was killed: what it did after the last recorded frame is not known."),
        (
            EndInfo("closed", 1, frames_dropped=12),
            "12 frames were given up because the disk was slower than the run: nothing is known of them.",
        ),
        (EndInfo("closed", 1, parts_removed=3), "max_bytes removed 3 parts: the oldest batches are gone."),
    ],
)
def test_what_was_lost(tmp_path: Path, end: EndInfo | None, said: str) -> None:
    assert coverage(tmp_path, replace(WHOLE, end=end)) == (said,)


@pytest.mark.parametrize("how", ["closed", "detected", "aborted", "exception"])
def test_an_ordinary_end_needs_no_word(tmp_path: Path, how: str) -> None:
    assert coverage(tmp_path, ended(WHOLE, how)) == ()


def test_a_part_that_cannot_be_read(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.parquet", [*FRAMES, passing(2, 1, "a", in_batch=0)], WHOLE, frames_per_part=2)
    part = path / "rank=0" / "part-00000001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    (said,) = coverage_of(open_trace(path))
    assert said.startswith("It could not be read: ")
    assert "part-00000001.parquet" in said


def test_what_was_ignored_is_counted(tmp_path: Path) -> None:
    # GIVEN three rows of a mask, of which two hold an infinity
    mask = bad("input", "input[mask]", neginf=1, note="ignored")
    finite = tensor("input", "input[mask]", note="ignored")
    frames = [frame(number, 0, "a", one, tensor("output", "o"), in_batch=number) for number, one in
              enumerate((mask, finite, mask))]  # fmt: skip
    run = with_options(WHOLE, ignore=["*:input[mask]"])
    assert coverage(tmp_path, run, frames) == (
        "Infinities were ignored as intended where *:input[mask] matched: 2 rows.",
    )


def test_compiled_modules_are_not_seen(tmp_path: Path) -> None:
    frames = [passing(0, 0, "_orig_mod", in_batch=0), passing(1, 0, "", module_class="OptimizedModule")]
    (said,) = coverage(tmp_path, WHOLE, frames)
    assert "torch.compile" in said


def test_what_the_recorder_knew_it_did_not_see_is_told_in_its_words(tmp_path: Path) -> None:
    # GIVEN a recorder that closed, and knew of a compiled region
    frames = [passing(0, 0, "_orig_mod", in_batch=0), passing(1, 0, "", module_class="OptimizedModule")]
    run = replace(
        WHOLE, notes=("encoder: compiled by torch.compile, so nothing inside is recorded", "lm_head: never called")
    )
    # WHEN its trace is read, THEN its words stand there, and not the guess by the model's class as well
    assert coverage(tmp_path, run, frames) == (
        "Not seen: encoder: compiled by torch.compile, so nothing inside is recorded.",
        "Not seen: lm_head: never called.",
    )


def test_ranks_that_left_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    for rank in (0, 2, 3):
        write_trace(path, FRAMES, replace(WHOLE, rank=rank, world_size=8))
    assert coverage_of(open_trace(path)) == ("Ranks 1, 4-7 of 8 left nothing readable.",)


def test_what_holds_for_some_ranks_names_them(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    for rank in range(4):
        run = replace(WHOLE, rank=rank, world_size=4)
        write_trace(path, FRAMES, ended(run, frames_dropped=5) if rank in (1, 2) else run)
    said = "Ranks 1-2: 5 frames were given up because the disk was slower than the run: nothing is known of them."
    assert coverage_of(open_trace(path)) == (said,)


def test_a_file_without_a_description_says_so(tmp_path: Path) -> None:
    assert "does not say how it was recorded" in coverage(tmp_path, replace(WHOLE, options={}))[0]


def test_the_explanation_never_claims_an_absolute_first(tmp_path: Path) -> None:
    # GIVEN a windowed trace
    run = with_options(every_n_batches=None)
    path = write_trace(tmp_path / "run.parquet", [making(40, 3, "a")], run)
    finding = find_first_nonfinite(open_trace(path))
    assert finding is not None
    # WHEN it is explained
    lines = render_explanation(finding).splitlines()
    # THEN the first line limits what it says, and what is not covered is there
    assert lines[0] == "First inf/nan among what was recorded"
    assert "  Only the last 21 frames were kept: nothing is known of the others." in lines


def test_the_default_run_says_what_it_left_out(tmp_path: Path) -> None:
    assert coverage(tmp_path, RUN) == ("Not recorded: gradients, optimizer state.",)


DIFFERENT, NOTHING = "The ranks are of different runs", "what one of them shows says nothing of another."


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([2, 2], ()),
        ([2], ("Rank 1 of 2 left nothing readable.",)),
        ([1, 1], (f"{DIFFERENT} (rank 0 was one of 1, rank 1 was one of 1): {NOTHING}",)),
        ([4, 2], (f"{DIFFERENT} (rank 0 was one of 4, rank 1 was one of 2): {NOTHING}",
                  "Ranks 2-3 of 4 left nothing readable.")),
    ],
)  # fmt: skip
def test_ranks_of_several_runs_in_one_directory(tmp_path: Path, sizes: list[int], said: tuple[str, ...]) -> None:
    # GIVEN ranks that somebody has copied together, each of which says of how many it was
    for rank, size in enumerate(sizes):
        path = write_trace(tmp_path / "run.parquet", FRAMES, replace(WHOLE, rank=rank, world_size=size))
    # THEN
    assert coverage_of(open_trace(path)) == said
