"""Rules about weights, buffers, batches, losses and ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer import open_trace
from overflow_analyzer.first_nonfinite.finding import find_first_nonfinite
from tests.analyzer.findings import bad, carrying, cause_of, found, passing, with_options
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.first_nonfinite.causes import Cause
    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.run_info import RunInfo

FLOAT32: dict[str, Any] = {"dtype": "float32"}
SAMPLED = with_options(trace_batch_nums=[0, 5])


def layer(number: int, batch: int, weight: Entry, step: int | None = None, **changes: Any) -> Frame:
    entries = (weight, tensor("input", "input[0]"), tensor("output", "output"))
    step = batch if step is None else step
    return frame(number, batch, "fc", *entries, in_batch=0, optimizer_step=step, **changes)


# --- weights


def test_when_a_weight_was_last_finite_is_told(tmp_path: Path) -> None:
    # GIVEN a float32 weight, finite in batches 0 and 5, bad in batch 10
    weights = [tensor("weight", "weight", abs_max=3.0, **FLOAT32) for _ in range(2)]
    frames = [layer(0, 0, weights[0]), layer(1, 5, weights[1]), layer(2, 10, bad("weight", "weight", nan=4, **FLOAT32))]
    cause = cause_of(tmp_path, *frames, run=SAMPLED)
    assert (cause.name, cause.confidence) == ("parameter-went-bad", "certain")
    said = "it was finite in batch 5 (abs max 3.00e+00) and not finite in batch 10; 5 optimizer steps lay between"
    assert said in cause.evidence


@pytest.mark.parametrize("run", [with_options(every_n_batches=None), SAMPLED, with_options(roles=["input", "output"])])
def test_of_a_weight_without_earlier_figures_nothing_is_claimed(run: RunInfo, tmp_path: Path) -> None:
    # GIVEN a window that holds nothing of this weight any more, or a module that was never called before
    cause = cause_of(tmp_path, layer(0, 7, bad("weight", "weight", nan=4, **FLOAT32)), run=run)
    assert (cause.name, cause.confidence) == ("parameter-went-bad", "possible")
    assert "when it became non-finite is not known" in cause.evidence[1]


def test_a_weight_that_changed_without_a_step_was_changed_outside_any(tmp_path: Path) -> None:
    # GIVEN two looks, both after one optimizer step
    frames = [layer(0, 0, tensor("weight", "weight"), 1), layer(1, 1, bad("weight", "weight", nan=4), 1)]
    cause = cause_of(tmp_path, *frames)
    assert (cause.name, cause.confidence) == ("parameter-went-bad", "certain")
    assert cause.evidence[1].endswith("no optimizer step lay between: it was changed outside any step")


def test_where_no_step_was_ever_counted_that_is_not_claimed(tmp_path: Path) -> None:
    frames = [layer(0, 0, tensor("weight", "weight"), 0), layer(1, 1, bad("weight", "weight", nan=4), 0)]
    assert cause_of(tmp_path, *frames).evidence[1].endswith("no step was counted")


def test_a_weight_that_is_bad_in_batch_0_was_bad_before(tmp_path: Path) -> None:
    cause = cause_of(tmp_path, layer(0, 0, bad("weight", "weight", nan=1)))
    assert (cause.name, cause.confidence) == ("bad-parameter-at-start", "certain")


def test_not_if_a_step_had_been_taken(tmp_path: Path) -> None:
    assert cause_of(tmp_path, layer(0, 0, bad("weight", "weight", nan=1), step=3)).name != "bad-parameter-at-start"


def stepped(*entries: Entry, step: int = 1, **counts: int) -> tuple[Frame, ...]:
    """A finite weight, what was recorded of the backward and of the step, the weight after it."""
    between = [frame(5 + at, 0, "fc", entry, phase="backward", optimizer_step=0) for at, entry in enumerate(entries)]
    return layer(0, 0, tensor("weight", "weight"), 0), *between, layer(9, 1, bad("weight", "weight", **counts), step)


MOMENT = tensor("optimizer_state", "weight.exp_avg_sq", abs_min=0.0)
SMALL_GRADIENT = tensor("weight_grad", "weight", abs_max=1e-5)


def test_a_second_moment_of_0_under_an_eps_of_0_divides_by_0(tmp_path: Path) -> None:
    # GIVEN what x/0 leaves after a finite gradient; an inf gradient would leave nan through Adam
    cause = cause_of(tmp_path, *stepped(SMALL_GRADIENT, MOMENT, inf=2, nan=1))
    assert (cause.name, cause.confidence) == ("optimizer-underflow", "likely")
    assert "an eps of 1e-08 (Adam's default) is 0 in float16, whose smallest value is 5.96e-08" in cause.evidence
    # THEN the figure is the root of half of 2**-24: 1.73e-4
    assert "so is the square of a gradient below 1.7e-04" in cause.evidence
    assert "weight.exp_avg_sq holds zeros (abs min 0)" in cause.evidence
    assert "its last gradient before was finite (abs max 1.00e-05)" in cause.evidence


@pytest.mark.parametrize(("entries", "counts"), [((MOMENT,), {"inf": 1}), ((SMALL_GRADIENT, MOMENT), {"nan": 4})])
def test_without_the_gradient_or_an_infinity_it_is_only_possible(
    entries: tuple[Entry, ...], counts: dict[str, int], tmp_path: Path
) -> None:
    # GIVEN a second moment of 0, beside a certain rule that says less
    weight = stepped(*entries, **counts)
    cause = cause_of(tmp_path, *weight)
    assert (cause.name, cause.confidence) == ("parameter-went-bad", "certain")


@pytest.mark.parametrize(
    "frames",
    [
        stepped(inf=2, nan=1),  # no optimizer state was recorded: SGD has none
        stepped(SMALL_GRADIENT, inf=2),
        stepped(SMALL_GRADIENT, tensor("optimizer_state", "weight.momentum_buffer", abs_min=0.0), inf=2),
        stepped(SMALL_GRADIENT, replace(MOMENT, abs_min=1e-6), inf=2),
        stepped(SMALL_GRADIENT, MOMENT, step=0, inf=2),  # no step lay between
    ],
)
def test_what_looks_like_an_optimizer_underflow_and_is_none(frames: tuple[Frame, ...], tmp_path: Path) -> None:
    assert cause_of(tmp_path, *frames).name == "parameter-went-bad"


def test_the_square_of_a_gradient_that_does_not_fit_is_the_steps(tmp_path: Path) -> None:
    # GIVEN a gradient of 300, whose square, 90000, float16 does not hold
    gradient = tensor("weight_grad", "weight", abs_max=300.0)
    state = bad("optimizer_state", "weight.exp_avg_sq", inf=4)
    frames = [layer(0, 0, tensor("weight", "weight"))]
    frames += [
        frame(1 + at, 0, "fc", one, phase="backward", optimizer_step=at) for at, one in enumerate((gradient, state))
    ]
    finding = found(tmp_path, [*frames, layer(3, 1, tensor("weight", "weight"))])
    assert (finding.cause.name, finding.cause.confidence) == ("optimizer-overflow", "likely")
    assert finding.frame.batch_number == 0
    assert "its square, 9.00e+04, does not fit float16's 65504" in finding.cause.evidence


def test_a_gradient_that_is_not_finite_comes_before_the_state_that_it_spoilt(tmp_path: Path) -> None:
    entries = (bad("weight_grad", "weight", inf=1), bad("optimizer_state", "weight.exp_avg_sq", nan=1))
    frames = [layer(0, 0, tensor("weight", "weight"))]
    frames += [frame(1 + at, 0, "fc", one, phase="backward", optimizer_step=0) for at, one in enumerate(entries)]
    finding = found(tmp_path, frames)
    assert (finding.entry.role, finding.cause.name, finding.cause.confidence) == (
        "weight_grad",
        "nonfinite-gradient",
        "likely",
    )


def test_in_bfloat16_adams_eps_survives(tmp_path: Path) -> None:
    weight = bad("weight", "weight", inf=2, dtype="bfloat16")
    frames = [layer(0, 0, tensor("weight", "weight", dtype="bfloat16")), layer(1, 1, weight)]
    assert cause_of(tmp_path, *frames).name == "parameter-went-bad"


# --- buffers


def test_a_mask_in_a_buffer_is_absorbed(tmp_path: Path) -> None:
    mask = bad("buffer", "causal_mask", neginf=2)
    attention = frame(0, 0, "attention", mask, tensor("input", "x"), tensor("output", "output"), in_batch=0)
    finding = found(tmp_path, [attention, passing(1, 0, "")])
    assert (finding.entry.context, finding.cause.name) == ("causal_mask", "absorbed")
    assert 'ignore=("attention:causal_mask",)' in finding.cause.next_step


def test_a_mask_in_a_buffer_is_not_the_fault_beside_a_nan(tmp_path: Path) -> None:
    mask = bad("buffer", "causal_mask", neginf=2)
    attention = frame(0, 0, "attention", mask, tensor("output", "output"), in_batch=0)
    nan = frame(2, 1, "head", tensor("input", "x"), bad("output", "output", nan=1), in_batch=0)
    finding = found(tmp_path, [attention, passing(1, 0, ""), nan])
    assert finding.frame.module_name == "head"


# --- batches and losses


def test_the_roots_own_input_is_certain(tmp_path: Path) -> None:
    cause = cause_of(tmp_path, carrying(0, 0, "fc", in_batch=0), carrying(1, 0, "", module_class="Net"))
    assert (cause.name, cause.confidence) == ("bad-batch", "certain")
    assert cause.evidence == ("the model's own input[0] of the root module (Net) has 1 nan of 4 elements",)


def test_without_the_roots_frame_the_first_module_is_only_possible(tmp_path: Path) -> None:
    cause = cause_of(tmp_path, carrying(0, 3, "fc", in_batch=0))
    assert (cause.name, cause.confidence) == ("bad-batch", "possible")


def test_a_later_module_says_nothing_of_the_batch(tmp_path: Path) -> None:
    assert cause_of(tmp_path, passing(0, 0, "a", in_batch=0), carrying(1, 0, "b")).name != "bad-batch"


def manual(number: int, batch: int, *entries: Entry, **changes: Any) -> Frame:
    return frame(number, batch, "loss", *entries, phase="manual", module_class="record", **changes)


def test_a_bad_loss_behind_clean_modules_is_outside_of_them(tmp_path: Path) -> None:
    loss = manual(2, 0, bad("value", "loss", nan=1, shape=()), tensor("value", "weights", abs_max=3.0))
    loss = replace(loss, frame_in_batch=2)
    cause = cause_of(tmp_path, passing(0, 0, "a", in_batch=0), passing(1, 0, ""), loss)
    assert (cause.name, cause.confidence) == ("loss-outside-modules", "likely")
    assert "the 2 module frames recorded in batch 0 before it are finite" in cause.evidence
    assert "weights recorded with it: abs max 3.00e+00" in cause.evidence


def test_behind_a_frame_that_was_not_kept_it_is_only_possible(tmp_path: Path) -> None:
    loss = manual(2, 0, bad("value", "loss", nan=1, shape=()), in_batch=3)
    cause = cause_of(tmp_path, passing(0, 0, "a", in_batch=0), passing(1, 0, ""), loss)
    assert (cause.name, cause.confidence) == ("loss-outside-modules", "possible")


def test_a_value_recorded_before_the_modules_is_the_batch(tmp_path: Path) -> None:
    cause = cause_of(tmp_path, manual(0, 0, bad("value", "x", nan=1), in_batch=0), carrying(1, 0, "fc"))
    assert (cause.name, cause.confidence) == ("bad-batch", "likely")


# --- ranks


def of_ranks(path: Path, *frames: list[Frame]) -> Cause:
    for rank, some in enumerate(frames):
        write_trace(path / "run.parquet", some, replace(RUN, rank=rank, world_size=len(frames)))
    finding = find_first_nonfinite(open_trace(path / "run.parquet"))
    assert finding is not None
    return finding.cause


def test_a_weight_that_is_bad_on_one_rank_alone(tmp_path: Path) -> None:
    good, spoilt = layer(1, 1, tensor("weight", "weight")), layer(1, 1, bad("weight", "weight", nan=1))
    before = layer(0, 0, tensor("weight", "weight"))
    cause = of_ranks(tmp_path, [before, good], [before, spoilt], [before, good])
    assert (cause.name, cause.confidence) == ("one-rank-only", "likely")
    assert "on all 2 other recorded ranks the same tensor is finite in batch 1" in cause.evidence[0]


def test_shards_of_a_weight_are_no_replicas(tmp_path: Path) -> None:
    # GIVEN a weight that had other figures on each rank before
    befores = [layer(0, 0, tensor("weight", "weight", abs_max=2.0 + rank)) for rank in range(2)]
    spoilt, good = layer(1, 1, bad("weight", "weight", nan=1)), layer(1, 1, tensor("weight", "weight"))
    assert of_ranks(tmp_path, [befores[0], good], [befores[1], spoilt]).name == "parameter-went-bad"


def test_a_weight_that_is_bad_on_every_rank_is_not(tmp_path: Path) -> None:
    spoilt = layer(0, 0, bad("weight", "weight", nan=1))
    assert of_ranks(tmp_path, [spoilt], [spoilt]).name == "bad-parameter-at-start"


def test_ranks_that_do_not_have_the_batch_say_nothing(tmp_path: Path) -> None:
    good, spoilt = layer(0, 4, tensor("weight", "weight")), layer(0, 0, bad("weight", "weight", nan=1))
    assert of_ranks(tmp_path, [good], [spoilt]).name == "bad-parameter-at-start"
