"""Where NaN comes from in real trainings: recorded live, and found again."""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_analyzer import diff_traces, find_first_nonfinite, open_trace, render_explanation
from overflow_recorder import NonFiniteError
from tests.recorder.recordings import EVERYTHING, Forward, frames_of, record, recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overflow_analyzer import Finding

NAN, INF = float("nan"), float("inf")
HALF_LIMIT = 65504.0


def detect(model: nn.Module, path: Path, run: Callable[[], Any], **options: Any) -> None:
    """Record until the recorder raises, as it must."""
    with pytest.raises(NonFiniteError), contextlib.redirect_stdout(io.StringIO()):
        record(model, path, run, on_nonfinite="raise", every_n_batches=None, **options)


def found_in(path: Path) -> Finding:
    finding = find_first_nonfinite(open_trace(path))
    assert finding is not None
    return finding


def where(finding: Finding) -> tuple[str, str, str, int]:
    return finding.frame.module_name, finding.entry.role, finding.entry.context, finding.frame.batch_number


def test_dropout_scales_beyond_float16(tmp_path: Path) -> None:
    # GIVEN activations close to the limit, which dropout divides by 0.9
    torch.manual_seed(0)
    near = Forward(lambda x: x * 2)
    model = nn.Sequential(near, nn.Dropout(0.1))

    # WHEN
    detect(model, tmp_path / "run", lambda: model(torch.full((64,), 3.135e4, dtype=torch.float16)))

    # THEN
    finding = found_in(tmp_path / "run")
    assert where(finding) == ("1", "output", "output", 0)
    assert finding.origin is not None
    assert finding.origin.module_class == "Dropout"
    assert finding.cause.name == "overflow"
    assert finding.window[0].of_roles("output")[0].abs_max == pytest.approx(6.27e4, rel=1e-3)
    assert "95.7% of float16's 65504" in render_explanation(finding)


def test_two_masks_added_to_each_other(tmp_path: Path) -> None:
    # GIVEN
    mask = torch.tensor([0.0, torch.finfo(torch.float16).min], dtype=torch.float16)
    adding = Forward(lambda padding, causal: padding + causal)
    model = Forward(lambda inner, x, mask: inner(mask, mask) + x, adding)

    # WHEN
    detect(model, tmp_path / "run", lambda: model(torch.zeros(2, dtype=torch.float16), mask))

    # THEN the adding module is the producer, though all it was given is finite
    finding = found_in(tmp_path / "run")
    assert where(finding) == ("0", "output", "output", 0)
    assert finding.entry.neginf_count == 1
    assert finding.frame.of_roles("input")[0].abs_max == HALF_LIMIT
    assert finding.cause.name == "masks-added"


