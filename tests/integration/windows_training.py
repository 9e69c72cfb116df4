"""A training that ``tests.integration.windows`` runs: ``TRACE OPTIONS BATCHES [ENDING]``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
from torch import nn

from overflow_recorder import TraceRecorder
from overflow_recorder.storage import storage as storage_room

BATCHES_AGAIN = 2


def train(path: str, options: dict[str, Any], batches: int, ending: str = "") -> None:
    """Record so many batches and end in some way."""
    storage_room._WINDOW_ROWS, storage_room._STAGING_ROWS = 128, 0  # type: ignore[misc]  # many parts
    storage_room._WAIT_SECONDS, storage_room._WAIT_SHARE = 60.0, 1e9  # type: ignore[misc]  # a busy machine is no fault
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    recorder = TraceRecorder(model, path, **options)
    with recorder:
        for batch in range(batches):
            model(torch.full((2, 4), float(batch)))
        if ending == "os._exit":
            os._exit(3)
        if ending == "lives":
            print("ready", flush=True)
            time.sleep(600)
        if ending == "inf":
            model(torch.full((2, 4), float("inf")))
    if ending == "again":
        with recorder:
            for batch in range(BATCHES_AGAIN):
                model(torch.full((2, 4), float(batch)))


if __name__ == "__main__":
    train(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
