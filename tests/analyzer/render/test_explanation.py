"""The text after the report: short, set apart, and safe whatever the names hold."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from overflow_analyzer import open_trace
from overflow_analyzer.first_nonfinite.finding import find_first_nonfinite
from overflow_analyzer.render.explanation import headline, render_explanation
from tests.analyzer.findings import absorbing, bad, carrying, found, making, passing
from tests.analyzer.samples import HOSTILE
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame


def explained(path: Path, *frames: Frame) -> list[str]:
    text = render_explanation(found(path, frames))
    assert text.endswith("\n")
    return text.splitlines()


def section(lines: list[str], title: str) -> list[str]:
    """The lines of one section, without the two spaces before each."""
    rest = lines[next(at for at, line in enumerate(lines) if line.startswith(title)) + 1 :]
    end = next((at for at, line in enumerate(rest) if not line.startswith("  ")), len(rest))
    return [line.removeprefix("  ") for line in rest[:end]]


def test_sections_stand_in_order(tmp_path: Path) -> None:
    lines = explained(tmp_path, passing(0, 0, "a", in_batch=0), making(1, 0, "b"), carrying(2, 0, "c"))
    assert [line.split(":")[0] for line in lines if not line.startswith("  ")] == [
        "First inf/nan among what was recorded",
        "Its frame",
        "Cause",
        "What became of it",
        "What this trace does not say",
        "Next",
    ]


def test_the_frame_has_formats_and_shapes(tmp_path: Path) -> None:
    lines = explained(tmp_path, passing(0, 0, "a", in_batch=0), making(1, 0, "b"))
    assert section(lines, "Its frame")[-1] == "output: float16 [4], 1 nan of 4 elements <- the first"


def test_the_headline(tmp_path: Path) -> None:
    one = found(tmp_path, (passing(6, 2, "a", in_batch=0), making(7, 2, "encoder.b", module_class="Gate")))
    assert headline(one) == "nan in encoder.b output (Gate), batch 2, made in encoder.b (Gate)"


def test_where_and_what_and_when(tmp_path: Path) -> None:
    lines = explained(tmp_path, passing(6, 2, "a", in_batch=0), making(7, 2, "encoder.b", module_class="Gate"))
    assert section(lines, "First") == [
        "output of encoder.b (Gate): 1 nan of 4 elements, float16; batch 2, frame 7, phase train",
        "made there: all that it took in is finite",
        "finite just before: a (Linear), batch 2, frame 6",
    ]


def test_made_around_the_module_where_it_was_seen(tmp_path: Path) -> None:
    lines = explained(tmp_path, carrying(0, 0, "block.b", in_batch=0), making(1, 0, "block", module_class="Block"))
    assert section(lines, "First")[1] == "made around it, in block (Block): all that it took in is finite"


def test_a_mask_that_the_origin_took_in_is_not_called_finite(tmp_path: Path) -> None:
    mask = bad("input", "input[mask]", neginf=1, note="ignored")
    softmax = frame(0, 0, "softmax", mask, bad("output", "output", nan=1), in_batch=0)
    assert section(explained(tmp_path, softmax), "First")[1] == (
        "made there: all that it took in is finite, but for infinities that are meant or came to nothing before"
    )


def test_the_root_module_has_a_name(tmp_path: Path) -> None:
    lines = explained(tmp_path, making(0, 0, "", in_batch=0, module_class="Net"))
    assert section(lines, "First")[0].startswith("output of the root module (Net): ")


def test_what_carried_it_on(tmp_path: Path) -> None:
    frames = [making(0, 0, "a", in_batch=0), carrying(1, 0, "b"), carrying(2, 0, "c"), making(3, 0, "")]
    lines = explained(tmp_path, *frames)
    assert section(lines, "What became") == ["carried on through 2 frames, the last the root module (Linear)"]


def test_what_absorbed_it(tmp_path: Path) -> None:
    lines = explained(tmp_path, making(0, 0, "a", in_batch=0), absorbing(1, 0, "mask"), passing(2, 0, ""))
    assert section(lines, "What became") == ["absorbed (non-finite in, finite out) by mask (Linear)"]


def test_other_ranks_are_named(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    for rank in range(11):
        run = replace(RUN, rank=rank, world_size=12)
        frames = [passing(0, 0, "a", in_batch=0), making(rank + 1, rank + 1, f"m{rank}", in_batch=0)]
        write_trace(path, frames, run)
    finding = find_first_nonfinite(open_trace(path))
    assert finding is not None
    ranks = section(render_explanation(finding).splitlines(), "Other ranks")
    assert ranks[0] == "rank 1: output of m1, batch 2, frame 2"
    assert (len(ranks), ranks[-1]) == (9, "and 2 more")


def test_that_others_are_fine_is_only_said_where_they_were_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    write_trace(path, [making(0, 0, "a", in_batch=0)], replace(RUN, rank=0, world_size=2))
    write_trace(path, [passing(0, 0, "a", in_batch=0)], replace(RUN, rank=1, world_size=2))
    trace = open_trace(path)
    everywhere, alone = find_first_nonfinite(trace), find_first_nonfinite(trace, rank=0)
    assert everywhere is not None
    assert alone is not None
    said = "no other recorded rank has an inf/nan"
    assert said in render_explanation(everywhere)
    assert said not in render_explanation(alone)


def test_names_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    hostile = frame(0, 0, HOSTILE, tensor("input", HOSTILE), bad("output", HOSTILE, nan=1), module_class=HOSTILE)
    text = "\n".join(explained(tmp_path, replace(hostile, frame_in_batch=0)))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\\x1b[31m" in text


def test_it_is_short(tmp_path: Path) -> None:
    # GIVEN a nan that hundreds of frames carry on
    frames = [making(0, 0, "a", in_batch=0), *(carrying(number, 0, f"b{number}") for number in range(1, 300))]
    # THEN a terminal's height holds the explanation
    assert len(explained(tmp_path, *frames)) < 24
