"""A run's figures as what ``page.js`` reads: arrays rounded as far as they must be, compressed, in base64."""

from __future__ import annotations

import base64
import math
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.overview.overview import PLANES
from overflow_analyzer.text.escape import escape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overflow_analyzer.diff import DifferenceMap
    from overflow_analyzer.overview import Level, Overview, RankStrip
    from overflow_analyzer.overview.grid import Singles


_BUDGET: Final = 6_000_000
_STEPS: Final = (1 << 16, 32)


def module_numbers(overview: Overview) -> dict[str, int]:
    """Return the number by which a page knows each module, in order of first appearance."""
    numbers: dict[str, int] = {}
    for tensor in overview.tensors:
        numbers.setdefault(tensor.module_name, len(numbers))
    return numbers


def pack_run(
    overview: Overview, *, starts: Sequence[tuple[int, int]] = (), has_ranks: bool = False, budget: int = _BUDGET
) -> dict[str, Any]:
    """Return what ``page.js`` draws of one run.

    Args:
        overview: Of ``overview_of``.
        starts: (rank, batch) of the first inf/nan of each rank that has one.
        has_ranks: Whether there is a picture of the ranks.
        budget: Bytes that the figures may take; they are rounded, and then drawn together, until they do.
    """
    modules = module_numbers(overview)
    roles = list(dict.fromkeys(tensor.role for tensor in overview.tensors))
    dtypes = list(dict.fromkeys(tensor.dtype for tensor in overview.tensors))
    return {
        "modules": [escape(name) for name in modules],
        "roles": [escape(role) for role in roles],
        "dtypes": [_dtype(dtype) for dtype in dtypes],
        "tensors": [
            (modules[one.module_name], roles.index(one.role), escape(one.context), dtypes.index(one.dtype))
            for one in overview.tensors
        ],
        "levels": _levels(overview, budget),
        "fits": [(escape(module), fit) for module, fit in overview.fits.items()],
        "strip": _strip(overview.strip, starts) if has_ranks else None,
    }


def _dtype(name: str | None) -> dict[str, Any]:
    limits = float_format(name)
    if limits is None:
        return {"name": escape(name or ""), "limit": None, "normal": None}
    return {"name": name, "limit": math.log2(limits.max), "normal": math.log2(limits.smallest_normal)}


def _strip(strip: RankStrip, starts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    return {
        "ranks": strip.ranks,
        "first": strip.first.tolist(),
        "last": strip.last.tolist(),
        "width": strip.width,
        "headroom": _pack(strip.headroom, _STEPS[1]),
        "nonfinite": _pack(strip.nonfinite),
        "starts": starts,
    }


def _levels(overview: Overview, budget: int) -> list[dict[str, Any]]:
    whole = overview.whole
    while True:
        for steps in _STEPS:
            levels = [_level(level, steps) for level in (whole, overview.recent) if level is not None]
            size = sum(len(plane["data"]) for level in levels for plane in level["planes"].values() if plane)
            if size <= budget or (steps == _STEPS[-1] and len(whole.first) == 1):
                return levels
        whole = whole.halved()


def _level(level: Level, steps: float) -> dict[str, Any]:
    planes = {name: getattr(level, name) for name in PLANES}
    packed = {
        name: None if plane is None else _pack(plane, None if name in ("nan", "inf") else steps)
        for name, plane in planes.items()
    }
    return {**_bins(level), "planes": packed}


def pack_differences(found: DifferenceMap, overview: Overview) -> dict[str, Any]:
    """Return what ``page.js`` draws of the differences of two runs: a row a module, in order of execution in A.

    Args:
        found: Of ``DifferencesOverBatches``.
        overview: Of A, whose batches these are.
    """
    numbers = module_numbers(overview)
    order = sorted(range(len(found.modules)), key=lambda at: numbers.get(found.modules[at], len(numbers)))
    whole = overview.whole
    while len(whole.first) > found.epsilons.shape[1]:
        whole = whole.halved()
    return {
        "modules": [escape(found.modules[at]) for at in order],
        "roles": [""],
        "dtypes": [_dtype(None)],
        "tensors": [(at, 0, "", 0) for at in range(len(order))],
        "levels": [
            {
                **_bins(whole),
                "planes": {"epsilons": _pack(found.epsilons[order]), "apart": _pack(found.apart[order])},
            }
        ],
    }


def _bins(level: Level) -> dict[str, list[int]]:
    return {name: getattr(level, name).tolist() for name in ("first", "last", "count", "optimizer_step")}


def _pack(values: npt.NDArray[Any], steps: float | None = None) -> dict[str, Any]:
    """Return an array as text: its float32 values in columns of their bytes, rounded to so many steps in 1."""
    rounded = values if steps is None else np.round(values * steps) / steps
    singles: Singles = rounded.astype(np.float32)
    columns = np.ascontiguousarray(singles).reshape(-1).view(np.uint8).reshape(-1, 4).T
    return {"data": base64.b64encode(zlib.compress(columns.tobytes())).decode()}
