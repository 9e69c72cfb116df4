"""The pages of docs/ as a site: it builds without a warning, describes every public name and needs no network."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import overflow_analyzer
import overflow_recorder

ROOT = Path(__file__).parents[2]
FOLDERS = ["format", "trace", "first_nonfinite", "headroom", "diff", "convert"]


def build(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site as .ci/run does; with --quiet, --strict would not count the warnings that it refuses."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Path of each page of the built site -> its HTML."""
    directory = tmp_path_factory.mktemp("site")
    done = build(ROOT, directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return {str(path.relative_to(directory)): path.read_text(encoding="utf-8") for path in directory.rglob("*.html")}


@pytest.mark.slow
def test_a_link_to_a_heading_that_is_not_there_is_refused(tmp_path: Path) -> None:
    # GIVEN the pages, and in one of them a link to a heading that another one lacks
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for package in ("recorder", "analyzer"):
        (tmp_path / package).symlink_to(ROOT / package)
    with (tmp_path / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write("\n[nowhere](causes.md#no-such-cause)\n")
    # WHEN / THEN
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "does not contain an anchor '#no-such-cause'" in done.stderr


@pytest.mark.slow
def test_every_page_is_in_the_site_and_on_the_index(site: dict[str, str]) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert {str(page.with_suffix(".html")) for page in pages} | {"404.html"} == set(site)
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [str(page) for page in pages if f"({page})" not in index] == ["index.md"]


@pytest.mark.slow
def test_every_public_name_is_described(site: dict[str, str]) -> None:
    # GIVEN the headings of the reference
    described = set(re.findall(r'id="([\w.]+)"', site["reference/recorder.html"] + site["reference/analyzer.html"]))
    # THEN each name of the recorder and of the analyzer's folders has one
    expected = [f"overflow_recorder.{name}" for name in overflow_recorder.__all__]
    for folder in FOLDERS:
        module = importlib.import_module(f"overflow_analyzer.{folder}")
        expected += [f"{module.__name__}.{name}" for name in module.__all__]
    assert [name for name in expected if name not in described] == []
    # AND each name that the analyzer exports at its top stands under its own folder
    last = {name.rpartition(".")[2] for name in described}
    assert [name for name in overflow_analyzer.__all__ if name not in last] == []


@pytest.mark.slow
def test_no_page_loads_anything_from_a_server(site: dict[str, str]) -> None:
    loaded = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')
    assert [(page, loaded.findall(text)) for page, text in site.items() if loaded.search(text)] == []
    assert "fonts.googleapis" not in "".join(site.values())
