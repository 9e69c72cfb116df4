"""Two ranks of which one alone detects: a module that communicates is not run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import contextlib, io, json, sys
import torch
from torch import distributed, nn
from overflow_recorder import NonFiniteError, RecorderCallback, TraceRecorder
from overflow_recorder.replay import find_operation

rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)


class Reduced(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Identity()

    def forward(self, x):
        total = x.clone()
        distributed.all_reduce(total)
        return self.last(x * 1e30 * (1e30 if rank else 1.0))


class Find(RecorderCallback):
    reason = None

    def on_nonfinite(self, recorder, event):
        self.reason = find_operation(recorder.model, event.frame).reason


find = Find()
model = Reduced()
with contextlib.suppress(NonFiniteError), contextlib.redirect_stdout(io.StringIO()):
    with TraceRecorder(model, None, callbacks=[find]):
        model(torch.ones(2))
# A collective that one rank had sent twice would be this one's partner on the other rank.
after = torch.tensor([10.0 + rank])
distributed.all_reduce(after)
distributed.destroy_process_group()
print(json.dumps([find.reason, after.item()]))
"""


def test_a_module_that_communicates_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    # GIVEN two ranks; rank 1 alone detects
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT, encoding="utf-8")
    store = (tmp_path / "store").as_uri()
    # WHEN
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), store], stdout=subprocess.PIPE, text=True, env={**os.environ}
        )
        for rank in range(2)
    ]
    try:
        found = [json.loads(rank.communicate(timeout=120)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    # THEN both go on with the same collective
    assert found == [[None, 21.0], ["it communicates with other ranks, which do not run it a second time", 21.0]]
