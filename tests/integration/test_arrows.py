"""Imports go one way, imports for types included: no circles, folders in the order of their package's docstring."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = {"overflow_analyzer": ROOT / "analyzer", "overflow_recorder": ROOT / "recorder"}
FILES = {
    ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
    for package, source in SOURCES.items()
    for path in sorted((source / package).rglob("*.py"))
}

ALLOWED = {
    # The recorder has callbacks, and a callback is given the recorder: for its type alone.
    ("overflow_recorder.callbacks", "overflow_recorder.trace_recorder"),
    ("overflow_recorder.builtin_callbacks", "overflow_recorder.trace_recorder"),
}
OF_THE_ANALYZER = ("errors", "format", "render.operation", "render.report", "text", "trace.opening")
"""What the recorder may import of it."""


def imports_of(source: str) -> set[str]:
    """The modules of both packages that a module's source imports, wherever the import stands in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            # What is imported may be a module itself.
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            found |= {name if name in FILES else node.module for name in inner}
    return found & FILES.keys()


IMPORTS = {name: imports_of(path.read_text(encoding="utf-8")) for name, path in FILES.items()}


def circles(imports: dict[str, set[str]]) -> list[str]:
    """Each module that, by its imports and theirs, imports itself."""
    reached = {name: set(imported) for name, imported in imports.items()}
    for modules in reached.values():
        waiting = list(modules)
        while waiting:
            new = imports[waiting.pop()] - modules
            modules.update(new)
            waiting += new
    return sorted(name for name, modules in reached.items() if name in modules)


def levels_of(package: str) -> dict[str, int]:
    """The folders and modules of a package by the order that its docstring gives, the lowest first."""
    docstring = ast.get_docstring(ast.parse(FILES[package].read_text(encoding="utf-8"))) or ""
    order = " ".join(re.findall(r"^    (.*)$", docstring, re.MULTILINE))
    named = enumerate(level.split(",") for level in order.split(" < "))
    return {name.strip(): level for level, names in named for name in names}


def place(module: str) -> str:
    """The folder or module, right below the package, that a module is in."""
    return module.split(".")[1]


def crossing(package: str) -> list[tuple[str, str]]:
    """(importing, imported) modules of a package that are not in the same place, the package itself aside."""
    inside = [name for name in FILES if name.startswith(f"{package}.") and place(name) != "__main__"]
    pairs = ((name, imported) for name in inside for imported in IMPORTS[name] if imported.startswith(f"{package}."))
    return [pair for pair in pairs if place(pair[0]) != place(pair[1]) and pair not in ALLOWED]


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]


def test_an_import_is_found_wherever_it_stands() -> None:
    source = (
        "import overflow_analyzer.errors\n"
        "from overflow_analyzer.format import columns\n"
        "def later():\n"
        "    from overflow_recorder.faults import warn\n"
    )
    assert imports_of(source) == {
        "overflow_analyzer.errors",
        "overflow_analyzer.format.columns",
        "overflow_recorder.faults",
    }


def test_there_is_no_circle() -> None:
    kept = {name: {one for one in found if (name, one) not in ALLOWED} for name, found in IMPORTS.items()}
    assert circles(kept) == []


def test_what_is_allowed_is_needed() -> None:
    assert [pair for pair in ALLOWED if pair[1] not in IMPORTS[pair[0]]] == []


@pytest.mark.parametrize("package", SOURCES)
def test_the_order_names_every_place_once(package: str) -> None:
    places = {place(name) for name in FILES if name.startswith(f"{package}.")}
    assert levels_of(package).keys() == places - {"__main__"}


@pytest.mark.parametrize("package", SOURCES)
def test_a_place_imports_only_from_lower_ones(package: str) -> None:
    levels = levels_of(package)
    upwards = [pair for pair in crossing(package) if levels[place(pair[1])] >= levels[place(pair[0])]]
    assert len(crossing(package)) > 50  # there is something to see
    assert upwards == []


def test_the_recorder_imports_little_of_the_analyzer() -> None:
    modules = itertools.chain.from_iterable(found for name, found in IMPORTS.items() if "recorder" in name)
    of_the_analyzer = {name.removeprefix("overflow_analyzer.") for name in modules if "analyzer" in name}
    assert of_the_analyzer
    assert [one for one in of_the_analyzer if not one.startswith(OF_THE_ANALYZER)] == []


def test_the_analyzer_imports_nothing_of_the_recorder() -> None:
    analyzer = (found for name, found in IMPORTS.items() if "analyzer" in name)
    assert [name for found in analyzer for name in found if "recorder" in name] == []


@pytest.mark.parametrize(("folder", "other"), [("tests", "benchmarks"), ("benchmarks", "tests")])
def test_tests_and_benchmarks_do_not_import_each_other(folder: str, other: str) -> None:
    importing = re.compile(rf"^\s*(import|from) {other}\b", re.MULTILINE)
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert [str(path) for path in files if importing.search(path.read_text(encoding="utf-8"))] == []
