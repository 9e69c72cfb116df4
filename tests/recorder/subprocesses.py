"""Runs Python code in processes of its own, with torch or without."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 180
"""A process that takes longer hangs."""

_BLOCK_TORCH = """
import sys

class _NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("torch is not installed here", name=name)

sys.meta_path.insert(0, _NoTorch())
"""


def start(code: str, *arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start a process that runs the code with these arguments, warnings being errors."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for a process; one that hangs is killed and fails the test."""
    try:
        stdout, stderr = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def output_of(code: str, *arguments: object, cwd: Path | None = None) -> str:
    """Return what the code prints; its failure fails the test."""
    done = finish(start(code, *arguments, cwd=cwd))
    assert done.returncode == 0, done.stderr
    return done.stdout


def output_without_torch(code: str) -> str:
    """Return what the code prints where torch cannot be imported."""
    return output_of(_BLOCK_TORCH + textwrap.dedent(code))
