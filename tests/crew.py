"""Processes that record and die, many of them: forked from one that has imported torch and done nothing else."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

_ROOT = Path(__file__).parents[1]
PATIENCE = 120.0
"""Seconds after which a process that must end has hung."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    status: int
    """As ``subprocess.Popen.returncode``: negative for a signal."""
    output: str
    """What it wrote to stdout and stderr."""


class Member:
    """A running process."""

    def __init__(self, crew: Crew, pid: int, output: Path) -> None:
        self._crew = crew
        self.pid = pid
        self._output = output

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal; one that has ended already is not reaped before ``wait``, so its number is its own."""
        os.kill(self.pid, number)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is true; a process that ends before fails the test with what it wrote."""
        until = time.monotonic() + PATIENCE
        while not holds():
            if self._crew.ask(poll=self.pid)["ended"] and not holds():
                raise AssertionError(f"it ended too early: {self.output}")
            assert time.monotonic() < until, f"it hangs: {self.output}"
            time.sleep(0.002)

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._output.read_text(errors="replace")

    def wait(self) -> Ended:
        """Wait for its end; one that hangs is killed and fails the test."""
        status = self._crew.ask(wait=self.pid)["status"]
        assert status is not None, f"it hung: {self.output}"
        return Ended(status, self.output)


class Crew:
    """Starts processes by forking; a context manager that leaves none behind.

    Args:
        preloaded: Modules that the processes need not import.
    """

    def __init__(self, *preloaded: str) -> None:
        self._preloaded = preloaded

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory()
        self._started = 0
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])}
        self._server = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.crew", *self._preloaded],
            cwd=_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE)
        assert self._server.stdout is not None
        self._server.stdout.close()
        self._directory.cleanup()

    def ask(self, **request: Any) -> Any:
        """Ask the forking process for something."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(request), file=self._server.stdin, flush=True)
        return json.loads(self._server.stdout.readline())

    def start(self, function: Callable[..., object], *arguments: object, **environment: str) -> Member:
        """Start a process that calls a module's function with arguments that JSON can hold."""
        self._started += 1
        output = Path(self._directory.name) / str(self._started)
        output.touch()
        name = f"{function.__module__}:{function.__qualname__}"
        texts = [str(one) if isinstance(one, Path) else one for one in arguments]
        pid = self.ask(call=name, arguments=texts, environment=environment, output=str(output))["pid"]
        return Member(self, pid, output)

    def run(self, function: Callable[..., object], *arguments: object, **environment: str) -> Ended:
        """Start a process and wait for its end."""
        return self.start(function, *arguments, **environment).wait()


def _serve() -> Any:
    """Fork on request; what returns, returns in a child, with what it is to call."""
    living: dict[int, int | None] = {}
    try:
        for line in sys.stdin:
            request = json.loads(line)
            if "call" in request:
                pid = os.fork()
                if not pid:
                    return _prepared(request)
                living[pid] = None
                answer: dict[str, Any] = {"pid": pid}
            elif "poll" in request:
                answer = {"ended": bool(os.waitid(os.P_PID, request["poll"], os.WEXITED | os.WNOHANG | os.WNOWAIT))}
            else:
                answer = {"status": _wait(request["wait"])}
                del living[request["wait"]]
            print(json.dumps(answer), flush=True)
    except BaseException:
        for pid in living:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        raise
    for pid in living:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return None


def _wait(pid: int) -> int | None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _prepared(request: dict[str, Any]) -> Callable[[], object]:
    output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, instead in ((0, nothing), (1, output), (2, output)):
        os.dup2(instead, descriptor)
    # Tests that run under nohup or behind a shell's & ignore these, and children inherit that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(request["environment"])
    module, _, name = request["call"].partition(":")
    function = getattr(importlib.import_module(module), name)
    return lambda: function(*request["arguments"])


if __name__ == "__main__":
    import torch

    import overflow_recorder.trace_recorder  # noqa: F401  the children need not import it

    for preloaded in sys.argv[1:]:
        importlib.import_module(preloaded)
    torch.set_num_threads(1)
    call = _serve()
    if call is not None:
        call()
