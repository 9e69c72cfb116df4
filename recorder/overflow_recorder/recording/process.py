"""What a process knows of itself: who is recording in it, and what RunInfo says of it."""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import socket
import sys
import time
import uuid
import weakref
from importlib import metadata
from typing import TYPE_CHECKING

import torch

from overflow_analyzer.format.run_info import RunInfo
from overflow_recorder.faults import warn
from overflow_recorder.helpers.distributed import rank_and_world_size
from overflow_recorder.helpers.reproducibility import seeds_in_force

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from overflow_recorder.recorder_arguments import RecorderArguments
    from overflow_recorder.trace_recorder import TraceRecorder


def describe_run(model: nn.Module, options: RecorderArguments) -> RunInfo:
    """Return what is known of this run at its start."""
    rank, world_size = rank_and_world_size()
    return RunInfo(
        run_id=_run_id(),
        rank=rank,
        world_size=world_size,
        model_class=type(model).__name__,
        started_ns=time.time_ns(),
        torch_version=torch.__version__,
        python_version=platform.python_version(),
        recorder_version=_version(),
        hostname=socket.gethostname(),
        process_id=os.getpid(),
        command=tuple(sys.argv),
        options=options.as_options(),
        seeds=seeds_in_force() or None,
    )


def _run_id() -> str:
    """Return the launcher's name for the run, the same on every rank, or where there is none a new one."""
    for variables in (("TORCHELASTIC_RUN_ID",), ("SLURM_JOB_ID", "SLURM_STEP_ID")):
        values = [os.environ.get(name, "") for name in variables]
        if all(values) and values != ["none"]:  # what torchrun says where nobody named the run
            return ".".join(values)
    return uuid.uuid4().hex


def _version() -> str:
    try:
        return metadata.version("overflow-trace")
    except metadata.PackageNotFoundError:
        return ""


class _Recorders:
    """The recorders that are attached in this process, not kept alive by being listed."""

    def __init__(self) -> None:
        self._attached: weakref.WeakSet[TraceRecorder] = weakref.WeakSet()
        atexit.register(self._close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._abandon_all)

    def make_way(self, recorder: TraceRecorder) -> None:
        """Close a recorder that is on the same model at the very path that the one that starts is to overwrite."""
        if recorder.options.overwrite and recorder.path is not None:
            self._close_others(recorder, at=recorder.path)

    def replace(self, recorder: TraceRecorder) -> None:
        """List a recorder that starts; one that is on the same model already is closed, so that no hook is doubled.

        Raises:
            Exception: What a callback of that one raised; then the new one is abandoned.
        """
        try:
            self._close_others(recorder)
        except BaseException:
            recorder.abandon()
            raise
        self._attached.add(recorder)

    def _close_others(self, recorder: TraceRecorder, at: Path | None = None) -> None:
        for other in list(self._attached):
            same = other.model is recorder.model and other is not recorder and other.is_attached
            if same and (at is None or other.path == at):
                warn("another recorder is on this model: it is closed, its trace complete, and the new one takes over")
                other.close(reason="another recorder was attached to the model")

    def _close_all(self) -> None:
        """At the interpreter's end, for recorders that nobody closed; what one's callbacks raise stops no other."""
        error = getattr(sys, "last_value", None)
        with contextlib.ExitStack() as closing:
            for recorder in list(self._attached):
                if error is None:
                    closing.callback(recorder.close)
                else:
                    closing.callback(recorder.close, how="exception", reason=f"{type(error).__name__}: {error}"[:500])

    def _abandon_all(self) -> None:
        """In a forked child: the trace is the parent's."""
        for recorder in list(self._attached):
            with contextlib.suppress(Exception):  # what one's model says stops no other
                recorder.abandon()
        self._attached.clear()


recorders_of_this_process = _Recorders()