def test_a_row_of_zeros_through_a_normalisation(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Sequential(nn.Identity(), Forward(lambda x: x / x.norm()))

    # WHEN
    detect(model, tmp_path / "run", lambda: model(torch.zeros(4, dtype=torch.float16)))

    # THEN
    finding = found_in(tmp_path / "run")
    assert (where(finding)[:2], finding.entry.nan_count) == (("1", "output"), 4)
    assert finding.frame.of_roles("input")[0].abs_max == 0.0
    assert finding.cause.name == "division-by-zero"


def test_a_loss_outside_of_any_module(tmp_path: Path) -> None:
    # GIVEN a batch of which every label is ignored
    model = nn.Linear(4, 3)

    # WHEN
    with recording(model, tmp_path / "run") as (recorder, frames):
        for label in (1, -100):
            loss = nn.functional.cross_entropy(model(torch.randn(2, 4)), torch.full((2,), label))
            recorder.record("loss", loss=loss)

    # THEN the loss is the first finding, and the modules are clean
    finding = found_in(tmp_path / "run")
    assert where(finding) == ("loss", "value", "loss", 1)
    assert finding.origin is None
    assert [frame.module_name for frame in frames if frame.nonfinite_entries] == ["loss"]


def test_a_first_step_that_a_scaler_skips_is_no_finding(tmp_path: Path) -> None:
    # GIVEN
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)

    # WHEN the scale is far too high at first, as it is meant to be
    with recording(model, tmp_path / "run", roles=EVERYTHING, on_nonfinite="raise") as (_, frames):
        for step in range(3):
            loss = model(torch.full((2, 4), 100.0)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update(2.0**10 if step == 0 else None)
            optimizer.zero_grad()

    # THEN it was recorded, no alarm was raised, and nothing is found to be wrong
    bad = {(frame.batch_number, frame.phase) for frame in frames if frame.nonfinite_entries}
    assert bad == {(0, "backward")}
    assert find_first_nonfinite(open_trace(tmp_path / "run")) is None


def test_one_bad_batch_that_the_log_left_out(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(4, 1)
    logged = []

    # WHEN
    def run() -> None:
        for batch in range(6):
            x = torch.ones(2, 4)
            if batch == 3:
                x[1, 2] = NAN
            loss = model(x).mean()
            if torch.isfinite(loss):
                logged.append(loss.item())

    record(model, tmp_path / "run", run)

    # THEN
    assert len(logged) == 5
    finding = found_in(tmp_path / "run")
    assert where(finding) == ("", "input", "input[0]", 3)
    assert finding.entry.nan_count == 1


def test_one_activation_that_is_different_in_another_run(tmp_path: Path) -> None:
    # GIVEN
    def run(name: str, *, flipped: bool) -> Path:
        torch.manual_seed(0)
        batches = [0]

        def flip(x: torch.Tensor) -> torch.Tensor:
            batches[0] += 1
            if flipped and batches[0] == 3:
                x = x.clone()
                x[0, 0] = -x[0, 0] - 1
            return x

        model = nn.Sequential(nn.Linear(4, 4), Forward(flip), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with recording(model, tmp_path / name, statistics="full"):  # their means show any one element
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(2, 4)).square().sum().backward()
                optimizer.step()
        return tmp_path / name

    # WHEN
    paths = run("a", flipped=False), run("b", flipped=True)
    diff = diff_traces(*map(open_trace, paths))

    # THEN that frame is named; before it all weights were the same
    first = diff.first_divergence
    assert first is not None
    assert (first.batch_number, first.module_name, first.role, first.kind) == (2, "1", "output", "module")
    for a, b in zip(*map(frames_of, paths), strict=True):
        if a.batch_number <= 2:
            assert a.of_roles("weight") == b.of_roles("weight")


def test_a_count_that_float16_cannot_hold(tmp_path: Path) -> None:
    # GIVEN a mean over 70000 elements
    dividing = Forward(lambda total, count: total / count)
    model = Forward(lambda inner, x: inner(x * 0 + 1000, torch.tensor(70000.0).half()), dividing)

    # WHEN
    with torch.no_grad():
        record(model, tmp_path / "run", lambda: model(torch.ones(8, dtype=torch.float16)), statistics="full")

    # THEN
    finding = found_in(tmp_path / "run")
    assert where(finding) == ("0", "input", "input[1]", 0)
    assert finding.entry.posinf_count == 1
    (output,) = finding.frame.of_roles("output")
    assert (output.abs_max, output.zero_count, output.numel) == (0.0, 8, 8)


def test_one_nan_of_a_thousand_that_is_masked_out(tmp_path: Path) -> None:
    # GIVEN
    def one_nan(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        x[123] = NAN
        return x

    model = nn.Sequential(Forward(one_nan), Forward(lambda x: x.masked_fill(x.isnan(), 0.0)), nn.Tanh())

    # WHEN
    record(model, tmp_path / "run", lambda: model(torch.ones(1000)))

    # THEN it is found with its count, and is not called the fault
    finding = found_in(tmp_path / "run")
    assert where(finding) == ("0", "output", "output", 0)
    assert (finding.entry.nan_count, finding.entry.numel) == (1, 1000)
    assert finding.cause.name == "absorbed"
    assert [frame.module_name for frame in finding.absorbed] == ["1"]
