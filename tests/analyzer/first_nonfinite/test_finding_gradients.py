"""When a bad gradient is the first inf/nan that mattered: not if its step is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_analyzer.render.explanation import render_explanation
from tests.analyzer.findings import bad, find, found, making, passing, with_options
from tests.traces import frame, tensor

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Entry, Frame

RUN = with_options(roles=["weight", "buffer", "input", "output", "weight_grad"])


def forward(number: int, batch: int, step: int, weight: Entry | None = None) -> Frame:
    weight = weight or tensor("weight", "weight")
    return frame(number, batch, "a", weight, tensor("output", "output"), in_batch=0, optimizer_step=step)


def gradient(number: int, batch: int, step: int, entry: Entry | None = None) -> Frame:
    entry = entry or bad("weight_grad", "weight", inf=1)
    return frame(number, batch, "a", entry, phase="backward", optimizer_step=step)


def loss_scale(number: int, batch: int, step: int) -> Frame:
    scale = tensor("value", "loss_scale", abs_min=65536.0, abs_max=65536.0, dtype="float32", shape=(), numel=1)
    return frame(number, batch, "", scale, phase="backward", module_class="GradScaler", optimizer_step=step)


BAD_WEIGHT = bad("weight", "weight", nan=4)


def test_an_inf_gradient_under_a_loss_scale_is_no_alarm(tmp_path: Path) -> None:
    # GIVEN a GradScaler that skips step 0, as it normally does at the start
    frames = [forward(0, 0, 0), loss_scale(1, 0, 0), gradient(2, 0, 0), forward(3, 1, 0)]
    assert find(tmp_path, frames, RUN) is None


def test_under_a_loss_scale_it_is_no_alarm_though_the_trace_ends_there(tmp_path: Path) -> None:
    assert find(tmp_path, [forward(0, 0, 0), loss_scale(1, 0, 0), gradient(2, 0, 0)], RUN) is None


def test_without_a_loss_scale_it_is_no_alarm_if_the_next_weights_are_finite(tmp_path: Path) -> None:
    # GIVEN a loop that looks at its gradients and skips by itself, and a later batch that is fine
    assert find(tmp_path, [forward(0, 0, 0), gradient(1, 0, 0), forward(2, 1, 1)], RUN) is None


def test_a_gradient_after_which_the_weights_are_bad_is_the_finding(tmp_path: Path) -> None:
    frames = [forward(0, 0, 0), gradient(1, 0, 0), forward(2, 1, 1, BAD_WEIGHT)]
    finding = found(tmp_path, frames, RUN)
    assert finding.frame.frame_number == 1
    assert (finding.cause.name, finding.cause.confidence) == ("nonfinite-gradient", "likely")
    assert "weight of a (Linear) is not finite in batch 1: it was applied" in finding.cause.evidence


def test_with_accumulated_gradients_weights_before_the_step_prove_nothing(tmp_path: Path) -> None:
    # GIVEN two batches before one step: the weights of the second are still those of the first
    frames = [forward(0, 0, 0), gradient(1, 0, 0), forward(2, 1, 0), forward(3, 2, 1, BAD_WEIGHT)]
    assert found(tmp_path, frames, RUN).frame.frame_number == 1


def test_a_gradient_at_the_end_of_the_trace_may_have_been_applied(tmp_path: Path) -> None:
    frames = [forward(0, 0, 0), gradient(1, 0, 0)]
    finding = found(tmp_path, frames, RUN)
    assert (finding.frame.frame_number, finding.cause.confidence) == (1, "possible")
    assert "the trace ends before the next weights: whether it was applied is not known" in finding.cause.evidence


def test_a_bad_gradient_of_long_ago_does_not_explain_a_bad_weight(tmp_path: Path) -> None:
    frames = [forward(0, 0, 0), gradient(1, 0, 0), forward(2, 1, 1), forward(3, 2, 2, BAD_WEIGHT)]
    finding = found(tmp_path, frames, RUN)
    assert (finding.frame.frame_number, finding.cause.name) == (3, "parameter-went-bad")


def test_the_last_step_with_bad_gradients_is_the_one_that_counts(tmp_path: Path) -> None:
    frames = [forward(0, 0, 0), gradient(1, 0, 0), forward(2, 1, 1), gradient(3, 1, 1), forward(4, 2, 2, BAD_WEIGHT)]
    assert found(tmp_path, frames, RUN).frame.frame_number == 3


def test_under_a_loss_scale_the_bad_weight_is_the_finding_and_the_gradient_its_evidence(tmp_path: Path) -> None:
    # GIVEN a loop that scales its loss and then steps without asking the scaler
    frames = [forward(0, 0, 0), loss_scale(1, 0, 0), gradient(2, 0, 0), forward(3, 1, 1, BAD_WEIGHT)]
    finding = found(tmp_path, frames, RUN)
    assert (finding.frame.frame_number, finding.cause.name) == (3, "gradient-applied")
    assert "the gradient of weight of a (Linear) had 1 inf of 4 elements in batch 0, frame 2" in finding.cause.evidence


def test_a_nan_in_the_same_forward_is_not_blamed_on_its_gradient(tmp_path: Path) -> None:
    # GIVEN a module that makes nan, whose gradients are nan for that reason
    frames = [making(0, 0, "a", in_batch=0), gradient(1, 0, 0, bad("weight_grad", "weight", nan=4))]
    assert found(tmp_path, frames, RUN).frame.frame_number == 0


def test_where_weights_were_not_recorded_the_next_outputs_stand_for_them(tmp_path: Path) -> None:
    run = with_options(roles=["output", "weight_grad"])
    nan = frame(2, 1, "a", bad("output", "output", nan=4), in_batch=0, optimizer_step=1)
    frames = [passing(0, 0, "a", in_batch=0, optimizer_step=0), gradient(1, 0, 0), nan]
    assert found(tmp_path, frames, run).frame.frame_number == 1


def of_module(number: int, name: str, entry: Entry) -> Frame:
    return frame(number, 0, name, entry, phase="backward", optimizer_step=0)


FINITE, NONFINITE = tensor("grad_output", "grad_output"), bad("grad_output", "grad_output", nan=1)
SPOILT_INPUT = bad("grad_input", "grad_input[0]", nan=1)


def test_the_maker_is_the_module_whose_backward_made_it_not_the_one_that_received_it(tmp_path: Path) -> None:
    # GIVEN an activation between two layers: finite on its way in, nan on its way out
    frames = [forward(0, 0, 0), of_module(1, "head", FINITE), of_module(2, "act", FINITE)]
    frames += [of_module(3, "fc", NONFINITE), of_module(4, "act", SPOILT_INPUT)]
    finding = found(tmp_path, frames, RUN)
    assert (finding.frame.module_name, finding.origin and finding.origin.module_name) == ("fc", "act")
    assert "made in the backward of act (Linear): the gradient of its output is finite" in render_explanation(finding)


def test_a_module_that_was_given_a_nan_did_not_make_it(tmp_path: Path) -> None:
    # GIVEN a loss whose gradient is nan already
    frames = [forward(0, 0, 0), of_module(1, "act", NONFINITE), of_module(2, "act", SPOILT_INPUT)]
    finding = found(tmp_path, frames, RUN)
    assert finding.origin is None
    assert "the loss or what follows this module made it" in render_explanation(finding)


def test_without_gradients_of_inputs_no_maker_is_claimed(tmp_path: Path) -> None:
    frames = [forward(0, 0, 0), of_module(1, "act", FINITE), of_module(2, "fc", NONFINITE)]
    assert found(tmp_path, frames, RUN).origin is None
