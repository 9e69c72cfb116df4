"""Which inf/nan of a rank is the one to report: the first that was not absorbed, or a gradient that was applied."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from overflow_analyzer.errors import DamagedTraceError
from overflow_analyzer.first_nonfinite.events import Event, events_of, gradient_event
from overflow_analyzer.trace.nonfinite_rows import NonfiniteRow, nonfinite_rows
from overflow_analyzer.trace.observations import frame_before, frames_from, last_moment, loss_scale_in, observations

if TYPE_CHECKING:
    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.parts import Progress
    from overflow_analyzer.trace.observations import Observation
    from overflow_analyzer.trace.rank_trace import RankTrace


_FRAMES_BEFORE: Final = 64
_FRAMES_AFTER: Final = 4096  # of the same batch: one that never ends is not read to its end
_MOST_ABSORBED: Final = 256  # places at which something is absorbed; the next one counts whatever becomes of it
_GRADIENT_ROLES: Final = frozenset({"grad_input", "grad_output", "weight_grad"})
_OUTCOMES: Final = _GRADIENT_ROLES | {"value", "weight", "optimizer_state"}


@dataclass(frozen=True)
class Located:
    """An inf/nan with the frames around it."""

    rank: RankTrace
    row: NonfiniteRow
    event: Event
    before: tuple[Frame, ...]
    """Recorded frames before it, the latest last."""
    after: tuple[Frame, ...]
    """Recorded frames of its batch after it."""
    gradient: tuple[Frame, Entry] | None = None
    """A non-finite gradient since the optimizer step before."""
    absorbed_before: tuple[Frame, ...] = ()


def locate(rank: RankTrace, *, batch: int | None, window: int, progress: Progress = iter) -> Located | None:
    """Find the first inf/nan of one rank that was not absorbed, the first absorbed one where all were.

    Args:
        rank: One rank's trace.
        batch: Only this batch.
        window: At least so many frames before it are returned, where they were recorded.
        progress: As ``nonfinite_rows`` takes it.
    """
    found, suspect = _first_fault(rank, batch, window, progress)
    if found is None or suspect is None or not _may_come_of(suspect, found):
        return found
    suspect.event.led_to = found.event.first
    return suspect


def _may_come_of(suspect: Located, found: Located) -> bool:
    """Whether a loss, gradient or weight is non-finite in the batch of what was absorbed, or after its step."""
    batches = found.row.batch_number - suspect.row.batch_number
    steps = found.row.optimizer_step - suspect.row.optimizer_step
    return found is not suspect and found.row.key.role in _OUTCOMES and batches <= 1 and steps <= 1


def _first_fault(
    rank: RankTrace, batch: int | None, window: int, progress: Progress
) -> tuple[Located | None, Located | None]:
    """Return what was not absorbed, and what a module made before that and was absorbed, the last batch's first."""
    known: set[tuple[str, str, str]] = set()
    absorbed: list[Frame] = []
    harmless: Located | None = None
    suspect: Located | None = None
    gradient: NonfiniteRow | None = None
    for row in nonfinite_rows(rank, batch=batch, progress=progress):
        if row.key.role == "optimizer_state":
            # A step that is skipped leaves the state as it was: this one was taken.
            if gradient is not None and gradient.step == row.step:
                return _gradient(rank, gradient, window, row), suspect
            return _gradient(rank, row, window, None), suspect
        if row.key.role in _GRADIENT_ROLES:
            gradient = gradient if gradient is not None and gradient.step == row.step else row
            continue
        if row.key in known:
            continue
        if gradient is not None and _was_applied(rank, gradient, row):
            return _gradient(rank, gradient, window, row), suspect
        found = _events_from(rank, row, window, known)
        faults = [one for one in found if not one.event.was_absorbed or len(absorbed) >= _MOST_ABSORBED]
        first = faults[0] if faults else None
        # Frames alone are kept of what is harmless, but for the first: each event holds all of its batch.
        absorbed += [one.event.first for one in found if first is None or one.row.frame_number < first.row.frame_number]
        suspect = _made_before(first, found, suspect)
        if first is not None:
            evidence = _evidence(rank, gradient, first.row)
            return replace(first, gradient=evidence, absorbed_before=tuple(absorbed)), suspect
        harmless = harmless or next(iter(found), None)
        known.update(_keys(found))
        known.add(row.key)
    if gradient is not None and _ends_after(rank, gradient):
        return _gradient(rank, gradient, window, None), suspect
    return harmless, suspect


def _made_before(first: Located | None, found: list[Located], suspect: Located | None) -> Located | None:
    """Return the latest batch's first inf/nan that a module made and that was absorbed."""
    absorbed = found if first is None else found[: found.index(first)]
    made = next((one for one in absorbed if one.event.origin is not None and not one.event.is_mask), None)
    if made is None or (suspect is not None and suspect.row.batch_number == made.row.batch_number):
        return suspect
    return made


