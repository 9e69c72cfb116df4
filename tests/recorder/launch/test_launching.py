"""A launched program cannot tell that it was: everything it can see and show is compared with Python's own start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import zipfile
from typing import TYPE_CHECKING

import pytest

from overflow_recorder.launch.launching import CannotStartError, run_module, run_script

if TYPE_CHECKING:
    from pathlib import Path

LAUNCH = """
import sys
from overflow_recorder.launch.launching import run_module, run_script
if sys.argv[1] == "-m":
    run_module(sys.argv[2], sys.argv[3:])
else:
    run_script(sys.argv[1], sys.argv[2:])
"""

PROBE = """
'''The doc.'''
import json, sys, warnings
known: int = 1
main = sys.modules["__main__"]
names = ["__name__", "__file__", "__doc__", "__package__", "__annotations__"]
spec = globals()["__spec__"]
print(json.dumps({
    **{name: str(globals().get(name, "missing")) for name in names},
    "argv": sys.argv, "path": sys.path[0], "is main": vars(main) is globals(),
    "spec": spec and [spec.name, spec.origin, spec.parent], "builtins": str(type(__builtins__)),
    "loader": type(__loader__).__name__, "depth": len(__import__("inspect").stack()) > 0,
    "code": sys._getframe().f_code.co_filename,
}))
"""


def _python(
    *arguments: str, cwd: Path, options: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *options, *arguments]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def _both(
    *arguments: str, cwd: Path, options: tuple[str, ...] = ()
) -> tuple[subprocess.CompletedProcess[str], subprocess.CompletedProcess[str]]:
    """The same command line, run by Python and by us."""
    return (
        _python(*arguments, cwd=cwd, options=options),
        _python("-c", LAUNCH, *arguments, cwd=cwd, options=options),
    )


def _write(path: Path, code: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code), encoding="utf-8")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The probe in every form that Python can run."""
    for name in ("probe.py", "sub/probe.py", "directory/__main__.py", "package/__main__.py", "package/module.py"):
        _write(tmp_path / name, PROBE)
    _write(tmp_path / "package/__init__.py", "import sys; imported_with = list(sys.argv)")
    (tmp_path / "link.py").symlink_to("sub/probe.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", PROBE)
    return tmp_path


@pytest.mark.parametrize(
    "program",
    [
        ("probe.py",),
        ("sub/probe.py",),
        ("./sub/../probe.py",),
        ("./directory/",),
        ("link.py",),
        ("directory",),
        ("archive.zip",),
        ("-m", "package"),
        ("-m", "package.module"),
    ],
    ids=" ".join,
)
def test_a_program_sees_what_it_sees_without_us(programs: Path, program: tuple[str, ...]) -> None:
    # WHEN
    plain, launched = _both(*program, "--lr", "1", "-m", "x", cwd=programs)

    # THEN
    assert plain.stdout, plain.stderr
    assert launched.stdout == plain.stdout
    assert (launched.returncode, launched.stderr) == (0, "")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="-P came with 3.11")
def test_a_safe_path_stays_safe(programs: Path) -> None:
    plain, launched = _both("sub/probe.py", cwd=programs, options=("-P",))

    assert plain.stdout
    assert launched.stdout == plain.stdout


