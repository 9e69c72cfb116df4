from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_recorder.helpers.evaluation import EvalPrediction
from tests.recorder.subprocesses import output_without_torch

if TYPE_CHECKING:
    from collections.abc import Callable

PREDICTIONS, LABELS, INPUTS, LOSSES = (np.full(3, value) for value in (0.5, 1.0, 2.0, 3.0))

INDICES = st.one_of(
    st.integers(-6, 6),
    st.slices(5),
    st.integers(-6, 6).map(np.int64),
)


def _outcome(action: Callable[[], Any]) -> Any:
    try:
        result = action()
    except IndexError:
        return IndexError
    return [id(element) for element in result] if isinstance(result, tuple) else id(result)


@given(st.booleans(), st.booleans(), INDICES)
def test_indexes_like_the_tuple_of_what_is_present(has_inputs: bool, has_losses: bool, index: Any) -> None:
    # GIVEN
    expected = (PREDICTIONS, LABELS, *[INPUTS][:has_inputs], *[LOSSES][:has_losses])
    prediction = EvalPrediction(PREDICTIONS, LABELS, INPUTS if has_inputs else None, LOSSES if has_losses else None)

    # THEN
    assert _outcome(lambda: prediction[index]) == _outcome(lambda: expected[index])
    assert len(prediction) == len(expected)
    assert [id(element) for element in prediction] == [id(element) for element in expected]


def test_unpacks_into_predictions_and_labels() -> None:
    predictions, labels = EvalPrediction(predictions=PREDICTIONS, label_ids=LABELS)

    assert predictions is PREDICTIONS
    assert labels is LABELS


def test_losses_without_inputs_come_right_after_the_labels() -> None:
    prediction = EvalPrediction(PREDICTIONS, LABELS, losses=LOSSES)

    assert prediction[2] is LOSSES
    assert prediction[-1] is LOSSES
    with pytest.raises(IndexError):
        prediction[3]
    assert prediction.inputs is None


def test_tuples_of_arrays_stay_tuples() -> None:
    prediction = EvalPrediction((PREDICTIONS, INPUTS), (LABELS, LABELS))

    assert prediction[0] == (PREDICTIONS, INPUTS)
    assert len(prediction) == 2


def test_an_assigned_attribute_is_what_indexing_gives() -> None:
    # GIVEN
    prediction = EvalPrediction(PREDICTIONS, LABELS)

    # WHEN
    prediction.predictions = LOSSES
    prediction.inputs = INPUTS

    # THEN
    assert [id(element) for element in prediction] == [id(LOSSES), id(LABELS), id(INPUTS)]


@pytest.mark.parametrize("name", ["predictions", "label_ids"])
def test_labels_and_predictions_are_always_there(name: str) -> None:
    values: dict[str, Any] = {"predictions": PREDICTIONS, "label_ids": LABELS, name: None}

    with pytest.raises(TypeError, match=name):
        EvalPrediction(**values)


def test_an_index_that_is_no_index_is_refused_as_by_a_tuple() -> None:
    index: Any = "predictions"

    with pytest.raises(TypeError):
        EvalPrediction(PREDICTIONS, LABELS)[index]


def test_agrees_with_transformers_where_both_are_defined() -> None:
    # GIVEN
    upstream = pytest.importorskip("transformers.trainer_utils").EvalPrediction
    combinations: list[dict[str, Any]] = [
        {},
        {"inputs": INPUTS},
        {"losses": LOSSES},
        {"inputs": INPUTS, "losses": LOSSES},
    ]

    for optional in combinations:
        # WHEN
        theirs, ours = upstream(PREDICTIONS, LABELS, **optional), EvalPrediction(PREDICTIONS, LABELS, **optional)

        # THEN
        assert [id(element) for element in ours] == [id(element) for element in theirs]
        for index in range(len(ours)):
            assert ours[index] is theirs[index]


def test_works_without_torch() -> None:
    code = """
        from overflow_recorder.helpers.evaluation import EvalPrediction
        print(EvalPrediction([1], [2])[1])
    """

    assert output_without_torch(code) == "[2]\n"