def _keys(found: list[Located]) -> set[tuple[str, str, str]]:
    frames = (frame for one in found for frame in one.event.frames)
    return {(frame.module_name, entry.role, entry.context) for frame in frames for entry in frame.nonfinite_entries}


def _events_from(rank: RankTrace, row: NonfiniteRow, window: int, known: set[tuple[str, str, str]]) -> list[Located]:
    before, rest = _around(rank, row, window)
    found = []
    for event in events_of(rest, known):
        at = next(position for position, frame in enumerate(rest) if frame is event.first)
        entry = event.entry
        key = row.key._replace(module_name=event.first.module_name, role=entry.role, context=entry.context)
        its_row = NonfiniteRow(
            event.first.batch_number, event.first.frame_number, event.first.optimizer_step, event.first.time_ns, key
        )
        found.append(Located(rank, its_row, event, (*before, *rest[:at]), tuple(rest[at + 1 :])))
    return found


def _around(rank: RankTrace, row: NonfiniteRow, window: int) -> tuple[tuple[Frame, ...], list[Frame]]:
    """Return the frames before a row's frame, and its batch's frames from there on."""
    first = frame_before(rank, row.frame_number, max(window, _FRAMES_BEFORE))
    frames = frames_from(rank, first)
    before: list[Frame] = []
    for frame in frames:
        if frame.frame_number >= row.frame_number:
            frames = itertools.chain([frame], frames)
            break
        before.append(frame)
    rest = itertools.takewhile(lambda one: one.batch_number == row.batch_number, frames)
    found = list(itertools.islice(rest, _FRAMES_AFTER))
    if not found or found[0].frame_number != row.frame_number:
        raise _disorder(rank)
    return tuple(before), found


def _disorder(rank: RankTrace) -> DamagedTraceError:
    where = rank.footers[0].path.parent if rank.footers else f"rank {rank.rank}"
    return DamagedTraceError(f"{where}: its frames do not stand in order, as a recorder writes them")


# --- gradients


def _same_step(one: NonfiniteRow, other: NonfiniteRow) -> bool:
    return (one.optimizer_step, one.batch_number) == (other.optimizer_step, other.batch_number)


def _was_applied(rank: RankTrace, gradient: NonfiniteRow, row: NonfiniteRow) -> bool:
    """Whether a non-finite gradient was applied: nothing would skip it, and the next weights are non-finite.

    Where weights were not recorded, whatever is non-finite next stands for them.
    """
    if loss_scale_in(rank, gradient.batch_number) or not _is_later(rank, row, gradient):
        return False
    weights_recorded = "weight" in (rank.run.options.get("roles") or ())
    if weights_recorded and row.key.role != "weight":
        return False
    return not _finite_between(rank, gradient, row)


def _finite_between(rank: RankTrace, gradient: NonfiniteRow, row: NonfiniteRow) -> bool:
    """Whether the tensor was seen finite after the step that the gradient belongs to."""
    seen = observations(rank, row.key, before=row.frame_number, limit=4)
    return any(not one.nonfinite and _is_later(rank, one, gradient) for one in seen)


def _is_later(rank: RankTrace, moment: NonfiniteRow | Observation, gradient: NonfiniteRow) -> bool:
    """Whether something was recorded after the gradient's optimizer step (its batch, where steps were not counted)."""
    if _counts_steps(rank):
        return moment.optimizer_step > gradient.optimizer_step
    return moment.batch_number > gradient.batch_number


def _counts_steps(rank: RankTrace) -> bool:
    last = last_moment(rank)
    return last is not None and last.optimizer_step > 0


def _ends_after(rank: RankTrace, gradient: NonfiniteRow) -> bool:
    """Whether the trace ends before a non-finite gradient could have shown in the weights."""
    last = last_moment(rank)
    ended = last is None or not _is_later(rank, last, gradient)
    return ended and not loss_scale_in(rank, gradient.batch_number)


def _evidence(rank: RankTrace, gradient: NonfiniteRow | None, row: NonfiniteRow) -> tuple[Frame, Entry] | None:
    """The non-finite gradient before a non-finite parameter, if it belongs to the step that made the parameter so."""
    if gradient is None or row.key.role != "weight" or _finite_between(rank, gradient, row):
        return None
    return _found_again(rank, gradient)


def _found_again(rank: RankTrace, row: NonfiniteRow) -> tuple[Frame, Entry]:
    for frame in itertools.islice(frames_from(rank, row.frame_number), 1):
        for entry in frame.nonfinite_entries:
            if row.key == (frame.module_name, entry.role, entry.context):
                return frame, entry
    raise _disorder(rank)


def _gradient(rank: RankTrace, row: NonfiniteRow, window: int, applied_to: NonfiniteRow | None) -> Located:
    before, rest = _around(rank, row, window)
    spoilt = [] if applied_to is None else [_found_again(rank, applied_to)[0]]
    return Located(rank, row, gradient_event(rest, before), before, (*rest[1:], *spoilt))
