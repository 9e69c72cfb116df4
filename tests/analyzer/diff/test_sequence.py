from __future__ import annotations

from dataclasses import replace

from overflow_analyzer.diff.align.sequence import CallSignature, call_signatures, match_renamed
from tests.traces import frame, table_of, tensor


def call(name: str, kind: str = "Linear", size: int = 4, batch: int = 2) -> CallSignature:
    weights = (("weight", (size, size)),) if kind == "Linear" else ()
    return CallSignature(name, kind, weights, (("input", (batch, size)), ("output", (batch, size))))


def test_signatures_are_class_and_shapes_in_order_of_calls() -> None:
    frames = [
        frame(
            0, 0, "fc", tensor("weight", "weight", shape=(4, 2)), tensor("input", "input[0]", shape=(8, 2)), in_batch=0
        ),
        frame(1, 0, "act", replace(tensor("output", "output"), shape=None), module_class="ReLU", in_batch=3),
    ]
    assert call_signatures([table_of(frames)]) == [
        CallSignature("fc", "Linear", (("weight", (4, 2)),), (("input", (8, 2)),)),
        CallSignature("act", "ReLU", (), (("output", None),), 3),
    ]


def test_names_between_anchors_are_matched() -> None:
    a = [call("first"), call("old"), call("last")]
    b = [call("first"), call("new"), call("last")]
    assert match_renamed(a, b, {"first": "first", "last": "last"}, {"old"}, {"new"}) == {"old": "new"}


def test_anchors_keep_apart_what_looks_alike() -> None:
    # GIVEN a Linear before an anchor in A and one after it in B
    a = [call("old"), call("anchor", "ReLU")]
    b = [call("anchor", "ReLU"), call("new")]
    assert match_renamed(a, b, {"anchor": "anchor"}, {"old"}, {"new"}) == {}


def test_the_roots_empty_name_is_an_anchor_too() -> None:
    a, b = [call("old"), call("", "Model")], [call("new"), call("wrapped", "Model")]
    assert match_renamed(a, b, {"": "wrapped"}, {"old"}, {"new"}) == {"old": "new"}


def test_other_shapes_are_another_module() -> None:
    a, b = [call("old", size=4)], [call("new", size=8)]
    assert match_renamed(a, b, {}, {"old"}, {"new"}) == {}


def test_weights_decide_where_batches_are_of_another_size() -> None:
    a, b = [call("old", batch=2)], [call("new", batch=16)]
    assert match_renamed(a, b, {}, {"old"}, {"new"}) == {"old": "new"}


def test_an_inserted_layer_is_left_over() -> None:
    a = [call(f"a{n}", size=n) for n in (4, 8, 16)]
    b = [call("b4", size=4), call("added", "LayerNorm"), call("b8", size=8), call("b16", size=16)]
    free_b = {one.module_name for one in b}
    assert match_renamed(a, b, {}, {"a4", "a8", "a16"}, free_b) == {"a4": "b4", "a8": "b8", "a16": "b16"}


def test_windows_that_do_not_meet_tell_nothing() -> None:
    later = [replace(call("new"), place=7)]
    assert match_renamed([call("old")], later, {}, {"old"}, {"new"}) == {}
    anchor = call("anchor", "ReLU")
    assert match_renamed([call("old"), anchor], [*later, anchor], {"anchor": "anchor"}, {"old"}, {"new"})


def test_no_name_is_given_twice() -> None:
    # GIVEN a module that is called twice in A, where B has two modules
    a = [call("shared"), call("act", "ReLU"), call("shared")]
    b = [call("one"), call("act", "ReLU"), call("two")]
    renamed = match_renamed(a, b, {"act": "act"}, {"shared"}, {"one", "two"})
    assert renamed == {"shared": "one"}
