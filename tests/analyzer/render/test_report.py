"""The standard report, to the letter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overflow_analyzer.format.frames import Entry
from overflow_analyzer.render.report import render_batch, render_report
from tests.analyzer.samples import HOSTILE, INF, NAN, WELL_KNOWN_REPORT, two_batches, well_known_frames
from tests.traces import frame, tensor


def test_the_well_known_report() -> None:
    assert render_report(well_known_frames(), 0) == WELL_KNOWN_REPORT


def test_a_batch_begins_with_two_blank_lines_its_marker_and_the_header() -> None:
    assert render_batch(two_batches()[:2]) == (
        "\n"
        "\n"
        "                  *** Starting batch number=0 ***\n"
        "abs min  abs max  metadata\n"
        "                  embed Linear\n"
        "5.00e-01 2.00e+00 weight\n"
        "0.00e+00 3.00e+00 output\n"
        "                  head Linear\n"
        "5.00e-01 2.00e+00 input[0]\n"
        "             None input[1]\n"
        "     not a tensor input[mask]\n"
        "5.00e-01 2.00e+00 output[0]\n"
        "            empty output[1]\n"
    )


def test_frame_by_frame_is_the_whole() -> None:
    assert "".join(render_batch([one]) for one in two_batches()) == render_batch(two_batches())


def line_of(entry: Entry) -> str:
    return render_batch([frame(1, 0, "a", entry)]).splitlines()[1]


@pytest.mark.parametrize(
    ("low", "high", "line"),
    [
        (0.0, 0.0, "0.00e+00 0.00e+00 output"),
        (0.0, INF, "0.00e+00      inf output"),
        (NAN, NAN, "     nan      nan output"),
        (INF, INF, "     inf      inf output"),
        (5e-324, 1e300, "4.94e-324 1.00e+300 output"),
        (1e-10, 65504.0, "1.00e-10 6.55e+04 output"),
    ],
)
def test_figures(low: float, high: float, line: str) -> None:
    assert line_of(tensor("output", "output", low, high)) == line


def test_figures_that_nobody_could_measure() -> None:
    # GIVEN a tensor on the meta device WHEN it is printed, THEN the line says there are no values
    assert (
        line_of(Entry("output", "output", "tensor", "float32", "meta", "strided", (4,), 4))
        == "        no values output"
    )


def test_a_buffer_shows_where_it_is_what_went_wrong() -> None:
    buffer = tensor("buffer", "running_var")
    assert "running_var" not in render_batch([frame(1, 0, "a", buffer)])
    assert "running_var" in render_batch([frame(1, 0, "a", replace(buffer, nan_count=1))])
    assert "running_var" not in render_batch([frame(1, 0, "a", replace(buffer, nan_count=1, note="ignored"))])


def test_a_name_is_one_line_and_does_nothing() -> None:
    lines = render_batch([frame(1, 0, HOSTILE + "\n", tensor("output", HOSTILE), module_class=HOSTILE)]).splitlines()
    assert lines == [
        "                  \\x1b[31m`|<script>模块\\u202e\\n \\x1b[31m`|<script>模块\\u202e",
        "5.00e-01 2.00e+00 \\x1b[31m`|<script>模块\\u202e",
    ]
