"""What became of an inf/nan within one batch: where it was made, what carried it on, what took it in. Pure.

A trace has no edges between modules. What follows from names and order alone is used: a frame completes after the
frames inside it, and the module ``a.b`` is inside ``a``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from overflow_analyzer.format.frames import first_in_time

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from overflow_analyzer.format.columns import Role
    from overflow_analyzer.format.frames import Entry, Frame


_GRADIENTS: Final = ("grad_input", "grad_output", "weight_grad", "optimizer_state")
_TAKEN_IN: Final[tuple[Role, ...]] = ("weight", "buffer", "input", "grad_output", "optimizer_state")
_FORWARD: Final = ("train", "eval", "manual")
_Key = tuple[str, str, str]


class Member(NamedTuple):
    """A frame with something non-finite in it."""

    frame: Frame
    taken: tuple[Entry, ...]
    """The non-finite entries that it took in: weights, buffers, inputs."""
    given: tuple[Entry, ...]
    """The non-finite entries that it gave out."""

    @property
    def absorbs(self) -> bool:
        """Whether it took non-finite values in and gave finite ones out, not just the zeros of an inf divisor."""
        # A gradient's frame has one entry: what a module took in and gave out stand in two.
        is_forward = self.frame.phase != "backward"
        return bool(self.taken) and not self.given and is_forward and _gives_tensors(self.frame) and not self.zeroes

    @property
    def zeroes(self) -> bool:
        """Whether it took non-finite values in and gave 0 out everywhere."""
        return bool(self.taken) and gives_only_zeros(self.frame)


@dataclass
class Event:
    """One inf/nan and the frames of its batch that have to do with it, in order of completion."""

    members: list[Member] = field(default_factory=list)
    """The frames with a non-finite entry, at least one."""
    origin: Frame | None = None
    """The frame that took finite values in and gave a non-finite one out; None where no recorded frame did."""
    contained_by: Frame | None = None
    """A frame around the first that gave only finite values out."""
    led_to: Frame | None = None
    """The loss, gradient or weight that was non-finite after it, in the same batch or at the next step."""

    @property
    def first(self) -> Frame:
        """The first frame with a non-finite entry."""
        return self.members[0].frame

    @property
    def entry(self) -> Entry:
        """Its first non-finite entry."""
        member = self.members[0]
        nonfinite = (*member.taken, *member.given)
        return first_in_time([entry for entry in member.frame.entries if any(entry is one for one in nonfinite)])

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The frames with a non-finite entry."""
        return tuple(one.frame for one in self.members)

    @property
    def is_mask(self) -> bool:
        """Whether -inf is all that is non-finite in it."""
        entries = (entry for one in self.members for entry in (*one.taken, *one.given))
        return not any(entry.nan_count or entry.posinf_count for entry in entries)

    @property
    def propagated(self) -> tuple[Frame, ...]:
        """Frames after the first that took non-finite values in and did not absorb them."""
        later = (one for one in self.members[1:] if one.frame.phase != "backward")
        return tuple(one.frame for one in later if one.taken and not one.absorbs)

    @property
    def absorbed(self) -> tuple[Frame, ...]:
        """Frames that took non-finite values in and gave finite ones out."""
        return tuple(one.frame for one in self.members if one.absorbs)

    @property
    def chain(self) -> tuple[Frame, ...]:
        """The frames that gave non-finite values out, from the origin on, to the loss where that was recorded."""
        return tuple(one.frame for one in self.members if one.given)

    @property
    def was_absorbed(self) -> bool:
        """Whether nothing non-finite is known to have come out of it.

        A parameter that is not finite is a fault wherever it goes; so is a buffer with anything but -inf, which may be
        a mask, and an inf that leaves nothing but zeros.
        """
        faults = (one.zeroes or any(map(_is_a_fault_in_itself, (*one.taken, *one.given))) for one in self.members)
        if self.led_to is not None or any(faults):
            return False
        return self.contained_by is not None or self.members[-1].absorbs


def _is_a_fault_in_itself(entry: Entry) -> bool:
    return entry.role in ("weight", *_GRADIENTS) or (
        entry.role == "buffer" and bool(entry.nan_count or entry.posinf_count)
    )


def gives_only_zeros(frame: Frame) -> bool:
    """Whether all that a frame gave out is zero: finite, but what an inf divisor leaves."""
    given = [entry for entry in frame.of_roles("output", "value") if entry.kind == "tensor" and entry.numel]
    return bool(given) and all(entry.abs_max == 0 for entry in given)


def is_finite(frame: Frame) -> bool:
    """Whether a frame has figures and all of them are finite."""
    return not frame.nonfinite_entries and any(entry.abs_max is not None for entry in frame.entries)


