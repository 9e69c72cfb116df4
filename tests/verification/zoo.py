"""Record a tiny model of every architecture that transformers has, whole, and compare each row with plain torch.

``python -m tests.verification.zoo [--part I/N] [MODEL_TYPE ...]`` prints an architecture a line: recorded, or why it
could not be tried; the exit status is 1 where one failed. ``--part 2/8`` is the second eighth of them.
``test_zoo.py`` does the same for a representative few.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers.debug_utils import DebugUnderflowOverflow as Upstream
from transformers.utils import logging

from overflow_recorder import DebugUnderflowOverflow, RecorderWarning, TraceRecorder
from tests.recorder.recordings import PlainRecorder, as_expected, expected_rows, frames_of
from tests.verification.zoo_models import ARCHITECTURES, CannotBuildError, build

if TYPE_CHECKING:
    from collections.abc import Callable

    from overflow_analyzer.format.frames import Frame

__all__ = ["NotTriedError", "Recorded", "part_of", "record_architecture"]


class NotTriedError(Exception):
    """The architecture does not run here without a recorder either."""


class Recorded(NamedTuple):
    """What was compared."""

    frames: int
    rows: int
    upstream_lines: int | None
    """Lines of upstream's report that stand in ours; None where upstream's class fails on this architecture."""


def record_architecture(model_type: str, folder: Path) -> Recorded:
    """Run a tiny model plainly and under the recorder, and compare everything.

    Raises:
        NotTriedError: It cannot be made from its configuration alone, or does not run.
        AssertionError: Something was not recorded as it was.
    """
    try:
        model, inputs = build(model_type)
        with _quiet(), torch.no_grad():
            model(**inputs)
    except CannotBuildError as error:
        raise NotTriedError(str(error)) from error
    except Exception as error:  # each architecture has reasons of its own
        raise NotTriedError(f"does not run: {type(error).__name__}: {error}".splitlines()[0][:100]) from error
    plain = _plainly(model_type)
    frames = _recorded(model_type, folder / "run")
    _compare(frames, plain.frames)
    lines = _compare_with_upstream(model_type, inputs=not plain.overwritten)
    return Recorded(len(frames), sum(len(frame.entries) for frame in frames), lines)


def _plainly(model_type: str) -> PlainRecorder:
    model, inputs = build(model_type)
    plain = PlainRecorder(model)
    with _quiet(), torch.no_grad():
        model(**inputs)
    plain.close()
    return plain


def _recorded(model_type: str, path: Path) -> list[Frame]:
    model, inputs = build(model_type)
    with _quiet(), torch.no_grad(), TraceRecorder(model, path, every_n_batches=1, on_nonfinite="ignore"):
        model(**inputs)
    return frames_of(path)


def _compare(frames: list[Frame], expected: list[tuple[str, list[Any]]]) -> None:
    names = [frame.module_name for frame in frames]
    assert names == [name for name, _ in expected], "not the frames that there were"
    assert names[-1] == "", "the root's frame is missing"
    for frame, (name, rows) in zip(frames, expected, strict=True):
        for found, wanted in zip(as_expected(frame), expected_rows(rows), strict=True):
            assert found == wanted, f"{name}: {found}, where plain torch finds {wanted}"


def _compare_with_upstream(model_type: str, *, inputs: bool) -> int | None:
    """Every figure that upstream's class prints of a batch stands in what ours prints, in the same order.

    Args:
        model_type: The architecture.
        inputs: Whether inputs are compared: upstream looks at them after the forward, which may have changed them.
    """
    try:
        wanted = _printed(Upstream, model_type)
    except Exception:  # noqa: BLE001  it does not know every tensor
        return None
    found = iter(_printed(DebugUnderflowOverflow, model_type))
    for line in wanted:
        if "input[" in line and not inputs:
            continue
        assert any(line == other for other in found), f"upstream's line is not in ours: {line!r}"
    return len(wanted)


def _printed(debugger: Callable[..., Any], model_type: str) -> list[str]:
    model, inputs = build(model_type)
    text = io.StringIO()
    with _quiet(), torch.no_grad(), contextlib.redirect_stdout(text):
        recorder = debugger(model, trace_batch_nums=[0])
        try:
            if debugger is Upstream:
                _keep_hooks(model, recorder, 1)
            model(**inputs)
        finally:
            if debugger is Upstream:
                _keep_hooks(model, recorder, 0)
            else:
                recorder.close()
    return [line.rstrip() for line in text.getvalue().splitlines() if line.strip() and "not a tensor" not in line]


def _keep_hooks(model: torch.nn.Module, upstream: Upstream, most: int) -> None:
    """Leave at most so many of upstream's hooks on each module.

    It hooks a module once for every name that it has, and so prints each call as often; and it never lets go of
    modules, though some of transformers' activations are part of every model that uses them.
    """
    for module in model.modules():
        hooks = module._forward_hooks
        ours = [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is upstream]
        for key in ours[most:]:
            del hooks[key]


@contextlib.contextmanager
def _quiet() -> Any:
    """What models warn of is their own affair; what the recorder warns of is a failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RecorderWarning)
        yield


def main() -> int:
    """Try the architectures named on the command line, or all, or a part of these."""
    parser = argparse.ArgumentParser(prog="python -m tests.verification.zoo", description=__doc__)
    parser.add_argument("model_types", nargs="*", metavar="MODEL_TYPE", help="such as t5; all, if there is none")
    parser.add_argument("--part", metavar="I/N", type=part_of, default=(1, 1), help="the I-th of N parts")
    arguments = parser.parse_args()
    logging.set_verbosity(logging.CRITICAL)
    torch.set_num_threads(1)
    part, parts = arguments.part
    names = (arguments.model_types or ARCHITECTURES)[part - 1 :: parts]
    outcomes = [_try(model_type) for model_type in names]
    recorded, failed = outcomes.count("recorded"), outcomes.count("failed")
    print(f"{recorded} of {len(names)} architectures recorded whole, {failed} failed, the others not tried")
    return int(failed > 0)


def part_of(text: str) -> tuple[int, int]:
    """Read ``I/N``; a ValueError if that is no part."""
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def _try(model_type: str) -> str:
    """Print a line about an architecture, and return what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = record_architecture(model_type, Path(folder))
        except NotTriedError as error:
            outcome, text = "not tried", f"not tried: {error}"
        except Exception as error:  # noqa: BLE001  whatever it is, it is to be shown
            outcome, text = "failed", f"FAILED: {type(error).__name__}: {error}"
        else:
            lines = "upstream fails" if found.upstream_lines is None else f"{found.upstream_lines} upstream lines"
            outcome, text = "recorded", f"{found.frames} frames, {found.rows} rows, {lines}"
    print(f"{model_type:30} {text}", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
