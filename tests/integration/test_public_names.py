"""What is public: the names in ``__all__`` of the two packages, all of them there, and no others."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import overflow_analyzer
import overflow_recorder
from tests.recorder.subprocesses import output_of, output_without_torch

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
PACKAGES = [overflow_analyzer, overflow_recorder]
MODULES = sorted(
    path.relative_to(ROOT)
    for root in ("analyzer/overflow_analyzer", "recorder/overflow_recorder")
    for path in (ROOT / root).rglob("*.py")
    if path.name != "__main__.py"
)

# The names that the documentation promises.
ANALYZER_PROMISES = {"open_trace", "Trace", "render_report", "render_batch", "TraceError"}
RECORDER_PROMISES = {
    "BatchLimitReached",
    "CallbackHandler",
    "DataclassArgumentParser",
    "DebugUnderflowOverflow",
    "EvalPrediction",
    "NonFiniteError",
    "RecorderArguments",
    "RecorderCallback",
    "TraceRecorder",
    "enable_full_determinism",
    "set_seed",
    "torch_distributed_zero_first",
}


def names_for_type_checkers(package: ModuleType) -> set[str]:
    """What stands under ``if TYPE_CHECKING`` in a package's ``__init__``."""
    tree = ast.parse(inspect.getsource(package))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in imports for alias in node.names} - {"Any"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_public_name_of_a_package_resolves(package: ModuleType) -> None:
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        value = getattr(package, name)
        assert inspect.getdoc(value), f"{name} has no docstring"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_type_checkers_see_the_names_that_are_public(package: ModuleType) -> None:
    assert names_for_type_checkers(package) == set(package.__all__)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'nonsense'"):
        package.nonsense  # noqa: B018  the access is what is tested


def test_what_the_documentation_promises_is_public() -> None:
    assert set(overflow_analyzer.__all__) >= ANALYZER_PROMISES
    assert set(overflow_recorder.__all__) >= RECORDER_PROMISES


def test_only_packages_list_their_public_names() -> None:
    listing = [str(module) for module in MODULES if all_of(ast.parse((ROOT / module).read_text(encoding="utf-8")))]
    assert listing
    assert [module for module in listing if not module.endswith("__init__.py")] == []


@pytest.mark.parametrize("package", [module for module in MODULES if module.name == "__init__.py"], ids=str)
def test_a_package_lists_what_it_imports_to_be_imported(package: Path) -> None:
    tree = ast.parse((ROOT / package).read_text(encoding="utf-8"))
    there = {name for node in tree.body for name in (*names_defined(node), *names_imported(node))}
    listed = all_of(tree)
    assert len(listed) == len(set(listed))
    assert set(listed) <= there


def names_defined(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def names_imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.If):
        return [name for inner in node.body for name in names_imported(inner)]
    return [alias.asname or alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []


def all_of(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if "__all__" in names_defined(node) and isinstance(node, ast.Assign):
            return list(ast.literal_eval(node.value))
    return []


def test_importing_the_recorder_is_cheap() -> None:
    # GIVEN a process that imports it and uses a helper that needs no torch
    heavy = output_of("""
        import sys
        import overflow_recorder
        overflow_recorder.CallbackHandler
        print(sorted({"torch", "pyarrow", "transformers", "lightning"} & set(sys.modules)))
    """)
    assert heavy == "[]\n"


def test_a_name_that_needs_torch_says_what_to_install() -> None:
    said = output_without_torch("""
        import overflow_recorder
        try:
            from overflow_recorder import TraceRecorder
        except ModuleNotFoundError as error:
            print(error)
        print(overflow_recorder.set_seed.__name__)
    """)
    assert said == (
        "TraceRecorder needs torch, which is not installed here: pip install 'overflow-trace[recorder]'\nset_seed\n"
    )


def test_importing_the_analyzer_is_cheap() -> None:
    heavy = output_of("""
        import sys
        import overflow_analyzer
        import overflow_analyzer.cli
        print(sorted({"torch", "pyarrow", "numpy", "tabulate", "overflow_recorder"} & set(sys.modules)))
    """)
    assert heavy == "[]\n"


def test_every_module_can_be_imported() -> None:
    for module in MODULES:
        importlib.import_module(".".join(module.with_suffix("").parts[1:]).removesuffix(".__init__"))
