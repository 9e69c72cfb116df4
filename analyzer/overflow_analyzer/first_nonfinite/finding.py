"""The first inf/nan of a trace: where it is, what made it, what became of it, and what the trace cannot say.

Nothing here prints. A trace of any size is searched with flat memory: row groups that their statistics prove finite are
not read, and around the first hit a few hundred frames are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.causes import Case, Cause, CauseRule, explain
from overflow_analyzer.first_nonfinite.events import is_finite
from overflow_analyzer.first_nonfinite.growth import GrowthStep, growth_before
from overflow_analyzer.first_nonfinite.locating import Located, locate
from overflow_analyzer.trace.batches import batch_of
from overflow_analyzer.trace.coverage import coverage_of
from overflow_analyzer.trace.observations import observations, observations_in_batch

if TYPE_CHECKING:
    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.modules import ModuleSettings
    from overflow_analyzer.format.origin import Origin
    from overflow_analyzer.format.parts import Progress
    from overflow_analyzer.trace.observations import Observation
    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.rank_trace import RankTrace


_WINDOW_FRAMES: Final = 21
_MOST_FRAMES: Final = 1 << 20


@dataclass(frozen=True)
class RankFinding:
    """Another rank's first inf/nan, in brief."""

    rank: int
    batch_number: int
    frame_number: int
    module_name: str
    role: str
    context: str


@dataclass(frozen=True)
class Finding:
    """The first inf/nan among what was recorded, with what is known about it.

    "First" leaves out what was absorbed, where something later was not: see ``absorbed_before``.
    """

    rank: int
    world_size: int
    batches: int | None
    """How many batches the rank began; None where the run did not say how it ended."""
    frame: Frame
    """The first frame with a non-finite entry."""
    entry: Entry
    """Its first non-finite entry."""
    origin: Frame | None
    """The first frame whose inputs, weights and buffers are finite and whose output is not; None where there is none:
    a parameter or the batch was non-finite, or it was made between modules and the frame around was not recorded."""
    settings: ModuleSettings | None
    """What the origin's module is; None where there is no origin or it was not recorded."""
    cause: Cause
    rule: CauseRule
    """What recognised the cause."""
    window: tuple[Frame, ...]
    """The last recorded frames up to and including ``frame``."""
    propagated: tuple[Frame, ...]
    """Frames after it, in its batch, that took non-finite values in and gave non-finite values out."""
    absorbed: tuple[Frame, ...]
    """Frames that took non-finite values in and gave only finite ones out."""
    chain: tuple[Frame, ...]
    """The frames that gave non-finite values out, from the origin to the loss, as far as recorded."""
    led_to: Frame | None
    """Where it was absorbed: the loss, gradient or weight that was non-finite after it all the same."""
    finite_before: Frame | None
    """The last recorded frame before it in which everything is finite."""
    growth: tuple[GrowthStep, ...]
    """Where a format was too narrow: the figures on the way there, the smallest first."""
    absorbed_before: tuple[Frame, ...]
    """Earlier frames with an inf or nan that was absorbed, without later repetitions."""
    replay: Origin | None
    """What running the origin module again has shown: the operation, or why none is named; None where nothing was run
    again, or for another inf/nan than this one."""
    coverage: tuple[str, ...]
    """Sentences about what the trace cannot say."""
    other_ranks: tuple[RankFinding, ...] | None
    """First inf/nan of the other ranks, in order of rank; None where one rank alone was asked for."""


