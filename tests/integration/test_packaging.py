"""What is built and shipped: exactly the two packages and what describes them."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = "0.1.0"
ROOTS = {"recorder": "overflow_recorder", "analyzer": "overflow_analyzer"}


def sources() -> dict[str, str]:
    """Path in the repository -> path in the wheel, of what the packages consist of."""
    return {
        str(path.relative_to(ROOT)): str(path.relative_to(ROOT / root))
        for root, package in ROOTS.items()
        for pattern in ("*.py", "py.typed", "*.css", "*.js", "*.jinja")
        for path in (ROOT / root / package).rglob(pattern)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist and the wheel that is built from it."""
    directory = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(directory), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"overflow_trace-{VERSION}-py3-none-any.whl"


def test_nothing_else_is_built(built: Path) -> None:
    names = {path.name for path in built.iterdir()}
    assert names == {f"overflow_trace-{VERSION}-py3-none-any.whl", f"overflow_trace-{VERSION}.tar.gz"}


def test_the_wheel_has_the_two_packages_and_nothing_else(wheel: Path) -> None:
    information = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    wanted = set(sources().values()) | {f"overflow_trace-{VERSION}.dist-info/{name}" for name in information}
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == wanted


def test_the_sdist_has_what_builds_the_wheel_and_nothing_else(built: Path) -> None:
    described = {"README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", ".gitignore", "PKG-INFO"}
    with tarfile.open(built / f"overflow_trace-{VERSION}.tar.gz") as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == set(sources()) | described


def test_both_packages_are_typed() -> None:
    assert {path for path in sources().values() if path.endswith("py.typed")} == {
        "overflow_analyzer/py.typed",
        "overflow_recorder/py.typed",
    }


def test_the_metadata_says_what_installing_brings(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(f"overflow_trace-{VERSION}.dist-info/METADATA"))
        scripts = archive.read(f"overflow_trace-{VERSION}.dist-info/entry_points.txt").decode()
    required = metadata.get_all("Requires-Dist") or []
    # THEN an analyst's machine gets no torch: it is an extra
    base = {requirement.partition(">")[0] for requirement in required if "extra ==" not in requirement}
    assert base == {"numpy", "pyarrow", "click", "tabulate"}
    assert "torch>=2.6; extra == 'recorder'" in required
    assert metadata["Name"] == "overflow-trace"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "overflow-analyze = overflow_analyzer.cli:main" in scripts
    assert "overflow-record = overflow_recorder.launch.cli:main" in scripts


def test_the_wheel_runs_where_it_is_unpacked(wheel: Path, tmp_path: Path) -> None:
    # GIVEN the wheel's files alone, ahead of the working tree
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # WHEN its command runs, THEN it is that code that runs
    code = "import overflow_analyzer, overflow_recorder; print(overflow_analyzer.__file__, overflow_recorder.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    places = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert places.stdout.count(str(tmp_path)) == 2
    fixture = ROOT / "fixtures" / "dropout-overflow" / "trace.parquet"
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "overflow_analyzer", str(fixture)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (1, "")
    assert "Detected inf/nan during batch_number=0" in ran.stdout
