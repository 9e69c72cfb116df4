"""Leftover rings: what proves itself is read, and nothing else."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.errors import DamagedTraceError, UnknownVersionError
from overflow_analyzer.format.files import NAMES_FILE, RING_FILE
from overflow_analyzer.format.frames import Entry, Frame, frames_from_tables
from overflow_analyzer.format.names import encode_name
from overflow_analyzer.format.ring import RingContents, read_ring
from overflow_analyzer.format.ring_layout import RING_END_OFFSET, RING_HEADER, RING_HEADER_SIZE, RING_ROW
from overflow_analyzer.format.run_info import EndInfo
from tests.analyzer.samples import two_batches
from tests.rings import Ring, seal_row
from tests.traces import frame, tensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def read(directory: Path) -> RingContents:
    return read_ring(directory / RING_FILE, directory / NAMES_FILE)


def frames_of(contents: RingContents, last_sealed_frame: int = -1) -> list[Frame]:
    return list(frames_from_tables([contents.kept_after(last_sealed_frame)]))


def numbers_of(contents: RingContents, last_sealed_frame: int = -1) -> list[int]:
    return [one.frame_number for one in frames_of(contents, last_sealed_frame)]


COUNT = st.integers(0, 2**63 - 1)
ENTRIES = st.builds(
    Entry,
    role=st.sampled_from(["weight", "buffer", "input", "output", "value"]),
    context=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    kind=st.sampled_from(["tensor", "none", "other"]),
    dtype=st.none() | st.sampled_from(["float16", "float8_e4m3fn"]),
    device=st.none() | st.just("cuda:0"),
    layout=st.none() | st.just("sparse_coo"),
    shape=st.none() | st.lists(COUNT, max_size=8).map(tuple),
    numel=COUNT,
    note=st.none() | st.just("ignored"),
)


@st.composite
def figures(draw: st.DrawFn) -> Entry:
    """An entry whose figures are there or not in the groups in which they are measured."""
    entry = draw(ENTRIES)
    groups = {
        ("abs_min", "abs_max"): st.floats(allow_nan=False),
        ("finite_abs_max",): st.floats(allow_nan=False),
        ("nan_count", "posinf_count", "neginf_count"): COUNT,
        ("zero_count", "subnormal_count"): COUNT,
        ("abs_mean", "rms"): st.floats(allow_nan=False),
    }
    for names, values in groups.items():
        there = draw(st.booleans())
        drawn: dict[str, Any] = {name: draw(values) if there else None for name in names}
        entry = replace(entry, **drawn)
    return entry


@settings(max_examples=50)
@given(entries=st.lists(figures(), min_size=1, max_size=4), phase=st.sampled_from(["train", "eval", "recompute"]))
def test_every_value_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry], phase: str
) -> None:
    # GIVEN a frame with any figures, any of them absent
    directory = tmp_path_factory.mktemp("ring")
    written = frame(5, 2, "a.b", *entries, phase=phase, call_index=3, optimizer_step=7)

    # WHEN it goes through a ring
    Ring(16).append([written]).save(directory)

    # THEN it is the same frame
    assert frames_of(read(directory)) == [written]


@pytest.mark.parametrize("special", [float("inf"), -float("inf"), 5e-324, 1e300, 0.0])
def test_special_figures_are_exact(special: float, tmp_path: Path) -> None:
    Ring(4).append([frame(0, 0, "a", tensor("output", "output", special, special))]).save(tmp_path)
    assert frames_of(read(tmp_path))[0].entries[0].abs_max == special


def test_nan_is_not_null(tmp_path: Path) -> None:
    Ring(4).append([frame(0, 0, "a", tensor("output", "output", float("nan"), float("nan")))]).save(tmp_path)
    column = read(tmp_path).kept_after(-1)["abs_max"]
    assert column.null_count == 0
    assert np.isnan(column.to_numpy()).all()


@pytest.mark.parametrize(
    ("window", "kept", "sealed", "expected"),
    [
        (3, False, -1, [3, 4, 5]),
        (3, True, -1, [0, 1, 2, 3, 4, 5]),
        (3, True, 3, [4, 5]),
        (3, False, 4, [5]),
        (9, False, -1, [0, 1, 2, 3, 4, 5]),
        (3, False, 9, []),
    ],
)
def test_what_of_a_ring_belongs_to_the_trace(
    window: int, kept: bool, sealed: int, expected: list[int], tmp_path: Path
) -> None:
    # GIVEN six frames, kept for a part or only passing through the window
    Ring(64, window).append(two_batches(), kept=kept).save(tmp_path)

    # WHEN some of them are sealed in a part already, THEN the others are what is left
    assert numbers_of(read(tmp_path), sealed) == expected


def test_a_ring_that_went_round_holds_the_last_frames_in_order(tmp_path: Path) -> None:
    # GIVEN ten frames of two rows in a ring of seven
    frames = [frame(at, 0, "a", tensor("input", "input[0]"), tensor("output", "output")) for at in range(10)]
    Ring(7, 21).append(frames).save(tmp_path)

    # THEN those are there of which no row is overwritten, the latest last
    assert numbers_of(read(tmp_path)) == [7, 8, 9]
    assert read(tmp_path).lost == ()


def test_a_frame_of_which_a_row_is_missing_is_left_out_and_said(tmp_path: Path) -> None:
    # GIVEN a page that never reached the disk
    ring = Ring(64).append(two_batches())
    ring.slots[1] = np.zeros((), RING_ROW)
    ring.save(tmp_path)

    # THEN its frame is not there in part, and the loss is said
    assert numbers_of(read(tmp_path)) == [1, 2, 3, 4, 5]
    assert read(tmp_path).lost == (f"1 rows of the window in {RING_FILE}",)


def test_a_kill_in_the_middle_of_a_frame_is_no_loss(tmp_path: Path) -> None:
    # GIVEN two rows of a frame of three that was never published
    ring = Ring(64).append(two_batches())
    half = frame(6, 2, "embed", *(tensor("output", f"output[{at}]") for at in range(3)))
    published = int(ring.header["published"])
    ring.append([half])
    ring.header["published"] = published
    ring.slots[published + 2] = np.zeros((), RING_ROW)
    ring.save(tmp_path)

    # THEN all whole frames are there, and nothing is said to be lost
    assert numbers_of(read(tmp_path)) == [0, 1, 2, 3, 4, 5]
    assert read(tmp_path).lost == ()


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), length=st.sampled_from([1, 8, 256, 4096]))
def test_no_damage_puts_a_wrong_figure_into_the_trace(
    tmp_path_factory: pytest.TempPathFactory, seed: int, length: int
) -> None:
    # GIVEN rows of which some bytes are another, anywhere behind the header
    directory = tmp_path_factory.mktemp("ring")
    frames = two_batches()
    Ring(24, 99).append(frames).save(directory)
    data = bytearray((directory / RING_FILE).read_bytes())
    some = random.Random(seed)
    at = some.randrange(RING_HEADER_SIZE, len(data))
    data[at : at + length] = some.randbytes(min(length, len(data) - at))
    (directory / RING_FILE).write_bytes(data)

    # THEN whatever is read was written so
    assert set(frames_of(read(directory))) <= set(frames)


@pytest.mark.parametrize("field", ["kind", "role", "phase", "dimensions"])
def test_a_forged_code_is_no_row(field: str, tmp_path: Path) -> None:
    # GIVEN a code outside the contract under a checksum that agrees
    ring = Ring(64).append(two_batches())
    row = ring.slots[0].copy()
    row[field] = 200
    ring.slots[0] = seal_row(row)
    ring.save(tmp_path)

    # THEN the row does not count
    assert 0 not in numbers_of(read(tmp_path))


def test_rows_whose_names_are_gone_are_left_out(tmp_path: Path) -> None:
    # GIVEN a names file that lost its end, and one that is not there
    ring = Ring(64).append(two_batches())
    ring.save(tmp_path)
    (tmp_path / NAMES_FILE).write_bytes(b"".join(map(encode_name, ring.names[1:4])))
    assert numbers_of(read(tmp_path)) == []

    (tmp_path / NAMES_FILE).unlink()
    contents = read(tmp_path)
    assert numbers_of(contents) == []
    assert NAMES_FILE in contents.lost[0]


@pytest.mark.parametrize("cut", [0, 5, RING_HEADER_SIZE - 1, RING_HEADER_SIZE, RING_HEADER_SIZE + 300])
def test_a_ring_that_was_cut_short(cut: int, tmp_path: Path) -> None:
    Ring(64).append(two_batches()).save(tmp_path)
    (tmp_path / RING_FILE).write_bytes((tmp_path / RING_FILE).read_bytes()[:cut])
    contents = read(tmp_path)
    assert numbers_of(contents) == []
    assert contents.lost


def test_without_a_header_the_rows_still_prove_themselves(tmp_path: Path) -> None:
    # GIVEN a header of zeros
    Ring(64, 3).append(two_batches()).save(tmp_path)
    data = (tmp_path / RING_FILE).read_bytes()
    (tmp_path / RING_FILE).write_bytes(bytes(RING_HEADER_SIZE) + data[RING_HEADER_SIZE:])

    # THEN all whole frames count, since nobody knows the window's size
    assert numbers_of(read(tmp_path)) == [0, 1, 2, 3, 4, 5]
    assert "header" in read(tmp_path).lost[0]


def with_header(directory: Path, **values: int) -> Path:
    data = (directory / RING_FILE).read_bytes()
    header = np.frombuffer(data[:RING_HEADER_SIZE], RING_HEADER)[0].copy()
    for name, value in values.items():
        header[name] = value
    (directory / RING_FILE).write_bytes(header.tobytes() + data[RING_HEADER_SIZE:])
    return directory


def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    Ring(64).append(two_batches()).save(tmp_path)
    with pytest.raises(UnknownVersionError, match="format version 9"):
        read(with_header(tmp_path, format_version=9))


def test_rows_of_another_size_are_refused(tmp_path: Path) -> None:
    Ring(64).append(two_batches()).save(tmp_path)
    with pytest.raises(DamagedTraceError, match="rows of 128 bytes"):
        read(with_header(tmp_path, row_size=128))


@pytest.mark.parametrize(
    "values", [{"published": 2**64 - 1}, {"capacity": 0}, {"capacity": 2**64 - 1}, {"window_frames": 2**63}]
)
def test_a_header_that_claims_anything(values: dict[str, int], tmp_path: Path) -> None:
    Ring(64).append(two_batches()).save(tmp_path)
    assert numbers_of(read(with_header(tmp_path, **values))) == [0, 1, 2, 3, 4, 5]


def end_in(header_end: bytes, directory: Path) -> EndInfo | None:
    ring = Ring(64).append(two_batches())
    ring.save(directory)
    data = bytearray((directory / RING_FILE).read_bytes())
    data[RING_END_OFFSET : RING_END_OFFSET + len(header_end)] = header_end
    (directory / RING_FILE).write_bytes(data)
    return read(directory).end


def test_how_the_run_ended_stands_in_the_header(tmp_path: Path) -> None:
    end = EndInfo("exception", 5, batch_number=1, reason="ValueError: x")
    assert end_in(encode_name(end.to_json()), tmp_path) == end


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"how": "in a way", "time_ns": 1}', '{"how": ["closed"], "time_ns": 1}', "{"]
)
def test_what_is_no_end_says_nothing(text: str, tmp_path: Path) -> None:
    assert end_in(encode_name(text), tmp_path) is None


def test_frames_of_any_order_come_out_in_order(tmp_path: Path) -> None:
    ring = Ring(64, 99).append(two_batches())
    ring.slots = ring.slots.view(f"V{RING_ROW.itemsize}")[::-1].copy().view(RING_ROW)  # with the bytes between fields
    ring.save(tmp_path)
    found: Sequence[int] = numbers_of(read(tmp_path))
    assert found == sorted(found) == [0, 1, 2, 3, 4, 5]