ENDINGS = {
    "code": "import sys; print('out'); sys.exit(3)",
    "text": "import sys; sys.exit('the message')",
    "immediately": "import os; print('out', flush=True); os._exit(7)",
    "exception": """
        def inner():
            raise ValueError("what went wrong")
        def outer():
            try:
                inner()
            except ValueError as error:
                raise RuntimeError("and then") from error
        outer()
    """,
    "syntax": "x = 1\nif x print(x)\n",
    "interrupt": "raise KeyboardInterrupt",
    "terminate": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "own hook": """
        import sys, traceback
        sys.excepthook = lambda *what: print("mine", *traceback.format_exception(*what))
        raise ValueError("what went wrong")
    """,
    "later": """
        import atexit, sys, threading, time
        def work():
            time.sleep(0.1)
            print("thread", sys.modules["__main__"].value)
        value = 3
        atexit.register(lambda: print("atexit", value, sys.last_value))
        threading.Thread(target=work).start()
        raise ValueError("what went wrong")
    """,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_it_ends_without_us(tmp_path: Path, ending: str) -> None:
    # GIVEN
    _write(tmp_path / "script.py", ENDINGS[ending])

    # WHEN
    plain, launched = _both("script.py", cwd=tmp_path)

    # THEN its exit code or signal, its output and its traceback are the same, to the letter
    assert (launched.returncode, launched.stdout, launched.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_the_endings_are_different_ones(tmp_path: Path) -> None:
    """The oracle is no constant: these are the codes that Python itself gives."""
    codes = {"code": 3, "immediately": 7, "exception": 1, "interrupt": -signal.SIGINT, "terminate": -signal.SIGTERM}
    for ending, code in codes.items():
        _write(tmp_path / "script.py", ENDINGS[ending])
        assert _python("script.py", cwd=tmp_path).returncode == code


def test_a_failing_module_shows_none_of_our_frames(tmp_path: Path) -> None:
    _write(tmp_path / "failing.py", "def fail():\n    raise ValueError('what went wrong')\nfail()\n")

    _, launched = _both("-m", "failing", cwd=tmp_path)

    assert launched.returncode == 1
    lines = launched.stderr.splitlines()
    assert lines[1] == f'  File "{tmp_path / "failing.py"}", line 3, in <module>'
    assert lines[-1] == "ValueError: what went wrong"
    assert "overflow_recorder" not in launched.stderr


def test_classes_of_the_script_can_be_pickled_and_children_spawned(tmp_path: Path) -> None:
    # GIVEN a script whose child needs the script's own module, and must not run its main part
    _write(
        tmp_path / "script.py",
        """
        import multiprocessing, pickle
        class Thing:
            def __init__(self, value): self.value = value
        def double(thing): return Thing(2 * thing.value)
        print("imported as", __name__, flush=True)  # the pool ends its processes before they would
        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(Thing(1))).value == 1
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.apply(double, (Thing(21),)).value)
        """,
    )

    # WHEN
    plain, launched = _both("script.py", cwd=tmp_path)

    # THEN
    assert sorted(plain.stdout.splitlines()) == ["42", "imported as __main__", "imported as __mp_main__"]
    assert sorted(launched.stdout.splitlines()) == sorted(plain.stdout.splitlines())
    assert launched.stderr == plain.stderr


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (("nowhere.py",), "cannot run 'nowhere.py': no such file"),
        (("empty",), "cannot run 'empty': there is no __main__.py in it"),
        (("-m", "nowhere_at_all"), "no module named 'nowhere_at_all' can be run"),
        (("-m", "nowhere.at_all"), "no module named 'nowhere.at_all' can be run"),
        (("-m", "train.py"), "no module named 'train.py' can be run; is 'train' meant?"),
        (("-m", "json"), "no module named 'json.__main__' can be run; json is a package without a __main__"),
        (("-m", ".relative"), "cannot run the module '.relative'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: tuple[str, ...], message: str
) -> None:
    # GIVEN
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", list(sys.path))

    run = run_module if program[0] == "-m" else run_script

    # WHEN
    with pytest.raises(CannotStartError) as caught:
        run(program[-1], [])

    # THEN
    assert str(caught.value).startswith(message)


def test_a_package_that_fails_to_import_something_is_the_programs_own_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "broken_package/__init__.py", "import surely_not_installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", list(sys.path))

    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        run_module("broken_package.train", [])


def test_before_is_called_when_the_script_would_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    _write(tmp_path / "script.py", "import sys; sys.seen.append('script')")
    seen: list[object] = []
    monkeypatch.setattr(sys, "seen", seen, raising=False)

    # WHEN
    run_script(str(tmp_path / "script.py"), ["a"], before=lambda: seen.extend((*sys.argv, sys.path[0])))

    # THEN
    assert seen == [str(tmp_path / "script.py"), "a", str(tmp_path), "script"]
