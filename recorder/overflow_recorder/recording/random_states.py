"""Random states that are afterwards what they were, whatever ran in between."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def random_states_kept(generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """Put every random state back afterwards: torch's on each device, numpy's, Python's, and the user's generators."""
    own = [(generator, generator.get_state()) for generator in generators]
    python, numpy, host = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002  the global one
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(host)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)
        for generator, state in own:
            generator.set_state(state)
