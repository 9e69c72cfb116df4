from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING

import pytest

from overflow_recorder.launch.importing import call_after_import

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME = "module_to_wait_for"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that is not imported yet."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    path = tmp_path / f"{NAME}.py"
    path.write_text("value = 3\nloader = __loader__, dict(vars(__loader__))\n")
    yield path
    sys.modules.pop(NAME, None)


def test_the_action_follows_the_import(module: Path) -> None:
    # GIVEN
    seen: list[int] = []
    finders = list(sys.meta_path)

    # WHEN
    call_after_import(NAME, lambda: seen.append(sys.modules[NAME].value))
    before = list(seen)
    imported = importlib.import_module(NAME)

    # THEN the module is whole by then, and nothing of ours is left on it
    assert (before, seen) == ([], [3])
    assert sys.meta_path == finders
    assert "exec_module" not in imported.loader[1]
    assert imported.__spec__ is not None
    assert imported.__spec__.loader is imported.loader[0]


def test_a_module_that_is_there_already(module: Path) -> None:
    importlib.import_module(NAME)
    seen: list[str] = []

    call_after_import(NAME, lambda: seen.append("now"))

    assert seen == ["now"]


def test_asking_whether_it_is_there_is_no_import(module: Path) -> None:
    # GIVEN
    seen: list[str] = []
    call_after_import(NAME, lambda: seen.append("imported"))

    # WHEN as libraries do to learn what is installed
    assert importlib.util.find_spec(NAME) is not None
    asked = list(seen)
    importlib.import_module(NAME)

    # THEN
    assert (asked, seen) == ([], ["imported"])


def test_an_import_that_fails_once_is_waited_for_again(module: Path) -> None:
    # GIVEN
    seen: list[str] = []
    call_after_import(NAME, lambda: seen.append("imported"))
    code = module.read_text()

    # WHEN
    module.write_text("raise ImportError('not yet')")
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module(NAME)
    failed = list(seen)
    module.write_text(code + "# longer, so that no cache is used\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)

    # THEN
    assert (failed, seen) == ([], ["imported"])


def test_a_module_that_is_nowhere() -> None:
    finders = list(sys.meta_path)
    try:
        call_after_import("surely_not_installed", lambda: pytest.fail("there is nothing to import"))

        assert importlib.util.find_spec("surely_not_installed") is None
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("surely_not_installed")
    finally:
        sys.meta_path[:] = finders
