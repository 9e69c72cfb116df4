"""Running the command line in tests."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import subprocess
import sys
from typing import NamedTuple

from overflow_analyzer.cli import main


class Ran(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


def analyze(*arguments: object) -> Ran:
    """Run ``overflow-analyze`` in this process."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", newline=""), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    out.seek(0)
    return Ran(code, out.read(), err.getvalue())


def analyze_process(*arguments: object, **environment: str) -> Ran:
    """Run ``overflow-analyze`` as a process of its own; a variable set to "" is removed."""
    variables = {name: value for name, value in {**os.environ, **environment}.items() if value}
    done = subprocess.run(
        [sys.executable, "-m", "overflow_analyzer", *map(str, arguments)],
        capture_output=True,
        env=variables,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def analyze_terminal(*arguments: object, columns: int = 80, **environment: str) -> Ran:
    """Run ``overflow-analyze`` with a terminal of so many columns as its stdout."""
    controller, terminal = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(
        [sys.executable, "-m", "overflow_analyzer", *map(str, arguments)],
        stdout=terminal,
        stderr=subprocess.PIPE,
        env={**plain, "COLUMNS": str(columns), "TERM": "xterm", **environment},
    )
    os.close(terminal)
    shown = b""
    while piece := _read(controller):
        shown += piece
    os.close(controller)
    _, err = process.communicate()
    return Ran(process.returncode, shown.decode().replace("\r\n", "\n"), err.decode())


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # Linux says so when the other side is closed
        return b""
