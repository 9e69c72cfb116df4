"""The lines that replay a run do that and nothing else."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.render.replay import replay_command, seed_call
from tests.traces import RUN


@pytest.mark.parametrize(
    ("seeds", "call"),
    [
        (None, None),
        ({}, None),
        ({"seed": 3}, "set_seed(3)"),
        ({"seed": 3, "deterministic": True}, "set_seed(3, deterministic=True)"),
        ({"seed": 3, "deterministic": True, "full_determinism": True}, "enable_full_determinism(3)"),
        ({"seed": 3, "full_determinism": True, "warn_only": True}, "enable_full_determinism(3, warn_only=True)"),
        ({"seed": "3); import os; os.remove('x'"}, None),
        ({"seed": True}, None),
        ({"seed": 3, "deterministic": "True); import os"}, "set_seed(3)"),
    ],
)
def test_the_call_that_sets_the_seeds(seeds: dict[str, Any] | None, call: str | None) -> None:
    assert seed_call(replace(RUN, seeds=seeds)) == call


def test_the_command_with_what_its_seeds_need() -> None:
    seeds = {"seed": 3, "environment": {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "bad name": "x", "X": 5}}
    run = replace(RUN, command=("train.py", "--name", "a b"), seeds=seeds)
    assert replay_command(run) == "CUBLAS_WORKSPACE_CONFIG=:16:8 python train.py --name 'a b'"


def test_an_unknown_command_is_not_made_up() -> None:
    assert replay_command(RUN) is None


@given(st.lists(st.text("ab $`'\"\\;|&<>(){}!*?~#=-", max_size=8), min_size=1, max_size=4))
def test_a_shell_takes_each_word_as_it_was(words: list[str]) -> None:
    assert shlex.split(replay_command(replace(RUN, command=tuple(words))) or "") == ["python", *words]


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell reads the line")
def test_a_real_shell_starts_nothing_else() -> None:
    # GIVEN words that would start something in a shell
    words = ("$(echo no)", "`echo no`", "; echo no", "a\nb")
    line = replay_command(replace(RUN, command=words)) or ""

    # WHEN a shell runs the line with another program in Python's place
    shown = subprocess.run(
        ["sh", "-c", line.replace("python", "printf '%s,'", 1)], capture_output=True, text=True, check=True
    ).stdout

    # THEN it has got the words, the line break escaped
    assert shown == "$(echo no),`echo no`,; echo no,a\\nb,"
