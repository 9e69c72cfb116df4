from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

from overflow_recorder.callbacks import CallbackHandler, RecorderCallback
from overflow_recorder.events import BatchEvent, CloseEvent, FrameEvent, NonFiniteEvent, Stop
from tests.recorder.subprocesses import output_without_torch

TRAINING_EVENTS = (
    "init_end",
    "train_begin",
    "train_end",
    "epoch_begin",
    "epoch_end",
    "step_begin",
    "substep_end",
    "step_end",
    "evaluate",
    "log",
    "save",
)
RECORDER_EVENTS = ("batch_begin", "frame", "nonfinite", "batch_end", "close")


class First(RecorderCallback):
    """Writes down what it hears."""

    def __init__(self, heard: list[Any] | None = None) -> None:
        self.heard: list[Any] = [] if heard is None else heard

    def on_log(self, **kwargs: Any) -> None:
        self.heard.append((type(self).__name__, kwargs))

    def on_batch_end(self, recorder: Any, event: BatchEvent) -> None:
        self.heard.append((type(self).__name__, recorder, event))


class Second(First):
    pass


class DuckTyped:
    """No RecorderCallback, and with one event of its own."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_push(self, *args: Any, **kwargs: Any) -> None:
        self.heard.append((args, kwargs))


def test_callbacks_are_called_in_order_with_the_arguments() -> None:
    # GIVEN
    heard: list[Any] = []
    handler = CallbackHandler([Second(heard), First(heard)])
    event = BatchEvent(batch_number=3, selected=True)

    # WHEN
    handler.call_event("log", loss=0.5)
    handler.call_event("batch_end", "the recorder", event)

    # THEN
    assert heard == [
        ("Second", {"loss": 0.5}),
        ("First", {"loss": 0.5}),
        ("Second", "the recorder", event),
        ("First", "the recorder", event),
    ]


def test_a_missing_event_is_skipped_and_an_unknown_one_nobodys() -> None:
    # GIVEN
    duck = DuckTyped()
    first = First()
    handler = CallbackHandler([duck, first])

    # WHEN
    handler.call_event("log", loss=1)
    handler.call_event("push", 1, key=2)
    handler.call_event("never_heard_of")

    # THEN
    assert first.heard == [("First", {"loss": 1})]
    assert duck.heard == [((1,), {"key": 2})]


def test_the_events_name_may_carry_its_prefix() -> None:
    first = First()
    handler = CallbackHandler([first])

    handler.call_event("on_log", loss=1)

    assert first.heard == [("First", {"loss": 1})]
    assert handler.listens_to("on_log")


def test_a_keyword_may_be_called_event() -> None:
    first = First()

    CallbackHandler([first]).call_event("log", event=3)

    assert first.heard == [("First", {"event": 3})]


def test_an_attribute_that_is_no_method_is_no_listener() -> None:
    first: Any = First()
    first.on_save = None

    handler = CallbackHandler([first])

    handler.call_event("save")
    assert not handler.listens_to("save")


def test_an_exception_goes_up_and_the_rest_is_not_called() -> None:
    # GIVEN
    class Failing(RecorderCallback):
        def on_log(self, **kwargs: Any) -> None:
            raise ZeroDivisionError("this one")

    first = First()
    handler = CallbackHandler([Failing(), first])

    # WHEN
    with pytest.raises(ZeroDivisionError, match="this one"):
        handler.call_event("log")

    # THEN
    assert first.heard == []


def test_the_first_stop_is_returned_and_the_rest_is_still_called() -> None:
    # GIVEN
    stops = [Stop(ValueError("first"), "why"), Stop(ValueError("second"), "why")]

    class Returning:
        def __init__(self, value: Any) -> None:
            self.value = value

        def on_log(self) -> Any:
            return self.value

    class Other(Returning):
        pass

    class Third(Returning):
        pass

    class Last(First):
        pass

    last = Last()
    handler = CallbackHandler([Returning("no stop"), Other(stops[0]), Third(stops[1])])

    # THEN
    assert handler.call_event("log") is stops[0]
    assert CallbackHandler([last]).call_event("log", loss=1) is None
    handler = CallbackHandler([Other(stops[0]), last])
    handler.pop_callback(Other)
    assert handler.call_event("log") is None
    assert last.heard == [("Last", {"loss": 1}), ("Last", {})]


def test_a_class_is_made_and_an_instance_taken() -> None:
    handler = CallbackHandler([First])
    second = Second()
    handler.add_callback(second)

    assert isinstance(handler.callbacks[0], First)
    assert handler.callbacks[1] is second
    assert handler.callback_list == "First\nSecond"


@pytest.mark.parametrize("duplicate", [First, First([1])], ids=["class", "instance with other settings"])
def test_a_second_of_a_class_is_warned_about_and_not_added(duplicate: Any) -> None:
    # GIVEN
    first = First()
    handler = CallbackHandler([first])

    # WHEN
    with pytest.warns(UserWarning, match="already a First") as warnings:
        handler.add_callback(duplicate)

    # THEN it is the first that stays, and runs once
    assert handler.callbacks == (first,)
    assert warnings[0].filename == __file__
    handler.call_event("log")
    assert len(first.heard) == 1


def test_duplicates_given_to_the_constructor_are_warned_about_where_it_is_called() -> None:
    with pytest.warns(UserWarning, match="already a First") as warnings:
        handler = CallbackHandler([First, First])

    assert len(handler.callbacks) == 1
    assert warnings[0].filename == __file__


@pytest.mark.parametrize("by", ["instance", "class", "base class"])
def test_popping_returns_what_was_removed(by: str) -> None:
    # GIVEN
    second = Second()
    handler = CallbackHandler([DuckTyped, second])
    meant: Any = {"instance": second, "class": Second, "base class": First}[by]

    # THEN
    assert handler.pop_callback(meant) is second
    assert handler.callback_list == "DuckTyped"
    assert handler.pop_callback(meant) is None


def test_of_several_that_match_the_first_is_popped() -> None:
    first, second = First(), Second()
    handler = CallbackHandler([second, first])

    assert handler.pop_callback(First) is second
    assert handler.callbacks == (first,)


def test_removing() -> None:
    first = First()
    handler = CallbackHandler([first, DuckTyped])

    handler.remove_callback(first)
    handler.remove_callback(DuckTyped)

    assert handler.callbacks == ()


def test_removing_what_is_not_there() -> None:
    handler = CallbackHandler()

    handler.remove_callback(First)
    with pytest.raises(ValueError, match="not among the callbacks"):
        handler.remove_callback(First())


def test_one_that_was_popped_may_be_added_again() -> None:
    first = First()
    handler = CallbackHandler([first])
    handler.pop_callback(First)

    handler.add_callback(first)

    assert handler.callbacks == (first,)


def test_a_callback_may_remove_itself_while_it_is_called() -> None:
    # GIVEN
    class Once(RecorderCallback):
        def on_log(self, **kwargs: Any) -> None:
            handler.remove_callback(self)

    first = First()
    handler = CallbackHandler([Once(), first])

    # WHEN
    handler.call_event("log")

    # THEN
    assert len(first.heard) == 1
    assert handler.callbacks == (first,)


def test_only_what_does_something_listens() -> None:
    handler = CallbackHandler([First()])

    assert handler.listens_to("log")
    assert not handler.listens_to("frame")  # inherited from RecorderCallback
    assert not handler.listens_to("push")  # nobody has it


def test_listening_follows_the_list() -> None:
    # GIVEN
    handler = CallbackHandler([First])
    assert handler.listens_to("log")
    assert not handler.listens_to("push")

    # WHEN
    handler.pop_callback(First)

    # THEN
    assert not handler.listens_to("log")

    # WHEN
    handler.add_callback(DuckTyped)

    # THEN
    assert handler.listens_to("push")


def test_whoever_does_not_override_is_still_nobody_when_inherited_twice() -> None:
    class Between(RecorderCallback):
        pass

    class Last(Between):
        def on_frame(self, recorder: Any, event: FrameEvent) -> None:
            pass

    assert not CallbackHandler([Between]).listens_to("frame")
    assert CallbackHandler([Last]).listens_to("frame")


def test_the_base_class_has_every_event_and_each_does_nothing() -> None:
    # GIVEN
    methods = {name for name in vars(RecorderCallback) if name.startswith("on_")}

    # THEN
    assert methods == {f"on_{event}" for event in TRAINING_EVENTS + RECORDER_EVENTS}
    for event in TRAINING_EVENTS:
        assert getattr(RecorderCallback(), f"on_{event}")(model=1, anything="else") is None
    for event in RECORDER_EVENTS:
        parameters = list(inspect.signature(getattr(RecorderCallback, f"on_{event}")).parameters)
        assert parameters == ["self", "recorder", "event"]
        assert getattr(RecorderCallback(), f"on_{event}")("recorder", "event") is None


@pytest.mark.parametrize("kind", [BatchEvent, FrameEvent, NonFiniteEvent, CloseEvent, Stop])
def test_events_are_frozen(kind: Any) -> None:
    names = [field.name for field in dataclasses.fields(kind)]
    event = kind(*range(len(names)))

    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(event, names[0], None)


def test_works_without_torch() -> None:
    code = """
        from overflow_recorder.callbacks import CallbackHandler, RecorderCallback
        class Print(RecorderCallback):
            def on_log(self, **kwargs):
                print(kwargs)
        CallbackHandler([Print]).call_event("log", loss=1)
    """

    assert output_without_torch(code) == "{'loss': 1}\n"
