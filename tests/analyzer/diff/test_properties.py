"""Laws of comparing: identity, symmetry, a planted difference is found, how a trace is cut does not matter."""

from __future__ import annotations

import itertools
import json
import math
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.diff import Tolerance, diff_traces
from overflow_analyzer.diff.stream import reading
from overflow_analyzer.format.columns import SCHEMA
from overflow_analyzer.format.files import RUN_FILE
from overflow_analyzer.render.diff import diff_as_json, render_diff
from overflow_analyzer.render.diff.sentences import answer
from overflow_analyzer.text.strict_json import to_json, to_plain
from overflow_analyzer.trace.opening import Trace
from overflow_analyzer.trace.rank_trace import RankTrace, open_rank
from tests.analyzer.diffing import (
    MODULES,
    changed,
    comparable,
    compare,
    mirrored,
    renumbered,
    scaled,
    trace_of,
    training,
)
from tests.traces import RUN, table_of, write_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overflow_analyzer.format.frames import Entry, Frame

BATCHES = 4
FRAMES = BATCHES * len(MODULES)
PLACES = st.tuples(st.integers(0, FRAMES - 1), st.integers(0, 2))
ROLES = ("weight", "input", "output")
KINDS = ("weight", "input", "module")
NONFINITE: dict[str, Any] = {"abs_max": float("inf"), "finite_abs_max": 1.0, "posinf_count": 1}


CHANGES: dict[str, dict[str, Any]] = {
    "inf": NONFINITE,
    "nan": {"abs_max": float("nan"), "abs_min": float("nan"), "finite_abs_max": 1.0, "nan_count": 2},
    "shape": {"shape": (2, 2)},
    "none": {"kind": "none", "abs_min": None, "abs_max": None, "dtype": None, "shape": None, "numel": 0},
    "dtype": {"dtype": "bfloat16"},
    "unknown": {"abs_min": None, "abs_max": None, "nan_count": None},
}
FACTORS = {"quarter": 0.25, "half more": 1.5, "thousandfold": 1e3, "rounding": 1 + 2.0**-10}


class Run(NamedTuple):
    """A run like ``training``'s, with a few of the ways in which one differs from another."""

    changes: tuple[tuple[tuple[int, int], str], ...] = ()
    without: frozenset[int] = frozenset()
    never_ran: bool = False
    """Whether the frames left out never ran, rather than being left out of the trace."""

    def frames(self) -> list[Frame]:
        frames = training(BATCHES)
        for (at, entry), change in self.changes:
            figures = frames[at].entries[entry]
            values = CHANGES[change] if change in CHANGES else scaled(figures, FACTORS[change])
            frames = changed(frames, at, entry, **values)
        frames = [one for at, one in enumerate(frames) if at not in self.without]
        return renumbered(frames) if self.never_ran else frames


def runs() -> st.SearchStrategy[Run]:
    change = st.tuples(PLACES, st.sampled_from([*CHANGES, *FACTORS]))
    changes = st.lists(change, max_size=4).map(tuple)
    return st.builds(Run, changes, st.frozensets(st.integers(0, FRAMES - 1), max_size=3), st.booleans())


