"""Train every kind of model in every setting, with and without the recorder: is any bit different?

``python -m tests.verification.changes_nothing [--part I/N] [--steps N]`` prints a table, model by setting: "identical",
or what differs first; the exit status is 1 where anything does. Compared are losses, weights, buffers, gradients, the
optimizer's state, the loss scale and all random states. ``test_changes_nothing.py`` does it in fewer
steps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from tabulate import tabulate
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers.utils import logging

from overflow_recorder import RecorderWarning
from tests.integration.changes import first_change
from tests.integration.trainings import MODELS, SETTINGS
from tests.verification.zoo import part_of

if TYPE_CHECKING:
    from torch import nn

_PROCESSES = 2
_DDP = "two processes, DDP"


def _outcome(model: str, setting: str, steps: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        if setting == _DDP:
            return _by_processes(model, steps, Path(folder))
        return first_change(Path(folder) / "run", model, SETTINGS[setting], steps) or "identical"


def _by_processes(model: str, steps: int, folder: Path) -> str:
    torch.multiprocessing.spawn(_process, (model, steps, folder), nprocs=_PROCESSES)  # type: ignore[attr-defined, no-untyped-call]  # torch declares neither
    found = [(folder / f"rank {rank}").read_text() for rank in range(_PROCESSES)]
    return next((f"rank {rank}: {one}" for rank, one in enumerate(found) if one != "identical"), "identical")


def _process(rank: int, model: str, steps: int, folder: Path) -> None:
    _prepare()
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=_PROCESSES)
    found = first_change(folder / "run", model, SETTINGS["float32"], steps, _distributed) or "identical"
    (folder / f"rank {rank}").write_text(found)
    distributed.destroy_process_group()


def _distributed(model: nn.Module) -> nn.Module:
    torch.manual_seed(distributed.get_rank())  # each has data of its own
    return DistributedDataParallel(model, find_unused_parameters=True)  # some experts are in no batch


def _prepare() -> None:
    """What torch and transformers warn of is their own affair; what the recorder warns of is a failure."""
    warnings.simplefilter("ignore")
    warnings.simplefilter("error", RecorderWarning)
    logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.verification.changes_nothing", description=__doc__)
    parser.add_argument("--part", metavar="I/N", type=part_of, default=(1, 1), help="the I-th of N parts")
    parser.add_argument("--steps", type=int, default=50, help="of the optimizer (50)")
    arguments = parser.parse_args()
    _prepare()
    part, parts = arguments.part
    settings = [*SETTINGS, _DDP][part - 1 :: parts]
    rows = [[setting, *(_outcome(model, setting, arguments.steps) for model in MODELS)] for setting in settings]
    print(tabulate(rows, [f"{arguments.steps} steps", *MODELS], tablefmt="github"))
    return int(any(cell != "identical" for row in rows for cell in row[1:]))


if __name__ == "__main__":
    sys.exit(main())
