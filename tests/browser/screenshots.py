"""The screenshots of the documentation: ``python -m tests.browser.screenshots`` takes them anew."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image

from tests.browser.chromium import Browser
from tests.browser.pages import page_of

if TYPE_CHECKING:
    from collections.abc import Sequence

IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
_COLOURS: Final = 128
_SHOWN: Final[dict[str, tuple[Sequence[str], bool, str]]] = {
    # file -> traces, dark, the element at whose bottom it ends
    "growing-activations": (["growing-activations/trace.parquet"], False, "values-note"),
    "masked-row": (["masked-row/trace.parquet"], True, "values-note"),
    "update-skipped": (["diff-update-skipped/a.parquet", "diff-update-skipped/b.parquet"], False, "values-note"),
}


def take(browser: Browser, name: str, directory: Path) -> Image.Image:
    """Return the picture of a page, from its top to the end of its curves."""
    traces, dark, last = _SHOWN[name]
    browser.open(page_of(directory, *(Path("fixtures", one) for one in traces)), dark=dark, width=1100)
    bottom = browser.run("return document.getElementById(arguments[0]).getBoundingClientRect().bottom + scrollY", last)
    with Image.open(io.BytesIO(browser.screenshot())) as taken:
        return taken.crop((0, 0, taken.width, int(bottom) + 16)).convert("RGB").quantize(_COLOURS)


def main() -> None:
    """Take them all; their paths are those that the repository has."""
    os.chdir(IMAGES.parents[1])
    IMAGES.mkdir(exist_ok=True)
    browser = Browser()
    for name in _SHOWN:
        with tempfile.TemporaryDirectory() as directory:
            take(browser, name, Path(directory)).save(IMAGES / f"{name}.png", optimize=True)
    browser.close()


if __name__ == "__main__":
    main()
