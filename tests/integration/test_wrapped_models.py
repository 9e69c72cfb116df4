"""Models in wrappers that change how they run: DistributedDataParallel and FSDP, by two real processes; DTensor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer import open_trace
from tests.recorder.subprocesses import finish, start

if TYPE_CHECKING:
    from overflow_analyzer.format.frames import Frame

WORKER = """
import json, sys, warnings
from datetime import timedelta
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from overflow_recorder import TraceRecorder

rank, folder = int(sys.argv[1]), sys.argv[2]
ROLES = ["weight", "buffer", "input", "output", "grad_input", "grad_output", "weight_grad", "optimizer_state"]
torch.set_num_threads(1)
store, minutes = f"file://{folder}/store", timedelta(minutes=2)
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=minutes)
mesh = init_device_mesh("cpu", (2,))

def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Sequential(nn.ReLU(), nn.Dropout(0.2)), nn.Linear(8, 2))

def ddp(model):
    return DistributedDataParallel(model, gradient_as_bucket_view=True)

def fsdp(model):
    fully_shard(model[3], mesh=mesh)
    return fully_shard(model, mesh=mesh)

def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor

def train(wrap, path):
    model = wrap(mlp())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    losses = []
    recorder = None
    if path is not None:
        recorder = TraceRecorder(model, path, every_n_batches=1, roles=ROLES, statistics="full").start()
    for step in range(10):
        loss = model(torch.randn(3, 4, requires_grad=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        if step < 9:
            optimizer.zero_grad()
    if recorder is not None:
        recorder.close()
    state = [value for one in optimizer.state.values() for value in one.values()]
    gradients = [parameter.grad for parameter in model.parameters()]
    tensors = [*losses, *state, *model.state_dict().values(), *gradients, torch.get_rng_state()]
    return [local(tensor).contiguous().reshape(-1).view(torch.uint8).tolist() for tensor in tensors]

results = {}
for name, wrap in (("ddp", ddp), ("fsdp", fsdp)):
    plain = train(wrap, None)
    recorded = train(wrap, f"{folder}/{name}")
    results[name] = plain == recorded and len(plain) > 40

shard = distribute_tensor(torch.arange(1.0, 9.0), mesh, [Shard(0)])
identity = nn.Identity()
with TraceRecorder(identity, f"{folder}/dtensor", every_n_batches=1):
    identity(shard)
print(json.dumps(results))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[dict[str, Any]]]:
    """The folder with the traces, and what each process found."""
    folder = tmp_path_factory.mktemp("processes")
    processes = [finish(process) for process in [start(WORKER, rank, folder) for rank in range(2)]]
    assert [process.returncode for process in processes] == [0, 0], processes[0].stderr + processes[1].stderr
    return folder, [json.loads(process.stdout) for process in processes]


def frames(folder: Any, name: str, rank: int) -> list[Frame]:
    return list(open_trace(folder / name).rank(rank).frames())


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_same_bits_in_every_process(name: str, runs: Any) -> None:
    assert [found[name] for found in runs[1]] == [True, True]


@pytest.mark.parametrize("rank", [0, 1])
def test_distributed_data_parallel(rank: int, runs: Any) -> None:
    # GIVEN
    found = frames(runs[0], "ddp", rank)

    # THEN its modules are there under the names that the wrapper gives them, and every role
    forwards = [frame.module_name for frame in found if frame.batch_number == 9 and frame.phase == "train"]
    assert forwards == [f"module{name}" for name in (".0", ".1", ".2.0", ".2.1", ".2", ".3", "")] + [""]
    assert next(frame.module_class for frame in found if frame.module_name == "") == "DistributedDataParallel"
    gradients = {frame.module_name for frame in found if frame.batch_number == 9 and frame.of_roles("weight_grad")}
    assert gradients == {"module.0", "module.1", "module.3"}
    assert max(frame.optimizer_step for frame in found) == 10


@pytest.mark.parametrize("rank", [0, 1])
def test_fully_sharded_data_parallel(rank: int, runs: Any) -> None:
    # GIVEN
    found = frames(runs[0], "fsdp", rank)
    batch = [frame for frame in found if frame.batch_number == 9 and frame.phase == "train"]

    # THEN
    assert [frame.module_name for frame in batch] == ["0", "1", "2.0", "2.1", "2", "3", ""]
    assert batch[-1].module_class == "FSDPSequential"
    rows = [one for frame in batch for one in frame.entries]
    assert all(one.abs_max is not None for one in rows if one.role in {"input", "output"})
    weights = {(frame.module_name, one.context): one for frame in batch for one in frame.of_roles("weight")}
    assert set(weights) == {(name, context) for name in "013" for context in ("weight", "bias")}
    # A wrapped module has given its weights back by the time its frame is made: what is seen is this rank's shard.
    assert weights["3", "weight"].note == "local shard of (2, 8)"
    assert weights["3", "weight"].abs_max is not None


def test_ranks_have_data_of_their_own_and_the_same_weights(runs: Any) -> None:
    first, second = (frames(runs[0], "ddp", rank)[0] for rank in range(2))
    assert first.of_roles("weight") == second.of_roles("weight")
    assert first.of_roles("input") != second.of_roles("input")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_distributed_tensor_is_its_local_shard(rank: int, runs: Any) -> None:
    (frame,) = frames(runs[0], "dtensor", rank)
    row = frame.entries[0]
    assert (row.abs_min, row.abs_max, row.shape) == (1.0 + 4 * rank, 4.0 + 4 * rank, (4,))
    assert row.note == "local shard of (8,)"
