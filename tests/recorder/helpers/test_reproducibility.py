from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from overflow_recorder.helpers import reproducibility
from overflow_recorder.helpers.reproducibility import enable_full_determinism, seeds_in_force, set_seed
from tests.recorder.subprocesses import output_of, output_without_torch

if TYPE_CHECKING:
    from collections.abc import Iterator

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture(autouse=True)
def _state_of_the_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins with nothing set, and leaves the process as it was."""
    monkeypatch.setattr(reproducibility, "_in_force", None)
    benchmark, deterministic = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    with mock.patch.dict(os.environ):
        for name in (CUBLAS, "FLASH_ATTENTION_DETERMINISTIC", "HCCL_DETERMINISTIC", "PYTHONHASHSEED"):
            os.environ.pop(name, None)
        yield
    torch.use_deterministic_algorithms(mode=False)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = benchmark, deterministic


def _draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(1))  # noqa: NPY002 - the global generator is the subject


@given(st.integers(0, 2**32 - 1))
def test_the_generators_are_those_of_the_seed(seed: int) -> None:
    # WHEN
    set_seed(seed)

    # THEN each draws what a generator of its own with that seed draws
    expected = torch.rand(1, generator=torch.Generator().manual_seed(seed))
    assert _draws() == (random.Random(seed).random(), np.random.RandomState(seed).random_sample(), float(expected))


@pytest.mark.parametrize("seed", [np.int64(3), np.uint8(3), torch.tensor(3)])
def test_integral_types_are_seeds(seed: Any) -> None:
    set_seed(3)
    expected = _draws()

    set_seed(seed)

    assert _draws() == expected
    assert seeds_in_force()["seed"] == 3
    assert type(seeds_in_force()["seed"]) is int


@pytest.mark.parametrize(
    ("seed", "error"),
    [
        (2**32, ValueError),
        (-1, ValueError),
        (np.int64(-1), ValueError),
        (3.0, TypeError),
        (3.5, TypeError),
        ("3", TypeError),
        (None, TypeError),
        (True, TypeError),
        (np.True_, TypeError),
    ],
)
@pytest.mark.parametrize("function", [set_seed, enable_full_determinism])
def test_a_bad_seed_is_refused_before_anything_changes(function: Any, seed: Any, error: type[Exception]) -> None:
    # GIVEN
    set_seed(7)
    expected = _draws()
    set_seed(7)
    before = seeds_in_force()

    # WHEN
    with pytest.raises(error, match="seed"):
        function(seed)

    # THEN
    assert _draws() == expected
    assert seeds_in_force() == before
    assert not torch.are_deterministic_algorithms_enabled()
    assert CUBLAS not in os.environ


def test_set_seed_leaves_the_algorithms_alone() -> None:
    set_seed(3)

    assert not torch.are_deterministic_algorithms_enabled()
    assert CUBLAS not in os.environ
    assert seeds_in_force() == {
        "seed": 3,
        "deterministic": False,
        "full_determinism": False,
        "warn_only": False,
        "environment": {},
    }


def test_set_seed_deterministic() -> None:
    set_seed(3, deterministic=True)

    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert seeds_in_force()["deterministic"] is True
    assert seeds_in_force()["full_determinism"] is False
    assert seeds_in_force()["environment"] == {CUBLAS: ":16:8"}


def test_full_determinism_does_what_pytorchs_notes_ask_for() -> None:
    enable_full_determinism(3)

    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # a module property
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark
    assert os.environ[CUBLAS] == ":16:8"
    assert os.environ["FLASH_ATTENTION_DETERMINISTIC"] == "1"
    assert os.environ["HCCL_DETERMINISTIC"] == "1"
    with pytest.raises(RuntimeError, match="deterministic"):
        _nondeterministic_operation()


def test_full_determinism_that_only_warns() -> None:
    enable_full_determinism(3, warn_only=True)

    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert seeds_in_force()["warn_only"] is True
    with pytest.warns(UserWarning, match="deterministic"):
        _nondeterministic_operation()


def _nondeterministic_operation() -> None:
    # put_ with accumulate=False has no deterministic kernel on any device, the CPU included.
    torch.zeros(2).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]), accumulate=False)


@pytest.mark.parametrize("value", [":4096:8", ":16:8"])
@pytest.mark.parametrize("function", [enable_full_determinism, lambda seed: set_seed(seed, deterministic=True)])
def test_a_valid_cublas_setting_is_kept(function: Any, value: str) -> None:
    # GIVEN
    os.environ[CUBLAS] = value

    # WHEN
    function(3)

    # THEN
    assert os.environ[CUBLAS] == value
    environment: Any = seeds_in_force()["environment"]
    assert environment[CUBLAS] == value


def test_an_unsuitable_cublas_setting_is_replaced_with_a_warning() -> None:
    os.environ[CUBLAS] = ":0:0"

    with pytest.warns(RuntimeWarning, match=":0:0") as warnings:
        enable_full_determinism(3)

    assert os.environ[CUBLAS] == ":16:8"
    assert warnings[0].filename == __file__


def test_cuda_in_use_before_is_said() -> None:
    with (
        mock.patch.object(torch.cuda, "is_initialized", return_value=True),
        pytest.warns(RuntimeWarning, match="already in use"),
    ):
        enable_full_determinism(3)


def test_seeds_in_force_are_ready_for_json_and_name_the_hash_seed() -> None:
    # GIVEN
    assert seeds_in_force() == {}
    os.environ["PYTHONHASHSEED"] = "0"

    # WHEN
    enable_full_determinism(np.int64(5), warn_only=True)

    # THEN
    assert json.loads(json.dumps(seeds_in_force())) == {
        "seed": 5,
        "deterministic": True,
        "full_determinism": True,
        "warn_only": True,
        "environment": {
            CUBLAS: ":16:8",
            "FLASH_ATTENTION_DETERMINISTIC": "1",
            "HCCL_DETERMINISTIC": "1",
            "PYTHONHASHSEED": "0",
        },
    }


def test_reseeding_keeps_the_determinism_that_is_still_on() -> None:
    # GIVEN
    enable_full_determinism(3)
    environment = seeds_in_force()["environment"]

    # WHEN
    set_seed(4)

    # THEN
    assert torch.are_deterministic_algorithms_enabled()
    assert seeds_in_force()["seed"] == 4
    assert seeds_in_force()["deterministic"] is True
    assert seeds_in_force()["environment"] == environment


def test_what_seeds_in_force_returns_is_the_callers_own() -> None:
    enable_full_determinism(3)
    environment: Any = seeds_in_force()["environment"]

    environment.clear()

    assert seeds_in_force()["environment"] != {}


def test_an_accelerator_that_torch_does_not_seed_itself_is_seeded() -> None:
    # GIVEN an accelerator that is there, and one that is not
    present, absent = mock.Mock(), mock.Mock()
    present.is_available.return_value, absent.is_available.return_value = True, False

    # WHEN
    with mock.patch.object(torch, "hpu", present, create=True), mock.patch.object(torch, "mlu", absent, create=True):
        set_seed(3)

    # THEN
    present.manual_seed_all.assert_called_once_with(3)
    absent.manual_seed_all.assert_not_called()


def test_a_run_is_repeated_bit_for_bit_in_another_process() -> None:
    # GIVEN a training with dropout and shuffled data
    code = """
        import hashlib
        import torch
        from overflow_recorder.helpers.reproducibility import enable_full_determinism

        enable_full_determinism(11)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in torch.utils.data.DataLoader(torch.randn(32, 8), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        weights = torch.cat([parameter.flatten() for parameter in model.parameters()])
        print(hashlib.sha256(weights.detach().numpy().tobytes()).hexdigest())
    """

    # THEN
    assert output_of(code) == output_of(code)


def test_without_torch_random_and_numpy_are_seeded() -> None:
    # WHEN
    code = """
        import random, sys
        import numpy
        from overflow_recorder.helpers.reproducibility import enable_full_determinism, seeds_in_force, set_seed
        set_seed(3, deterministic=True)
        enable_full_determinism(3)
        print(random.random(), numpy.random.random(), seeds_in_force()["seed"], "torch" in sys.modules)
    """

    # THEN
    expected = (random.Random(3).random(), np.random.RandomState(3).random_sample(), 3, False)
    assert output_without_torch(code).split() == [str(value) for value in expected]


def test_importing_it_does_not_import_torch() -> None:
    code = "import sys; import overflow_recorder.helpers.reproducibility; print('torch' in sys.modules)"

    assert output_of(code) == "False\n"
