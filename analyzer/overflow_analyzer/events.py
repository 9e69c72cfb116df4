"""What became of an inf/nan within one batch: where it was made, what carried it on, what took it in. Pure.

A trace has no edges between modules. What follows from names and order alone is used: a frame completes after the
frames inside it, and the module ``a.b`` is inside ``a``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from overflow_analyzer.frames import Entry, Frame
    from overflow_analyzer.schema import Role

__all__ = ["Event", "bad_entries", "events_of", "gives_only_zeros", "gradient_event", "is_finite", "is_inside"]

TAKEN_IN: Final[tuple[Role, ...]] = ("weight", "buffer", "input", "grad_output", "optimizer_state")
GIVEN_OUT: Final[tuple[Role, ...]] = ("output", "value", "grad_input", "weight_grad")
_GRADIENTS: Final = ("grad_input", "grad_output", "weight_grad", "optimizer_state")
_FORWARD: Final = ("train", "eval", "manual")
_Key = tuple[str, str, str]


@dataclass
class Event:
    """One inf/nan and the frames of its batch that have to do with it, in order of completion."""

    first: Frame
    """The first frame with a bad entry."""
    frames: list[Frame] = field(default_factory=list)
    """All with a bad entry, ``first`` among them."""
    origin: Frame | None = None
    """The frame that took finite values in and gave a bad one out; None where no recorded frame did."""
    contained_by: Frame | None = None
    """A frame around ``first`` that gave only finite values out."""
    known: Container[_Key] = ()
    """Keys of entries that are left out of account."""

    @property
    def propagated(self) -> tuple[Frame, ...]:
        """Frames after the first that took bad values in and gave bad values out."""
        later = (one for one in self.frames[1:] if one.phase != "backward")
        return tuple(one for one in later if self._takes(one) and not self._absorbs(one))

    @property
    def absorbed(self) -> tuple[Frame, ...]:
        """Frames that took bad values in and gave finite ones out."""
        return tuple(one for one in self.frames if self._takes(one) and self._absorbs(one))

    @property
    def chain(self) -> tuple[Frame, ...]:
        """The frames that gave bad values out, from the origin on, to the loss where that was recorded."""
        return tuple(one for one in self.frames if self._gives(one))

    @property
    def was_absorbed(self) -> bool:
        """Whether nothing bad is known to have come out of it.

        A parameter that is bad is a fault wherever it goes; so is a buffer with a nan (an infinite one is often a
        mask).
        """
        if any(_is_a_fault_in_itself(entry) for one in self.frames for entry in bad_entries(one, self.known)):
            return False
        if any(self._takes(one) and gives_only_zeros(one) for one in self.frames):
            return False
        if self.contained_by is not None:
            return True
        return bool(self.absorbed) and self.frames[-1] is self.absorbed[-1]

    def _absorbs(self, frame: Frame) -> bool:
        # A gradient's frame has one entry: what a module took in and gave out stand in two.
        return frame.phase != "backward" and not self._gives(frame) and not gives_only_zeros(frame)

    def _takes(self, frame: Frame) -> bool:
        return bool(bad_entries(frame, self.known, TAKEN_IN))

    def _gives(self, frame: Frame) -> bool:
        return bool(bad_entries(frame, self.known, GIVEN_OUT))


def bad_entries(frame: Frame, known: Container[_Key] = (), roles: Sequence[Role] | None = None) -> tuple[Entry, ...]:
    """Return a frame's entries with an inf or nan, in order.

    Args:
        frame: Any frame.
        known: Keys (module name, role, context) of entries to leave out.
        roles: Only entries of these roles; None for all.
    """
    return tuple(
        entry
        for entry in frame.nonfinite_entries
        if (roles is None or entry.role in roles) and (frame.module_name, entry.role, entry.context) not in known
    )


def _is_a_fault_in_itself(entry: Entry) -> bool:
    return entry.role in ("weight", *_GRADIENTS) or (entry.role == "buffer" and bool(entry.nan_count))


def gives_only_zeros(frame: Frame) -> bool:
    """Whether all that a frame gave out is zero: finite, but what an inf divisor leaves."""
    given = [entry for entry in frame.of_roles(*GIVEN_OUT) if entry.kind == "tensor" and entry.numel]
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
        frames: Frames of one batch in order of completion, beginning with or before its first bad one. Backward frames
            are left out, and recomputed ones too, which repeat the forward, unless they alone are bad.
        known: Keys of entries that are left out of account: infinities that are known to go nowhere.
    """
    batch = list(frames)
    forward = [frame for frame in batch if frame.phase in _FORWARD]
    if not any(bad_entries(frame, known) for frame in forward):
        forward = [frame for frame in batch if frame.phase == "recompute"]
    events: list[Event] = []
    current: Event | None = None
    for frame in forward:
        if current is not None and current.contained_by is None and _goes_on(current, frame, known):
            _take(current, frame, known)
        elif bad_entries(frame, known):
            current = Event(frame, known=known)
            events.append(current)
            _take(current, frame, known)
    return events


def _goes_on(event: Event, frame: Frame, known: Container[_Key]) -> bool:
    """Whether a frame belongs to an event; one that takes in only finite values and is not around it is a new one."""
    around = any(is_inside(one, frame) for one in event.frames)
    if not bad_entries(frame, known):
        return around and is_inside(event.first, frame)
    return around or bool(bad_entries(frame, known, TAKEN_IN)) or frame.phase == "manual"


def _take(event: Event, frame: Frame, known: Container[_Key]) -> None:
    taken, given = bad_entries(frame, known, TAKEN_IN), bad_entries(frame, known, GIVEN_OUT)
    if not taken and not given:
        event.contained_by = frame if _gives_tensors(frame) and not gives_only_zeros(frame) else None
        return
    event.frames.append(frame)
    if event.origin is None and not taken and given and frame.phase != "manual" and _may_be_origin(event, frame):
        event.origin = frame


def _may_be_origin(event: Event, frame: Frame) -> bool:
    """A frame around a module with a bad parameter gives out what that made: it did not make it itself."""
    parameters = (entry for one in event.frames for entry in one.nonfinite_entries)
    return not any(entry.role in ("weight", "buffer") for entry in parameters) and (
        frame is event.first or is_inside(event.first, frame)
    )


def _gives_tensors(frame: Frame) -> bool:
    return any(entry.kind == "tensor" and entry.numel for entry in frame.of_roles("output"))


def gradient_event(frames: Sequence[Frame]) -> Event:
    """Return the event of a bad gradient.

    Args:
        frames: Frames of one batch, the first with the bad gradient.
    """
    first = frames[0]
    bad = [frame for frame in frames if frame.phase == first.phase and frame.nonfinite_entries]
    return Event(first, bad)
