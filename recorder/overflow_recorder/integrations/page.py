"""The page of a run, written when its recorder closes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from overflow_recorder.callbacks import RecorderCallback
from overflow_recorder.faults import describe_error, raised_by_signal_handler, warn
from overflow_recorder.helpers.distributed import rank_and_world_size

if TYPE_CHECKING:
    import os

    from overflow_recorder.events import CloseEvent
    from overflow_recorder.trace_recorder import TraceRecorder


_PATIENCE: Final = 600.0  # seconds


class WritePage(RecorderCallback):
    """Write the trace as one page with pictures when the recorder closes, as ``overflow-analyze html`` does.

    Rank 0 writes it, with what the other ranks have recorded by then; a page that is there already is replaced. Another
    process does the work, so that nothing of the page's libraries comes into the training. Where it fails or takes ten
    minutes, that is one warning.

    Args:
        page: The file to write.

    Example:
        ``TraceRecorder(model, "run.parquet", callbacks=[WritePage("run.html")])``
    """

    def __init__(self, page: str | os.PathLike[str]) -> None:
        self.page = Path(page).absolute()

    def on_close(self, recorder: TraceRecorder, event: CloseEvent) -> None:
        """Write it."""
        if recorder.path is None or rank_and_world_size()[0] != 0:
            return
        command = ["html", str(recorder.path), "--output", str(self.page), "--overwrite"]
        try:
            done = subprocess.run(  # noqa: S603  our own command
                [sys.executable, "-m", "overflow_analyzer", *command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE,
                check=False,
            )
            failure = done.stderr.decode(errors="replace").strip() if done.returncode else ""
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            failure = describe_error(error)
        if failure:
            warn(f"the page {self.page} was not written ({failure}); overflow-analyze html writes it from the trace")


def with_page(html: str | os.PathLike[str] | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return a recorder's options with what writes its page, if one is asked for."""
    return options if html is None else {**options, "callbacks": [*options.get("callbacks", ()), WritePage(html)]}
