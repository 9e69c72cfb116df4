from __future__ import annotations

import gc
from typing import Any
from unittest.mock import patch

import pytest
import torch

from overflow_recorder.hooks import loss_scale
from overflow_recorder.hooks.loss_scale import LossScale


@pytest.fixture(autouse=True)
def _no_scaler_of_another_test() -> None:
    gc.collect()


def scaler(scale: float = 1024.0, **options: Any) -> torch.amp.GradScaler:
    made = torch.amp.GradScaler("cpu", init_scale=scale, **options)
    made.scale(torch.ones(()))
    return made


def test_the_scale_in_use_is_found_without_being_told() -> None:
    # GIVEN
    in_use = scaler(256.0)

    # THEN as the scaler's own tensor, so that reading it waits for nothing
    found = LossScale().current()
    assert found is in_use._scale
    assert found == 256.0


def test_it_follows_the_scaler() -> None:
    in_use, scale = scaler(256.0), LossScale()
    assert scale.current() == 256.0
    in_use.update(new_scale=2.0)
    assert scale.current() == 2.0


def test_a_scaler_that_is_off_or_unused_has_no_scale() -> None:
    _off, _unused = torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu")
    assert LossScale().current() is None


def test_the_scaler_is_not_kept_alive() -> None:
    in_use, scale = scaler(), LossScale()
    assert scale.current() is not None
    del in_use
    gc.collect()
    assert scale.current() is None


def test_a_subclass_is_found() -> None:
    class Sharded(torch.amp.GradScaler):
        pass

    in_use = Sharded("cpu", init_scale=8.0)
    in_use.scale(torch.ones(()))
    assert LossScale().current() == 8.0


def test_without_a_scaler_the_search_is_given_up_soon() -> None:
    with patch.object(loss_scale, "_find", return_value=None) as find:
        scale = LossScale()
        assert [scale.current() for _ in range(100)] == [None] * 100
    assert find.call_count == 3


def test_objects_that_fail_when_looked_at_are_no_obstacle() -> None:
    # GIVEN a proxy whose class cannot be asked for
    class Proxy:
        @property  # type: ignore[misc]  # that is the point
        def __class__(self) -> Any:
            raise ReferenceError("its object is gone")

    proxy, in_use = Proxy(), scaler(4.0)
    assert LossScale().current() == 4.0
    del proxy, in_use