def is_inside(inner: Frame, outer: Frame) -> bool:
    """Whether ``inner`` is the call of a module inside ``outer``'s, given that it completed before.

    Assumes that a module is called by the modules around it. One that is shared has one name and may be called from
    elsewhere; then the frame around it by name is taken for the caller.
    """
    if outer.phase in ("manual", "backward") or inner.phase == "manual" or inner.module_name == outer.module_name:
        return False
    return outer.module_name == "" or inner.module_name.startswith(f"{outer.module_name}.")


def events_of(frames: Iterable[Frame], known: Container[_Key] = ()) -> list[Event]:
    """Return the events of one batch in order.

    Args:
        frames: Frames of one batch in order of completion, beginning with or before its first non-finite one. Backward
            frames are left out, and recomputed ones too, which repeat the forward, unless they alone are non-finite.
        known: Keys of entries that are left out of account: infinities that are known to go nowhere.
    """
    batch = list(frames)
    members = list(_members((one for one in batch if one.phase in _FORWARD), known))
    if not any(one.taken or one.given for one in members):
        members = list(_members((one for one in batch if one.phase == "recompute"), known))
    events: list[Event] = []
    for one in members:
        current = events[-1] if events and events[-1].contained_by is None else None
        if current is not None and _goes_on(current, one) and not _spoils(current, one):
            _take(current, one)
        elif one.taken or one.given:
            events.append(Event())
            _take(events[-1], one)
    return events


def _members(frames: Iterable[Frame], known: Container[_Key]) -> Iterator[Member]:
    for frame in frames:
        entries = frame.nonfinite_entries
        nonfinite = [one for one in entries if (frame.module_name, one.role, one.context) not in known]
        taken = tuple(entry for entry in nonfinite if entry.role in _TAKEN_IN)
        yield Member(frame, taken, tuple(entry for entry in nonfinite if entry.role not in _TAKEN_IN))


def _goes_on(event: Event, one: Member) -> bool:
    """Whether a frame belongs to an event; one that takes in only finite values and is not around it is a new one."""
    if one.taken or (one.given and one.frame.phase == "manual"):
        return True
    if not one.given:
        is_recorded_mask = event.first.phase == "manual" and event.is_mask
        return is_inside(event.first, one.frame) or (is_recorded_mask and one.frame.module_name == "")
    return any(is_inside(member.frame, one.frame) for member in event.members)


def _spoils(event: Event, one: Member) -> bool:
    """Whether a frame makes more than -inf of a mask that all frames before it have absorbed: then it is the fault."""
    given = any(entry.nan_count or entry.posinf_count for entry in one.given)
    taken = any(entry.nan_count or entry.posinf_count for entry in one.taken)
    return given and not taken and event.is_mask and all(member.absorbs for member in event.members)


def _take(event: Event, one: Member) -> None:
    if not one.taken and not one.given:
        event.contained_by = one.frame if _gives_tensors(one.frame) and not gives_only_zeros(one.frame) else None
        return
    event.members.append(one)
    if event.origin is None and not one.taken and one.frame.phase != "manual" and _may_be_origin(event, one.frame):
        event.origin = one.frame


def _may_be_origin(event: Event, frame: Frame) -> bool:
    """A frame around a module with a non-finite parameter gives out what that made: it did not make it itself."""
    first = (first_in_time(one.taken).role for one in event.members if one.taken)
    return not any(role in ("weight", "buffer") for role in first) and (
        frame is event.first or is_inside(event.first, frame)
    )


def _gives_tensors(frame: Frame) -> bool:
    return any(entry.kind == "tensor" and entry.numel for entry in frame.of_roles("output"))


def gradient_event(frames: Sequence[Frame], before: Iterable[Frame] = ()) -> Event:
    """Return the event of a non-finite gradient.

    Its origin is the module whose backward made it: the gradient of its output is finite, that of its input is not.

    Args:
        frames: Frames of one batch, the first with the non-finite gradient.
        before: Frames before it.
    """
    same = [frame for frame in frames if frame.phase == frames[0].phase]
    members = [one for one in _members(same, ()) if one.taken or one.given]
    batch = frames[0].batch_number
    backward = [one for one in before if one.phase == "backward" and one.batch_number == batch]
    finite = {one.module_name for one in backward if one.of_roles("grad_output") and is_finite(one)}
    finite -= {one.frame.module_name for one in members if any(entry.role == "grad_output" for entry in one.taken)}
    makers = (one.frame for one in members if any(entry.role == "grad_input" for entry in one.given))
    return Event(members, origin=next((frame for frame in makers if frame.module_name in finite), None))
