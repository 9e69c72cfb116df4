"""The recorders that are attached in this process: one a model, closed at its end, left alone in its children."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import weakref
from typing import TYPE_CHECKING, Protocol

from overflow_recorder.faults import warn

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from overflow_analyzer.format.run_info import HowEnded
    from overflow_recorder.recorder_arguments import RecorderArguments


class AttachedRecorder(Protocol):
    """What has to be known of a recorder."""

    model: nn.Module
    path: Path | None
    options: RecorderArguments

    @property
    def is_attached(self) -> bool:
        """Whether it is on its model."""

    def close(self, *, how: HowEnded = "closed", reason: str | None = None) -> None:
        """Let go of the model and complete the trace."""

    def abandon(self) -> None:
        """Be off without touching the trace."""


class AttachedRecorders:
    """The recorders that are attached in this process, not kept alive by being listed."""

    def __init__(self) -> None:
        self._attached: weakref.WeakSet[AttachedRecorder] = weakref.WeakSet()
        atexit.register(self._close_all)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._abandon_all)

    def make_way(self, recorder: AttachedRecorder) -> None:
        """Close a recorder that is on the same model at the very path that the one that starts is to overwrite."""
        if recorder.options.overwrite and recorder.path is not None:
            self._close_others(recorder, at=recorder.path)

    def replace(self, recorder: AttachedRecorder) -> None:
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

    def _close_others(self, recorder: AttachedRecorder, at: Path | None = None) -> None:
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


attached_recorders = AttachedRecorders()