@given(run=runs(), exact=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_run_does_not_differ_from_itself(run: Run, exact: bool) -> None:
    diff = compare(run.frames(), run.frames(), tolerance=Tolerance(exact=exact))
    assert diff.same
    assert (diff.only_in_a, diff.only_in_b, diff.structure, diff.differences) == ((), (), (), ())
    assert diff.compared.tolerated == 0


@given(a=runs(), b=runs())
@settings(max_examples=80, deadline=None)
def test_comparing_the_other_way_round_says_the_same(a: Run, b: Run) -> None:
    there, back = compare(a.frames(), b.frames()), compare(b.frames(), a.frames())
    assert to_plain(comparable(back)) == to_plain(comparable(mirrored(there)))


@given(place=PLACES, factor=st.sampled_from([0.1, 0.4, 2.5, 1e6]))
@settings(max_examples=60, deadline=None)
def test_a_planted_difference_is_found_where_it_was_planted(place: tuple[int, int], factor: float) -> None:
    # GIVEN two equal runs, but for one figure
    at, entry = place
    frames = training(BATCHES)

    # WHEN they are compared
    diff = compare(frames, changed(frames, at, entry, **scaled(frames[at].entries[entry], factor)))

    # THEN it is the first divergence, of the kind of its role, and the only one
    first = diff.first_divergence
    assert first is not None
    assert (first.frame_number_a, first.frame_number_b, first.role) == (at, at, ROLES[entry])
    assert (first.module_name, first.batch_number) == (frames[at].module_name, frames[at].batch_number)
    assert first.kind == KINDS[entry]
    assert first.agreed_before == 3 * at
    assert first.exact_before
    assert [one.module_name for one in diff.differences] == [frames[at].module_name]
    assert diff.compared.differing == 1


@given(places=st.lists(PLACES, min_size=2, max_size=6, unique_by=lambda place: place[0]))
@settings(max_examples=40, deadline=None)
def test_of_several_the_first_in_order_of_execution_is_found(places: list[tuple[int, int]]) -> None:
    frames = other = training(BATCHES)
    for at, entry in places:
        other = changed(other, at, entry, **scaled(frames[at].entries[entry], 4.0))
    first = compare(frames, other).first_divergence
    assert first is not None
    assert (first.frame_number_a, first.role) == (min(places)[0], ROLES[min(places)[1]])


@given(place=PLACES, drift=st.lists(PLACES, max_size=4))
@settings(max_examples=40, deadline=None)
def test_an_infinity_in_one_run_outranks_every_other_difference(
    place: tuple[int, int], drift: list[tuple[int, int]]
) -> None:
    frames = other = training(BATCHES)
    for at, entry in drift:
        other = changed(other, at, entry, **scaled(frames[at].entries[entry], 4.0))
    other = changed(other, *place, **NONFINITE)
    diff = compare(frames, other)
    first, earlier = diff.first_divergence, diff.first_difference
    assert first is not None
    assert earlier is not None
    assert (first.frame_number_a, first.role, first.nonfinite_in) == (place[0], ROLES[place[1]], "b")
    assert earlier.frame_number_a == min([place[0], *(at for at, _ in drift)])


@given(at=st.integers(0, FRAMES - 1))
@settings(max_examples=30, deadline=None)
def test_a_frame_that_one_run_does_not_have_is_found(at: int) -> None:
    frames = training(BATCHES)
    without = renumbered([one for place, one in enumerate(frames) if place != at])
    first = compare(frames, without).first_divergence
    assert first is not None
    assert (first.kind, first.only_in, first.frame_number_a) == ("structure", "a", at)


@given(
    run=runs(),
    cuts=st.tuples(st.sets(st.integers(1, FRAMES - 1)), st.sets(st.integers(1, FRAMES - 1))),
    in_rings=st.tuples(st.integers(0, FRAMES), st.integers(0, FRAMES)),
    rows_a_block=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_how_the_traces_are_cut_does_not_matter(
    run: Run, cuts: tuple[set[int], set[int]], in_rings: tuple[int, int], rows_a_block: int
) -> None:
    frames = training(BATCHES)
    with tempfile.TemporaryDirectory() as directory:
        paths = Path(directory) / "a" / "rank=0", Path(directory) / "b" / "rank=0"
        a = cut_trace(paths[0], frames, cuts[0], in_rings[0])
        b = cut_trace(paths[1], run.frames(), cuts[1], in_rings[1])
        with mock.patch.object(reading, "_ROWS_A_BLOCK", rows_a_block):
            found = diff_traces(a, b)
        assert to_plain(found) == to_plain(compare(frames, run.frames()))


@given(
    a=runs(),
    b=runs(),
    begins=st.tuples(st.integers(0, FRAMES - 1), st.integers(0, FRAMES - 1)),
    first_batch=st.sampled_from([0, 39]),
    roles=st.sampled_from([("weight", "input", "output"), ("output",), ("weight", "output"), ("input", "output")]),
)
@settings(max_examples=150, deadline=None)
def test_the_words_and_the_values_answer_alike_and_claim_only_what_both_runs_show(
    a: Run, b: Run, begins: tuple[int, int], first_batch: int, roles: tuple[str, ...]
) -> None:
    # GIVEN windows of two runs, in some roles, with non-finite figures, shapes and frames that differ
    recorded = tuple(
        [
            replace(
                one,
                batch_number=one.batch_number + first_batch,
                entries=tuple(e for e in one.entries if e.role in roles),
            )
            for one in run.frames()[begin:]
        ]
        for run, begin in zip((a, b), begins, strict=True)
    )
    # WHEN they are compared, in words and in values
    run = replace(RUN, options={**RUN.options, "roles": list(roles)})
    diff = diff_traces(*(trace_of(frames, run=run) for frames in recorded), offset=0)
    headline, *evidence = answer(diff)
    found = json.loads(to_json(diff_as_json(diff)))
    # THEN every answer is the same in both, no sentence comes twice, and what is claimed lies in both recordings
    assert found["explanation"] == [headline, *evidence]
    claims = [one for one in (headline, *evidence) if not one.startswith("It is ")]
    assert len(set(claims)) == len(claims)
    compared, first, earlier = found["compared"], found["first_divergence"], found["first_difference"]
    assert headline.startswith("Nothing could be compared") == (compared["entries"] == 0)
    assert headline.startswith("No difference") == found["same"] == (first is None and compared["entries"] > 0)
    assert headline.startswith("No difference:") == (found["same"] and compared["tolerated"] == 0)
    assert (first is None) == (earlier is None)
    assert found["same"] == (compared["entries"] > 0 and not compared["differing"] and earlier is None)
    if first is None:
        assert not evidence
        return
    text = render_diff(diff, width=None)
    assert f"{compared['differing']} differ by more than is tolerated, {compared['tolerated']} by less" in text
    repeated = [place_of(one) for one in (first, earlier)]
    again = [one for one in evidence if one.startswith("The runs differ before that already. ")]
    assert bool(again) == (repeated[0] != repeated[1])
    if again and None not in (first["frame_number_a"], earlier["frame_number_a"]):
        assert earlier["frame_number_a"] <= first["frame_number_a"]
    for sentence, one in [(headline, first), *((sentence.partition("already. ")[2], earlier) for sentence in again)]:
        holds(sentence, one, Recorded(recorded[0], recorded[1], roles))


def place_of(one: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(one[name] for name in ("rank", "frame_number_a", "frame_number_b", "role", "context"))


class Recorded(NamedTuple):
    """What of two runs is in their traces."""

    a: list[Frame]
    b: list[Frame]
    roles: tuple[str, ...]

    def entries(self, batch: int, modules: Sequence[str], role: str) -> list[tuple[Entry, Entry]]:
        """Return the entries that both runs have of a module, which may be called otherwise in B, in a batch."""
        sides = [
            {
                (one.call_index, entry.context): entry
                for one in run
                for entry in one.entries
                if (one.batch_number, one.module_name, entry.role) == (batch, module, role)
            }
            for run, module in zip((self.a, self.b), modules, strict=True)
        ]
        return [(entry, sides[1][key]) for key, entry in sides[0].items() if key in sides[1]]


def holds(sentence: str, one: dict[str, Any], recorded: Recorded) -> None:
    """Check what a headline claims against the frames themselves."""
    batch, module = one["batch_number"], one["module_name"]
    modules = module, one["module_name_b"]
    assert sentence.startswith(f"In batch {batch}, {f'module {module}' if module else 'the root'} (")
    assert one["context"] in sentence
    if one["nonfinite_in"]:
        (pair,) = recorded.entries(batch, modules, one["role"])
        with_one, without = pair if one["nonfinite_in"] == "a" else pair[::-1]
        assert f"in {one['nonfinite_in'].upper()} and none in" in sentence
        assert with_one.nan_count or with_one.posinf_count or not math.isfinite(with_one.abs_max or 0.0)
        assert without.abs_max is not None
        assert math.isfinite(without.abs_max)
    agreeing = re.search(r"while its (inputs|weights|inputs and weights) agree( but for rounding)?", sentence)
    if agreeing:
        for role in ("input", "weight"):
            if role in agreeing[1]:
                assert role in recorded.roles
                for there, here in recorded.entries(batch, modules, role):
                    assert close(there, here, exact=not agreeing[2])
    if sentence.endswith((": the module changed.", ": it was made here.")):
        assert {"input", "weight"} <= set(recorded.roles)
    if "did not start from the same state" in sentence:
        assert batch == 0
    if update := re.search(r"an update between batch (\d+) and batch|the update before batch (\d+)", sentence):
        before = int(update[1]) if update[1] else int(update[2]) - 1
        pairs = recorded.entries(before, modules, "weight")
        assert pairs
        assert all(close(there, here, exact=False) for there, here in pairs)


def close(a: Entry, b: Entry, *, exact: bool) -> bool:
    """Whether what is known of both is the same, or is so within a hundredth."""
    names = ("abs_min", "abs_max", "finite_abs_max", "nan_count", "posinf_count", "neginf_count")
    pairs = [(getattr(a, name), getattr(b, name)) for name in names]
    limit = 0.0 if exact else 0.01
    return a.kind == b.kind and all(
        x is None or y is None or x == y or (x != x and y != y) or abs(x - y) <= limit * max(abs(x), abs(y))  # noqa: PLR0124  nan
        for x, y in pairs
    )


def test_numbers_that_no_recorder_writes_are_compared_like_others(tmp_path: Path) -> None:
    # GIVEN two row groups whose frame numbers are further apart than an int64 tells, and a place in a batch below 0
    first, second = training(1)[:2]
    frames = [replace(first, frame_number=-(2**63)), replace(second, frame_number=2**63 - 1, frame_in_batch=-(2**31))]
    other = changed(changed(frames, 0, 2, abs_max=9.0), 1, 2, abs_max=9.0)
    # WHEN they are compared
    traces = [cut_trace(tmp_path / name / "rank=0", some, {1}, 2) for name, some in (("a", frames), ("b", other))]
    diff = diff_traces(*traces)
    # THEN both differences are found, the first one first
    assert diff.first_divergence is not None
    assert diff.compared.differing == 2
    assert diff.first_divergence.module_name == MODULES[0]


def cut_trace(directory: Path, frames: Sequence[Frame], cuts: set[int], in_ring: int) -> Trace:
    """A trace whose frames lie in row groups cut before the given ones, and in a ring from ``in_ring`` on."""
    directory.mkdir(parents=True)
    (directory / RUN_FILE).write_text(RUN.to_json())
    sealed = frames[:in_ring]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(sealed)), len(sealed)]
    groups = [table_of(sealed[start:stop]) for start, stop in itertools.pairwise(bounds) if start < stop]
    if groups:
        write_part(directory / "part-00000000.parquet", groups, [RUN], len(sealed))
    opened: RankTrace = open_rank(0, directory)
    ring = table_of(frames[in_ring:]) if frames[in_ring:] else SCHEMA.empty_table()
    return Trace(directory.parent, (replace(opened, ring=ring),))