def find_first_nonfinite(
    trace: Trace,
    *,
    rank: int | None = None,
    batch: int | None = None,
    frames: int | None = None,
    progress: Progress = iter,
) -> Finding | None:
    """Find the first inf/nan among what was recorded and reason about it.

    Weights, buffers, inputs, outputs and recorded values count; what the recorder ignored does not. A non-finite
    gradient counts only if no loss scale was recorded and the next weights are non-finite or missing.

    Args:
        trace: An open trace.
        rank: Only this rank; None for the rank that was first, by batch and then by time.
        batch: Only this batch.
        frames: How many frames ``Finding.window`` has at most; None for as many as the recorder kept.
        progress: Called with the row groups of a rank that may hold an inf/nan; yields them and may show how far it is.

    Returns:
        The finding, or None where all that was recorded is finite.

    Raises:
        NotRecordedError: The rank or batch is not in the trace.
        DamagedTraceError: A row group that may hold an inf/nan cannot be read.
    """
    asked = trace.ranks if rank is None else (trace.rank(rank),)
    if batch is not None:
        batch_of(trace, batch, rank=rank)
    every = (locate(one, batch=batch, window=_window(one, frames), progress=progress) for one in asked)
    located = [found for found in every if found is not None]
    if not located:
        return None
    first = min(located, key=lambda one: (one.event.was_absorbed, one.row.batch_number, one.row.time_ns))
    others = None if rank is not None else tuple(_in_brief(one) for one in located if one is not first)
    return _finding(trace, first, _window(first.rank, frames), others)


def _window(rank: RankTrace, asked: int | None) -> int:
    frames = rank.run.options.get("max_frames_to_save") if asked is None else asked
    return min(frames, _MOST_FRAMES) if type(frames) is int and frames > 0 else _WINDOW_FRAMES


def _in_brief(found: Located) -> RankFinding:
    row = found.row
    return RankFinding(found.rank.rank, row.batch_number, row.frame_number, *row.key)


def _finding(trace: Trace, found: Located, window: int, others: tuple[RankFinding, ...] | None) -> Finding:
    event, before = found.event, found.before
    replay = _replay(found)
    case = _case(trace, found, replay)
    rule, cause = explain(case)
    return Finding(
        rank=found.rank.rank,
        world_size=trace.world_size,
        batches=_batches(found.rank),
        frame=event.first,
        entry=case.entry,
        origin=event.origin,
        settings=case.settings,
        cause=cause,
        rule=rule,
        window=(*before, event.first)[-window:],
        propagated=event.propagated,
        absorbed=event.absorbed,
        chain=event.chain,
        led_to=event.led_to,
        finite_before=next((one for one in reversed(before) if is_finite(one) and _is_like(one, event.first)), None),
        growth=growth_before(event.origin or event.first, case.batch, case.limits)
        if rule.shows_growth and case.limits is not None
        else (),
        absorbed_before=found.absorbed_before,
        replay=replay,
        coverage=coverage_of(trace),
        other_ranks=others,
    )


def _batches(rank: RankTrace) -> int | None:
    last = None if rank.run.end is None else rank.run.end.batch_number
    return None if last is None else last + 1


def _replay(found: Located) -> Origin | None:
    origin, frames = found.rank.origin, {frame.frame_number for frame in found.event.frames}
    return origin if origin is not None and origin.frame_number in frames else None


def _is_like(frame: Frame, first: Frame) -> bool:
    """Before a forward frame a forward one counts, before a gradient any: a gradient says nothing of the next batch."""
    return first.phase == "backward" or frame.phase != "backward"


def _case(trace: Trace, found: Located, replay: Origin | None) -> Case:
    rank, row = found.rank, found.row
    return Case(
        event=found.event,
        entry=found.event.entry,
        before=found.before,
        after=found.after,
        look_back=lambda: observations(rank, row.key, before=row.frame_number),
        gradient=found.gradient,
        replay=replay,
        peers=_on_other_ranks(trace, found, row.batch_number),
        look_up=lambda batch: {} if rank.modules is None else rank.modules.known_at(batch),
        optimizers=rank.run.optimizers,
        replicated=_is_replicated(trace, found),
    )


def _on_other_ranks(trace: Trace, found: Located, batch: int) -> tuple[Observation, ...]:
    others = (one for one in trace.ranks if one is not found.rank)
    return tuple(seen for one in others for seen in observations_in_batch(one, found.row.key, batch)[:1])


def _is_replicated(trace: Trace, found: Located) -> bool:
    """Whether the tensor had the same figure on every rank that has it, when it was last seen finite."""
    if len(trace.ranks) == 1:
        return False
    earlier = observations(found.rank, found.row.key, before=found.row.frame_number)
    last = next((one for one in reversed(earlier) if not one.nonfinite), None)
    others = () if last is None else _on_other_ranks(trace, found, last.batch_number)
    return bool(others) and last is not None and {one.finite_abs_max for one in others} == {last.finite_abs_max}
