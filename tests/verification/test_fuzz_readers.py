"""Any file is answered or refused: the first traces of ``fuzz_readers.py``, which goes on for hours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.verification.fuzzing import COMMANDS, Forger, complaint, write_originals

FUZZER = Path(__file__).parent / "fuzz_readers.py"


@pytest.mark.slow
def test_forged_traces_are_answered_or_refused(tmp_path: Path) -> None:
    # GIVEN forged traces, within an address space and a time that end WHEN every command is asked about each
    arguments = ["--seed", "1", "--traces", "60", "--minutes", "10", "--keep", str(tmp_path)]
    done = subprocess.run([sys.executable, str(FUZZER), *arguments], capture_output=True, text=True, check=False)

    # THEN there is no complaint
    assert done.returncode == 0, done.stdout + done.stderr
    assert "60 traces" in done.stdout


def test_the_traces_that_are_damaged_are_whole_before(tmp_path: Path) -> None:
    # GIVEN the originals WHEN they are asked about, THEN all of them are answered: what is refused later, damage did
    for original in write_originals(tmp_path):
        for command in COMMANDS:
            assert complaint(command, original, tmp_path) is None


def test_a_seed_always_makes_the_same_damage(tmp_path: Path) -> None:
    originals = write_originals(tmp_path / "originals")
    for seed in range(12):
        first, second = (
            contents(Forger(seed).forge(originals, made(tmp_path / f"{seed}-{turn}")).parent) for turn in range(2)
        )
        assert first == second


def made(path: Path) -> Path:
    path.mkdir()
    return path


def contents(directory: Path) -> dict[Path, bytes]:
    files = (one for one in sorted(directory.rglob("*")) if one.is_file())
    return {one.relative_to(directory): one.read_bytes() for one in files}


def test_a_command_that_fails_is_complained_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a reader with a fault
    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("overflow_analyzer.trace.opening.open_trace", broken)

    # THEN the fuzzer would notice
    assert "ZeroDivisionError" in (complaint(("info", "{trace}"), tmp_path, tmp_path) or "")


def test_a_trace_that_ends_its_process_is_complained_about_with_its_seed(tmp_path: Path) -> None:
    # GIVEN readers that abort at one trace
    script = """if True:
        import os, sys
        from tests.verification import fuzz_readers
        from tests.verification.fuzzing import Forger
        def forge(forger, originals, destination, forge=Forger.forge):
            if forger.seed == 12:
                os.abort()
            return forge(forger, originals, destination)
        Forger.forge = forge
        fuzz_readers.complaint = lambda *_: None
        sys.exit(fuzz_readers.main())
    """
    arguments = ["--seed", "10", "--traces", "5", "--keep", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)

    # THEN that is one complaint, and the traces behind it are tried too
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "seed 12: died of SIGABRT"), done.stderr
    assert "5 traces from seed 10, 1 complaints" in done.stdout
