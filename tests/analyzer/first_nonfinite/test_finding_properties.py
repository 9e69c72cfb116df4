"""Laws: what is planted is found where it was planted, however the file is cut into parts and row groups."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer import Trace, open_trace
from overflow_analyzer.convert.compact import compact_trace
from overflow_analyzer.first_nonfinite.finding import find_first_nonfinite
from overflow_analyzer.format.columns import SCHEMA
from overflow_analyzer.format.files import RUN_FILE
from overflow_analyzer.format.parts import open_part_writer, part_metadata
from tests.analyzer.findings import bad
from tests.traces import RUN, frame, table_of, tensor

if TYPE_CHECKING:
    from overflow_analyzer.format.columns import Role
    from overflow_analyzer.format.frames import Entry, Frame

FORWARD: tuple[Role, ...] = ("weight", "buffer", "input", "output")
modules = st.sampled_from(["", "a", "a.b", "a.b.c", "d", "d.e"])
counts = st.sampled_from([{"nan": 1}, {"inf": 2}, {"neginf": 4}, {"nan": 1, "inf": 1, "neginf": 1}])


@st.composite
def batches(draw: st.DrawFn) -> list[Frame]:
    """Finite frames of a few batches, of any modules in any order, numbered with gaps."""
    frames = []
    number = 0
    for batch in range(draw(st.integers(1, 4))):
        for in_batch in range(draw(st.integers(1, 5))):
            roles = draw(st.lists(st.sampled_from(FORWARD), min_size=1, max_size=4))
            entries = [tensor(role, f"{role}[{at}]") for at, role in enumerate(roles)]
            frames.append(frame(number, batch, draw(modules), *entries, in_batch=in_batch))
            number += draw(st.integers(1, 3))
    return frames


def plant(frames: list[Frame], at: int, entry: int, planted: Entry) -> list[Frame]:
    entries = list(frames[at].entries)
    entries[entry] = replace(planted, role=entries[entry].role, context=entries[entry].context)
    return [*frames[:at], replace(frames[at], entries=tuple(entries)), *frames[at + 1 :]]


def written(directory: str, frames: list[Frame], cuts: list[int], groups_per_part: int) -> Path:
    """Write row groups cut before the frames of these positions, some of them a part."""
    bounds = sorted({0, len(frames), *(cut % len(frames) for cut in cuts)})
    groups = [frames[start:stop] for start, stop in itertools.pairwise(bounds)]
    rank = Path(directory) / "run.parquet" / "rank=0"
    rank.mkdir(parents=True)
    (rank / RUN_FILE).write_text(RUN.to_json())
    for part, start in enumerate(range(0, len(groups), groups_per_part)):
        some = groups[start : start + groups_per_part]
        # Without write_part's flush to the disk, which would take most of the time here.
        path, metadata = rank / f"part-{part:08}.parquet", part_metadata([RUN], sum(map(len, some)))
        with open_part_writer(path, SCHEMA, metadata) as writer:
            for group in some:
                writer.write_table(table_of(group))
    return rank.parent


def said(trace: Trace) -> str:
    """All of a finding but where the frames' numbers live in memory: nan is not equal to itself, its text is."""
    return repr(find_first_nonfinite(trace))


@settings(max_examples=50)
@given(batches(), st.data())
def test_what_is_planted_is_found_there(frames: list[Frame], data: st.DataObject) -> None:
    # GIVEN one bad entry anywhere in finite frames, in a file cut anywhere
    at = data.draw(st.integers(0, len(frames) - 1))
    position = data.draw(st.integers(0, len(frames[at].entries) - 1))
    planted = plant(frames, at, position, bad("output", "x", **data.draw(counts)))
    cuts = data.draw(st.lists(st.integers(0, len(frames)), max_size=5))
    # WHEN it is looked for
    with tempfile.TemporaryDirectory() as directory:
        finding = find_first_nonfinite(open_trace(written(directory, planted, cuts, data.draw(st.integers(1, 3)))))
    # THEN it is found in that frame and entry
    assert finding is not None
    assert finding.frame.frame_number == frames[at].frame_number
    assert finding.entry.context == frames[at].entries[position].context
    assert finding.window[-1] is finding.frame or finding.window[-1].frame_number == finding.frame.frame_number


@settings(max_examples=50)
@given(batches(), st.data())
def test_of_many_bad_weights_the_first_in_order_is_found(frames: list[Frame], data: st.DataObject) -> None:
    at = data.draw(st.sets(st.integers(0, len(frames) - 1), min_size=1))
    for one in at:
        weight = replace(frames[one], entries=(bad("weight", "weight", nan=1),))
        frames = [*frames[:one], weight, *frames[one + 1 :]]
    with tempfile.TemporaryDirectory() as directory:
        finding = find_first_nonfinite(open_trace(written(directory, frames, [], 1)))
    assert finding is not None
    assert finding.frame.frame_number == frames[min(at)].frame_number


@settings(max_examples=50)
@given(batches(), st.data())
def test_the_finding_does_not_depend_on_how_the_file_is_cut(frames: list[Frame], data: st.DataObject) -> None:
    # GIVEN several bad entries, of which some may be absorbed
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frames) - 1))
        position = data.draw(st.integers(0, len(frames[at].entries) - 1))
        frames = plant(frames, at, position, bad("output", "x", **data.draw(counts)))
    cuts = data.draw(st.lists(st.integers(0, len(frames)), max_size=6))
    # WHEN the same frames are written as one row group, as many, and compacted
    with (
        tempfile.TemporaryDirectory() as whole,
        tempfile.TemporaryDirectory() as cut,
        tempfile.TemporaryDirectory() as away,
    ):
        one = open_trace(written(whole, frames, [], 1))
        many = open_trace(written(cut, frames, cuts, data.draw(st.integers(1, 3))))
        compacted = Path(away) / "one.parquet"
        compact_trace(many, compacted, rows_a_group=data.draw(st.integers(1, 40)))
        # THEN the whole finding is the same
        assert said(one) == said(many) == said(open_trace(compacted))


@settings(max_examples=50)
@given(batches())
def test_finite_frames_have_no_finding(frames: list[Frame]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        assert find_first_nonfinite(open_trace(written(directory, frames, [], 1))) is None
