"""Arrays as text in a page: rounded as far as they must be, compressed, in base64."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from overflow_analyzer.overview.grid import Singles


def pack(values: npt.NDArray[Any], steps: float | None = None) -> dict[str, Any]:
    """Return an array as what ``page.js`` unpacks: its shape, and its float32 values in columns of their bytes.

    Args:
        values: Of any shape.
        steps: Round to so many steps in 1; None for none.
    """
    rounded = values if steps is None else np.round(values * steps) / steps
    singles: Singles = rounded.astype(np.float32)
    columns = np.ascontiguousarray(singles).reshape(-1).view(np.uint8).reshape(-1, 4).T
    return {"shape": list(values.shape), "data": base64.b64encode(zlib.compress(columns.tobytes())).decode()}
