"""Runs commands one after the other in forks of one process, which imports the large libraries once for all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECONDS = 300

# torch._dynamo: an optimizer's first step imports it. Whether the recorder comes before torch or, as here, behind it is
# another test's concern.
_FORK = """
import atexit, json, os, runpy, sys
import accelerate, lightning, torch, torch._dynamo
from transformers import BertModel, GPT2LMHeadModel, Trainer
import overflow_analyzer.cli, overflow_recorder.launch.cli

def run(program, *arguments):
    if program == "python":
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return 0
    package = {"overflow-record": overflow_recorder.launch, "overflow-analyze": overflow_analyzer}[program]
    return package.cli.main(arguments)

ends = []
for number, command in enumerate(json.loads(sys.argv[1])):
    outputs = [os.path.join(sys.argv[2], f"{number}-{name}") for name in ("stdout", "stderr")]
    child = os.fork()
    if not child:
        for descriptor, path in enumerate(outputs, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
        os.chdir(command["directory"])
        os.environ.update(command["variables"])
        code = run(*command["line"])
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)  # tearing so many modules down takes longer than the command
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    ends.append([code, *(open(path, encoding="utf-8").read() for path in outputs)])
print(json.dumps(ends))
"""


@dataclass
class Command:
    """What stands on a command line: ``python FILE``, ``overflow-record ...`` or ``overflow-analyze ...``."""

    line: Sequence[str]
    directory: str
    variables: dict[str, str] = field(default_factory=dict)


@dataclass
class Ended:
    """How a command ended."""

    code: int
    stdout: str
    stderr: str


def run_all(commands: Sequence[Command], outputs: Path) -> list[Ended]:
    """Run commands in order.

    Args:
        commands: What is to be run.
        outputs: A directory for what they print.
    """
    plan = json.dumps([asdict(command) for command in commands])
    line = [sys.executable, "-c", _FORK, plan, str(outputs)]
    done = subprocess.run(line, check=True, timeout=SECONDS, stdout=subprocess.PIPE, text=True)
    return [Ended(*end) for end in json.loads(done.stdout.splitlines()[-1])]
