"""Figures are what the trace's table of columns says of a tensor's numbers."""

from __future__ import annotations

import typing

import pyarrow as pa

from overflow_analyzer.format.columns import BY_NAME, columns_of
from overflow_recorder.statistics import Figures


def test_figures_are_the_columns_in_their_order_and_types() -> None:
    # The ring's rows are packed in this order.
    assert Figures._fields == columns_of("figure")
    types = {pa.int64(): int | None, pa.float64(): float | None}
    assert typing.get_type_hints(Figures) == {name: types[BY_NAME[name].type] for name in Figures._fields}
