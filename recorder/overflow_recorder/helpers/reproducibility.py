"""Seeds and deterministic algorithms, so that a run can be repeated."""

from __future__ import annotations

import importlib
import operator
import os
import random
import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, SupportsIndex

if TYPE_CHECKING:
    from types import ModuleType


_SEED_LIMIT = 2**32
"""numpy's global generator takes no larger seed."""

_CUBLAS_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_VALUES = (":16:8", ":4096:8")
"""The two settings with which cuBLAS is deterministic; the first is also good for recurrent networks."""

_FULL_DETERMINISM_ENVIRONMENT = {
    "FLASH_ATTENTION_DETERMINISTIC": "1",  # transformers' flash-attention backward
    "HCCL_DETERMINISTIC": "1",  # collectives of Ascend NPUs
}

# torch.manual_seed covers cuda, mps, xpu and the registered custom device; these may be there beside them.
_OTHER_ACCELERATORS = ("xpu", "mtia", "npu", "mlu", "musa", "hpu")


@dataclass(frozen=True)
class _Seeds:
    """What was last set in this process."""

    seed: int
    deterministic: bool = False
    full_determinism: bool = False
    warn_only: bool = False
    environment: dict[str, str] = field(default_factory=dict)


_in_force: _Seeds | None = None


def set_seed(seed: SupportsIndex, deterministic: bool = False) -> None:
    """Seed ``random``, numpy and torch (CPU and every accelerator), each where it is installed.

    Nothing is reseeded unless the seed is valid. torch is imported if it is installed, since what is imported later
    would start from another state.

    Args:
        seed: An integer of any integral type, ``0 <= seed < 2**32`` (numpy's range).
        deterministic: Also make torch use deterministic algorithms; an operation that has none then raises
            RuntimeError. ``CUBLAS_WORKSPACE_CONFIG`` is set if it has no valid value, because without it every CUDA
            matrix product would raise. False leaves the algorithms as they are: it does not switch them back.

    Raises:
        TypeError: The seed is not integral; a bool is refused too (``set_seed(True)`` is a slip).
        ValueError: The seed is out of range.

    Example:
        ``set_seed(3)``
    """
    global _in_force  # noqa: PLW0603 - seeds are the state of the process, as random's own are
    number = _checked_seed(seed)
    torch = _seed_generators(number)
    _in_force = replace(_in_force or _Seeds(number), seed=number)
    if deterministic:
        environment = {**_in_force.environment, **_set_environment({}, torch)}
        if torch is not None:
            torch.use_deterministic_algorithms(mode=True)
        _in_force = replace(_in_force, deterministic=True, warn_only=False, environment=environment)


def enable_full_determinism(seed: SupportsIndex, warn_only: bool = False) -> None:
    """Seed everything and make torch deterministic, as PyTorch's notes on reproducibility ask for.

    Beyond ``set_seed``: deterministic algorithms, cuDNN deterministic and without benchmarking, uninitialised memory
    filled, and the environment variables these need (``CUBLAS_WORKSPACE_CONFIG``, whose valid value is kept;
    ``FLASH_ATTENTION_DETERMINISTIC``; ``HCCL_DETERMINISTIC``). Call it before the first CUDA operation.

    These can still differ: other hardware, versions of torch or numbers of threads and processes; the order of
    sets of strings (start Python with ``PYTHONHASHSEED=0``); libraries with generators of their own.

    Args:
        seed: As for ``set_seed``.
        warn_only: Operations without a deterministic algorithm warn instead of raising RuntimeError; they then remain
            nondeterministic.

    Raises:
        TypeError: As ``set_seed``.
        ValueError: As ``set_seed``.

    Warns:
        RuntimeWarning: An unsuitable ``CUBLAS_WORKSPACE_CONFIG`` was replaced, or CUDA was already in use, so that
            cuBLAS may not notice the variable any more.

    Example:
        ``enable_full_determinism(3)``
    """
    global _in_force  # noqa: PLW0603 - as in set_seed
    set_seed(seed)
    torch = _optional_module("torch")
    environment = _set_environment(_FULL_DETERMINISM_ENVIRONMENT, torch)
    if torch is not None:
        torch.use_deterministic_algorithms(mode=True, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    _in_force = _Seeds(
        operator.index(seed), deterministic=True, full_determinism=True, warn_only=warn_only, environment=environment
    )


def seeds_in_force() -> dict[str, object]:
    """Return what ``set_seed`` and ``enable_full_determinism`` last set in this process, ready for JSON.

    Returns:
        Empty if neither was called, else ``seed`` (int), ``deterministic`` (bool: deterministic algorithms were asked
        for, by either function), ``full_determinism`` (bool: by ``enable_full_determinism``), ``warn_only`` (bool) and
        ``environment`` (dict of str: the variables that were set or kept, with ``PYTHONHASHSEED`` where there is one).
        What was done behind these functions (``torch.manual_seed`` after them) is not seen.

    Example:
        ``seeds_in_force()["seed"]``
    """
    return {} if _in_force is None else asdict(_in_force)


def _checked_seed(seed: SupportsIndex) -> int:
    if isinstance(seed, bool):
        raise TypeError(f"the seed must be an integer, got the bool {seed!r}")
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"the seed must be an integer, got {seed!r} ({type(seed).__name__})") from None
    if not 0 <= number < _SEED_LIMIT:
        raise ValueError(f"the seed must be in 0 <= seed < 2**32, got {number}")
    return number


def _optional_module(name: str) -> ModuleType | None:
    """Import a module; None where it cannot be imported, since then nothing in this process can draw from it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _seed_generators(seed: int) -> Any:
    """Seed what there is, after everything that can fail; return torch, or None where it is not installed."""
    numpy, torch = _optional_module("numpy"), _optional_module("torch")
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
        for name in _OTHER_ACCELERATORS:
            accelerator: Any = getattr(torch, name, None)
            if hasattr(accelerator, "manual_seed_all") and accelerator.is_available():
                accelerator.manual_seed_all(seed)
    return torch


def _set_environment(wanted: dict[str, str], torch: Any) -> dict[str, str]:
    """Set the variables, and a valid cuBLAS one where there is none; return all that matter with their values."""
    cublas = os.environ.get(_CUBLAS_VARIABLE)
    if cublas not in _CUBLAS_VALUES:
        os.environ[_CUBLAS_VARIABLE] = _CUBLAS_VALUES[0]
        if cublas is not None:
            message = f"{_CUBLAS_VARIABLE}={cublas!r} is not deterministic; it is now {_CUBLAS_VALUES[0]!r}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        if torch is not None and torch.cuda.is_initialized():
            message = f"CUDA was already in use when {_CUBLAS_VARIABLE} was set: matrix products may not notice it"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
    os.environ.update(wanted)
    names = (_CUBLAS_VARIABLE, *wanted, "PYTHONHASHSEED")
    return {name: os.environ[name] for name in names if name in os.environ}
