"""What holds for the repository as a whole: arrows, set-up, pins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[2]
MAY_IMPORT_TORCH = ("recorder/", "tests/", "examples/", "benchmarks/", "fixtures/")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files() -> list[str]:
    """The files of the repository: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def text_of(name: str) -> str:
    return (ROOT / name).read_bytes().decode("utf-8", "replace")


# The arrows.


def test_only_what_runs_in_training_imports_torch() -> None:
    importing = re.compile(r"^\s*(import|from) torch\b", re.MULTILINE)
    elsewhere = [name for name in files() if name.endswith(".py") and not name.startswith(MAY_IMPORT_TORCH)]
    assert elsewhere
    assert [name for name in elsewhere if importing.search(text_of(name))] == []


def test_ruff_bans_torch_where_it_has_no_place() -> None:
    lint = PROJECT["tool"]["ruff"]["lint"]
    assert "torch" in lint["flake8-tidy-imports"]["banned-api"]
    allowed = {
        pattern.partition("/")[0] + "/" for pattern, rules in lint["per-file-ignores"].items() if "TID251" in rules
    }
    assert allowed == set(MAY_IMPORT_TORCH)


def test_ruff_refuses_torch_in_the_analyzer() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--select",
            "TID251",
            "--stdin-filename",
            "analyzer/overflow_analyzer/x.py",
            "-",
        ],
        input="import torch\n",
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "TID251" in done.stdout


# Set-up.


def commands_in(document: str) -> list[str]:
    """Lines of a Markdown document that are typed at a prompt, without it."""
    return re.findall(r"^\$ (.*)$", text_of(document), re.MULTILINE)


def test_ci_installs_and_tests_as_the_readme_says() -> None:
    (second,) = [line for line in commands_in("README.md") if line.endswith("&& pytest -n 2")]
    install = second.split(" && ")[-2]
    assert install.startswith("pip install -c constraints.txt -e ")
    script = text_of(".ci/run")
    assert install.replace("pip install", "pip install --quiet") in script
    assert re.search(r"^check pytest -n 2$", script, re.MULTILINE)


@pytest.mark.parametrize("check", ["ruff check", "ruff format --check", "mypy", "mkdocs build --strict", "pytest -n 2"])
def test_ci_runs_every_check(check: str) -> None:
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert re.search(rf"^check {check}( --site-dir \S+)?$", text_of(".ci/run"), re.MULTILINE)


def test_types_and_warnings_are_strict() -> None:
    tools = PROJECT["tool"]
    assert tools["mypy"]["strict"] is True
    assert {"overflow_recorder", "overflow_analyzer", "tests"} <= set(tools["mypy"]["packages"])
    assert tools["pytest"]["ini_options"]["filterwarnings"][0] == "error"
    assert tools["ruff"]["lint"]["select"] == ["ALL"]


def test_every_dependency_of_development_is_pinned() -> None:
    # GIVEN what `.[dev]` requires, directly and indirectly, in this environment
    pinned = {
        normal(line.partition("==")[0]): line.partition("==")[2]
        for line in text_of("constraints.txt").splitlines()
        if line and not line.startswith("#")
    }
    # THEN each has one exact version
    assert all(re.fullmatch(r"[0-9][0-9A-Za-z.]*", version) for version in pinned.values())
    assert sorted(required_by("overflow-trace", {"dev"}) - set(pinned)) == []
    assert pinned["torch"] == "2.13.0"


def required_by(distribution: str, extras: set[str]) -> set[str]:
    """Names of all that a distribution needs here, itself and what is not installed left out."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    waiting = [(distribution, extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = waiting.pop()
        if (name, frozenset(wanted)) in seen:
            continue
        seen.add((name, frozenset(wanted)))
        for text in metadata.requires(name) or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted | {""}):
                found.add(normal(requirement.name))
                waiting.append((requirement.name, set(requirement.extras)))
    return found - {normal(distribution)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# Leftovers.


def test_no_machine_stands_in_a_fixture() -> None:
    described = [name for name in files() if name.startswith("fixtures/") and name.endswith("_run.json")]
    assert described
    for name in described:
        assert re.search(r'"hostname": "(host|localhost)"', text_of(name)), name
        assert '"command": ["make.py"]' in text_of(name), name


# CONTRIBUTING.

PACKAGES = ("analyzer/overflow_analyzer", "recorder/overflow_recorder")
FOLDERS = re.findall(r"^\| `(\w+)/` \|", text_of("CONTRIBUTING.md"), re.MULTILINE)
MADE_BY_A_FIXTURE = {"make.py", "trace.parquet"}


def test_every_path_and_module_in_contributing_exists() -> None:
    # GIVEN the words in code spans that name a folder, a file or a module, placeholders aside
    words = {word for span in re.findall(r"`([^`\n]+)`", text_of("CONTRIBUTING.md")) for word in span.split()}
    named = {
        word for word in words if re.fullmatch(r"[\w/]*\w[/.][\w./]*", word) and not re.search("NAME|WHAT|__", word)
    }
    assert len(named) > 40
    # THEN each is there, from the root or from inside a package
    roots = [ROOT, *(ROOT / package for package in PACKAGES), ROOT / PACKAGES[0] / "diff"]
    missing = [name for name in named - MADE_BY_A_FIXTURE if not any(is_there(root, name) for root in roots)]
    assert sorted(missing) == []


def is_there(root: Path, name: str) -> bool:
    """Whether a path exists, or a dotted name is a module or a name in one."""
    module = root / name.replace(".", "/")
    return any(path.exists() for path in (root / name, module.with_suffix(".py"), module.parent.with_suffix(".py")))


def test_every_folder_is_in_contributing() -> None:
    folders = [path.parent.name for package in PACKAGES for path in (ROOT / package).glob("*/__init__.py")]
    assert sorted(folders) == sorted(FOLDERS)
