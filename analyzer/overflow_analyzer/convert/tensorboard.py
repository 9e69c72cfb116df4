"""A trace as TensorBoard scalars, through tensorboardX, which needs neither TensorFlow nor torch."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.convert.outputs import OutputError, refuse_traces
from overflow_analyzer.errors import MissingExtraError
from overflow_analyzer.format.columns import COLUMNS, COUNT_COLUMNS, PHASES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa


_FIGURES: Final = tuple(column.name for column in COLUMNS if column.plotted)
_OTHER_PHASE: Final = "other"  # a directory's name is never taken from the trace
_KEPT: Final = re.compile(r"[^-/\w.]+", re.ASCII)


def export_tensorboard(tables: Iterable[pa.Table], directory: Path) -> int:
    """Write the figures of every tensor as scalars over batch_number.

    A tag is ``FIGURE/MODULE.CONTEXT``, as ``abs_max/encoder.block.0.output``; the calls after a module's first one in a
    batch have ``-call1`` and so on behind it. ``nonfinite`` counts nan and inf where there are any. Each rank and phase
    is a run of its own, ``rank=0/train``.

    Args:
        tables: Of ``export.ranked_tables``.
        directory: For the event files; made if it is not there.

    Returns:
        How many scalars were written.

    Raises:
        MissingExtraError: tensorboardX is not installed.
        OutputError: The directory holds something already, lies in a trace, or cannot be written.
    """
    writer_class = _summary_writer()
    _claim(directory)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_quiet())
        writers: dict[str, Any] = {}
        written = 0
        for row in (row for table in tables for row in table.to_pylist()):
            run = f"rank={row['rank']}/{row['phase'] if row['phase'] in PHASES else _OTHER_PHASE}"
            if run not in writers:
                writers[run] = stack.enter_context(writer_class(logdir=str(directory / run)))
            for figure, value in _scalars(row):
                writers[run].add_scalar(
                    f"{figure}/{_tag(row)}", value, row["batch_number"], walltime=row["time_ns"] / 1e9
                )
                written += 1
    return written


def _summary_writer() -> Any:
    with _without_torch():
        try:
            return importlib.import_module("tensorboardX").SummaryWriter
        except ImportError:
            raise MissingExtraError(
                "tensorboardX is not installed; it comes with the extra: pip install 'overflow-trace[tensorboard]'"
            ) from None


@contextlib.contextmanager
def _without_torch() -> Iterator[None]:
    """Keep torch out: tensorboardX imports it where it finds it, for what is not used here, and that takes seconds."""
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # so that importing it fails
    try:
        yield
    finally:
        del sys.modules["torch"]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """An inf is what these plots are for: tensorboardX would warn of each."""
    logger = logging.getLogger("tensorboardX")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _claim(directory: Path) -> None:
    refuse_traces(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        taken = any(directory.iterdir())
    except OSError as error:
        raise OutputError(f"{directory}: cannot be written ({error.strerror or error})") from None
    if taken:
        raise OutputError(f"{directory}: holds something already; give a new directory")


def _scalars(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for figure in _FIGURES:
        if row[figure] is not None:
            yield figure, row[figure]
    nonfinite = sum(row[count] or 0 for count in COUNT_COLUMNS)
    if nonfinite:
        yield "nonfinite", nonfinite


def _tag(row: dict[str, Any]) -> str:
    context = row["context"].replace("[", ".").replace("]", "")
    call = f"-call{row['call_index']}" if row["call_index"] else ""
    return _KEPT.sub("_", f"{row['module_name'] or row['module_class']}.{context}{call}")
