"""The text of a page: its policy, its size, what it packs and what it takes in of a trace."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from overflow_analyzer import coverage_of, find_first_nonfinite, open_trace, summarize
from overflow_analyzer.errors import MissingExtraError
from overflow_analyzer.overview import Level, Overview, RankStrip, Tensor, overview_of
from overflow_analyzer.render.html import render_page
from overflow_analyzer.render.html.packing import pack_run

if TYPE_CHECKING:
    import numpy.typing as npt

FIXTURE = Path(__file__).parents[4] / "fixtures" / "growing-activations" / "trace.parquet"


def page_with(overview: Overview | None = None) -> str:
    trace = open_trace(FIXTURE)
    found = find_first_nonfinite(trace)
    return render_page(trace, found, overview or overview_of(trace), summarize(trace), coverage_of(trace))


def unpacked(packed: dict[str, Any], columns: int) -> npt.NDArray[Any]:
    """What ``page.js`` makes of an array, written anew."""
    raw = zlib.decompress(base64.b64decode(packed["data"]))
    rows = np.frombuffer(raw, np.uint8).reshape(4, -1).T.copy()
    return rows.view("<f4").reshape(-1, columns)


def level(bins: int, values: npt.NDArray[Any]) -> Level:
    starts = np.arange(bins)
    count = np.ones(bins, np.int64)
    return Level(starts, starts, count, starts, values.astype(np.float32), None, None, None, None)


def overview(tensors: int, bins: int, values: npt.NDArray[Any]) -> Overview:
    names = tuple(
        Tensor(f"encoder.block.{at // 4}.part", "output", f"o{at % 4}", "float16", "M") for at in range(tensors)
    )
    nothing = np.full((1, 1), np.nan, np.float32)
    strip = RankStrip((0,), 1, np.zeros(1, np.int64), np.zeros(1, np.int64), nothing, nothing)
    return Overview(names, level(bins, values), None, strip, {}, 0)


def test_the_policy_lets_two_scripts_run_and_nothing_be_fetched() -> None:
    page = page_with()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    directives = dict(one.strip().split(" ", 1) for one in policy.replace("&#39;", "'").split(";"))
    # THEN nothing is allowed but what is named, and neither inline code nor evaluation is
    assert directives.keys() == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    assert (directives["default-src"], directives["img-src"]) == ("'none'", "data:")
    assert "unsafe" not in policy
    assert "http" not in policy
    # AND the hashes are those of the scripts that stand there
    scripts = re.findall(r"<script(?: data-style-nonce=\"[^\"]+\")?>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert directives["script-src"].split() == [f"'sha256-{one}'" for one in hashes]
    assert len(hashes) == 2


def test_the_same_trace_gives_the_same_page() -> None:
    assert page_with() == page_with()


def test_the_data_are_strict_json_without_markup() -> None:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page_with(), re.DOTALL)
    assert not set("<>&") & set(text)
    data = json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))
    assert data["guilty"] == "2"


def test_figures_come_back_as_they_are() -> None:
    # GIVEN figures, none, and all 0
    values = np.array([[1.5, math.nan, -math.inf], [-0.25, 15.999, 100.0]])
    packed = pack_run(overview(2, 3, values))
    found = unpacked(packed["levels"][0]["planes"]["log2"], 3)
    np.testing.assert_allclose(found, values, atol=2.0**-16)
    assert packed["levels"][0]["planes"]["nan"] is None


def test_a_thousand_modules_over_a_hundred_thousand_batches_stay_below_10_mib() -> None:
    # GIVEN 4,000 tensors in 2,048 bins, as so many batches come to, of noise that does not compress
    noise = np.random.default_rng(0).normal(0, 3, (4000, 2048))
    run = overview(4000, 2048, noise)
    # WHEN the page is made
    page = page_with(run)
    assert len(page.encode()) < 10 << 20
    # THEN each cell is the largest of the bins that became one, to a 32nd of a bit
    packed = pack_run(run)["levels"][0]
    found = unpacked(packed["planes"]["log2"], len(packed["first"]))
    width = 2048 // len(packed["first"])
    np.testing.assert_allclose(found, noise.reshape(4000, -1, width).max(axis=2), atol=2.0**-6)
    assert sum(packed["count"]) == 2048
    assert width <= 4


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", refuse)
    with pytest.raises(MissingExtraError, match=r"pip install 'overflow-trace\[html\]'"):
        page_with()
