"""Names of modules inside wrappers: ``module.``, ``_orig_mod.`` say how a model is run, not what it is."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


WRAPPER_COMPONENTS: Final = frozenset(
    {
        "module",  # DataParallel, DistributedDataParallel, DeepSpeed, AveragedModel
        "_orig_mod",  # torch.compile
        "_fsdp_wrapped_module",
        "_fpw_module",  # FSDP of older versions
        "_checkpoint_wrapped_module",
        "_forward_module",  # Lightning
        "_original_module",
    }
)
"""Components of a module's name that a wrapper puts there."""


def strip_wrappers(name: str) -> str:
    """Return a module's name without the components that wrappers put into it, anywhere in it."""
    if "module" not in name and "_orig_mod" not in name:
        return name
    return ".".join(part for part in name.split(".") if part not in WRAPPER_COMPONENTS)


def wrapper_chains(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Group the names of one model by what is left without wrappers.

    Returns:
        Stripped name -> the names of one module and the wrappers around it, outermost first: each is the one before
        with wrapper components added at its end. A stripped name that distinct modules share (``fc`` and ``module.fc``
        in one model) is not in it: there the component is the model's own.
    """
    groups = defaultdict(list)
    for name in names:
        groups[strip_wrappers(name)].append(name)
    chains = {stripped: tuple(sorted(group, key=len)) for stripped, group in groups.items()}
    return {stripped: chain for stripped, chain in chains.items() if _is_chain(chain)}


def _is_chain(chain: tuple[str, ...]) -> bool:
    return all(
        inner.startswith(f"{outer}." if outer else "") and not strip_wrappers(inner[len(outer) :].lstrip("."))
        for outer, inner in itertools.pairwise(chain)
    )
