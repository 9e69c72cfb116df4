from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_analyzer.diff.align.modules import ModuleMatches, match_modules
from overflow_analyzer.diff.align.renames import Rename

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PLAIN = {"fc": "Linear", "act": "ReLU", "": "Model"}


def nothing(matched: Mapping[str, str], a: Collection[str], b: Collection[str]) -> dict[str, str]:
    """A sequencer that finds nothing."""
    return {}


def match(a: dict[str, str], b: dict[str, str], *rules: str) -> ModuleMatches:
    return match_modules(a, b, [Rename.parse(rule) for rule in rules], nothing)


def pairs(matches: ModuleMatches) -> dict[str, tuple[str, str]]:
    return {pair.a: (pair.b, pair.matched_by) for pair in matches.pairs}


def wrapped(prefix: str, wrapper: str) -> dict[str, str]:
    inner = {f"{prefix}.{name}" if name else prefix: kind for name, kind in PLAIN.items()}
    return {**inner, "": wrapper}


def test_equal_names_and_classes_are_matched() -> None:
    matches = match(PLAIN, PLAIN)
    assert pairs(matches) == {name: (name, "exact") for name in PLAIN}


def test_the_root_inside_a_wrapper_is_the_root_not_the_wrapper() -> None:
    matches = match(PLAIN, wrapped("module", "DistributedDataParallel"))
    assert pairs(matches)[""] == ("module", "wrapper")
    assert matches.wrappers_b == ("",)
    assert (matches.only_a, matches.only_b) == ((), ())


def test_two_wrapped_runs_are_matched_wrapper_and_all() -> None:
    ddp = wrapped("module", "DistributedDataParallel")
    assert pairs(match(ddp, ddp)) == {name: (name, "exact") for name in ddp}


def test_other_wrappers_in_both_runs() -> None:
    matches = match(wrapped("module", "DataParallel"), wrapped("_orig_mod", "OptimizedModule"))
    assert pairs(matches)["module"] == ("_orig_mod", "wrapper")
    assert (matches.wrappers_a, matches.wrappers_b) == (("",), ("",))


def test_a_model_with_an_attribute_called_module_is_matched_as_it_is() -> None:
    twins = {"fc": "Linear", "module.fc": "Linear", "module": "Teacher", "": "Model"}
    assert pairs(match(twins, twins)) == {name: (name, "exact") for name in twins}


def test_a_rule_outranks_names() -> None:
    # GIVEN a trainer around the model, so that the root's name stands for another module in B
    trainer = {f"model.{name}" if name else "model": kind for name, kind in PLAIN.items()} | {"": "Trainer"}
    matches = match(PLAIN, trainer, "*=model.*")
    assert pairs(matches) == {"fc": ("model.fc", "map"), "act": ("model.act", "map"), "": ("model", "map")}
    assert matches.only_b == ("",)


def test_a_rule_sees_through_wrappers() -> None:
    matches = match(PLAIN, wrapped("module", "DataParallel"), "fc=fc")
    assert pairs(matches)["fc"] == ("module.fc", "map")


def test_a_name_whose_class_changed_is_matched_last() -> None:
    matches = match(PLAIN, PLAIN | {"act": "GELU"})
    assert pairs(matches)["act"] == ("act", "class")


def test_a_sequence_is_preferred_to_a_name_whose_class_changed() -> None:
    # GIVEN a layer put in front of a Sequential, which renumbers all others
    a = {"0": "Linear", "1": "ReLU"}
    b = {"0": "LayerNorm", "1": "Linear", "2": "ReLU"}
    seen: list[tuple[set[str], set[str]]] = []

    def sequencer(matched: Mapping[str, str], free_a: Collection[str], free_b: Collection[str]) -> dict[str, str]:
        seen.append((set(free_a), set(free_b)))
        return {"0": "1", "1": "2"}

    matches = match_modules(a, b, [], sequencer)
    assert seen == [({"0", "1"}, {"0", "1", "2"})]
    assert pairs(matches) == {"0": ("1", "sequence"), "1": ("2", "sequence")}
    assert matches.only_b == ("0",)


def test_the_sequencer_is_not_asked_where_one_side_has_nothing_left() -> None:
    def sequencer(matched: Mapping[str, str], free_a: Collection[str], free_b: Collection[str]) -> dict[str, str]:
        raise AssertionError("nothing is left to match")

    matches = match_modules(PLAIN, PLAIN | {"norm": "LayerNorm"}, [], sequencer)
    assert matches.only_b == ("norm",)
