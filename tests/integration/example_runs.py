"""The examples, each run once however many tests look at it: some take half a minute."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

__all__ = ["EXAMPLES", "ExampleRun", "run_again", "run_example"]

EXAMPLES = Path(__file__).parents[2] / "examples"
_SECONDS = 900


class ExampleRun(NamedTuple):
    """What a run of an example came to."""

    directory: Path
    """Where it ran, with nothing but its trace in it."""
    code: int
    out: str
    err: str

    @property
    def trace(self) -> Path:
        """The one trace that it left."""
        (path,) = self.directory.iterdir()
        return path


@functools.cache
def run_example(name: str) -> ExampleRun:
    """Run ``examples/NAME.py`` in an empty directory, without arguments."""
    directory = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return run_again(name, directory)


def run_again(name: str, directory: Path, *arguments: str) -> ExampleRun:
    """Run it in a directory that may have an earlier run's trace."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    return ExampleRun(directory, done.returncode, done.stdout, done.stderr)
