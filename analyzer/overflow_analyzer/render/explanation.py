"""``Finding`` -> the text that stands after the report, for somebody who is tired and wants to know what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.render.operation import change_lines, operation_lines
from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.terminal import shorten
from overflow_analyzer.text.wording import counted, section_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overflow_analyzer.first_nonfinite.finding import Finding


_MOST_RANKS = 8
_LONGEST_SETTINGS = 200


def render_explanation(finding: Finding) -> str:
    """Return what a finding means, in a few short sections of lines ended by a newline each; names are escaped."""
    return "".join(f"{escape(line)}\n" for line in section_lines(explanation_sections(finding)))


def explanation_sections(finding: Finding) -> list[tuple[str, list[str]]]:
    """Return the sections of the explanation that have something to say, each a title and lines, not escaped."""
    sure = finding.cause.confidence if finding.cause.confidence != "unknown" else "no rule fits what was recorded"
    sections = (
        ("First inf/nan among what was recorded", _what(finding)),
        ("Its frame", _frame(finding)),
        ("Made by", () if finding.replay is None else operation_lines(finding.replay)),
        (f"Cause: {finding.cause.name} ({sure})", finding.cause.evidence),
        ("What changed", () if finding.replay is None else change_lines(finding.replay)),
        ("Growth", _growth(finding)),
        ("What became of it", _outcome(finding)),
        ("Other ranks", _ranks(finding)),
        ("What this trace does not say", finding.coverage),
        ("Next", (finding.cause.next_step,)),
    )
    return [(title, items) for title, found in sections if (items := list(found))]


def headline(finding: Finding) -> str:
    """Return what, where and when in one line, not escaped.

    Args:
        finding: Of ``find_first_nonfinite``.
    """
    frame, entry = finding.frame, finding.entry
    where = f"{frame.module_name or 'the root module'} {entry.label} ({frame.module_class})"
    if frame.phase == "manual":
        where = f"{entry.label} of {frame.label}"
    batch = f"batch {frame.batch_number}" + ("" if finding.batches is None else f" of {finding.batches}")
    rank = f"rank {finding.rank}: " if finding.world_size > 1 else ""
    return f"{rank}{entry.nonfinite_kinds} in {where}, {batch}{_maker(finding)}"


def _maker(finding: Finding) -> str:
    if finding.rule.is_harmless:
        return ", all that came of it is finite"
    operation = None if finding.replay is None else finding.replay.operation
    source = None if operation is None else operation.source or operation.called_at
    line = "" if source is None else f" at {source.file}:{source.line}"
    if finding.origin is not None:
        return f", made in {finding.origin.label}{line}"
    return f", made{line}" if line else ""


def _frame(finding: Finding) -> Iterable[str]:
    """What the frame has besides what the report shows: formats and shapes, the guilty one marked."""
    for entry in finding.frame.entries:
        if entry.dtype is not None:
            shape = "" if entry.shape is None else f" {list(entry.shape)}"
            figure = entry.counts if entry.nonfinite_count else f"abs max {entry.magnitude or 0.0:.2e}"
            yield f"{entry.label}: {entry.dtype}{shape}, {figure}{' <- the first' if entry is finding.entry else ''}"


def _what(finding: Finding) -> Iterable[str]:
    frame, entry = finding.frame, finding.entry
    dtype = f", {entry.dtype}" if entry.dtype else ""
    where = f"{frame.moment}, phase {frame.phase}"
    yield f"{entry.label} of {frame.label}: {entry.counts}{dtype}; {where}"
    yield _origin(finding)
    if finding.origin is not None and finding.settings is not None and finding.settings.text:
        yield f"settings of {finding.origin.label}: {shorten(finding.settings.text, _LONGEST_SETTINGS)}"
    if finding.finite_before is not None:
        yield f"finite just before: {finding.finite_before.label}, {finding.finite_before.moment}"


def _origin(finding: Finding) -> str:
    frame, role, origin = finding.frame, finding.entry.role, finding.origin
    if frame.phase == "backward" and role != "optimizer_state":
        return _origin_in_the_backward(finding)
    if origin is not None:
        there = "there" if origin is frame else f"around it, in {origin.label}"
        taken = origin.of_roles("weight", "buffer", "input")
        is_meant = any(entry.nonfinite_count for entry in taken)
        but_for = ", but for infinities that are meant or came to nothing before" if is_meant else ""
        return f"made {there}: all that it took in is finite{but_for}"
    if finding.rule.came_with_the_batch and role == "input":
        return "no module made it: it came with the batch"
    return {
        "weight": "no module made it: the weight itself is not finite",
        "buffer": "no module made it: the buffer itself is not finite",
        "optimizer_state": "made in the optimizer's step: no gradient recorded before it has an inf or nan",
        "value": "no recorded module made it",
    }.get(role, "which module made it was not recorded: it was there when this module was called")


def _origin_in_the_backward(finding: Finding) -> str:
    if finding.origin is not None:
        return f"made in the backward of {finding.origin.label}: the gradient of its output is finite, of its input not"
    before = finding.finite_before
    if before is not None and (before.phase, before.batch_number) == ("backward", finding.frame.batch_number):
        return "made in the backward, which runs from the loss to the inputs: no gradient recorded before it has one"
    own = "" if finding.entry.role == "grad_output" else ", or its own backward,"
    return f"no gradient was recorded before it: the loss or what follows this module{own} made it"


def _growth(finding: Finding) -> Iterable[str]:
    limits = float_format(finding.entry.dtype)
    for step in finding.growth:
        if limits is not None:
            yield f"{limits.describe(step.abs_max)}: {step.context} of {step.module_name or 'the root module'}"


def _outcome(finding: Finding) -> Iterable[str]:
    if finding.propagated:
        last = finding.chain[-1] if finding.chain else finding.propagated[-1]
        yield f"carried on through {counted(len(finding.propagated), 'frame')}, the last {last.label}"
    elif len(finding.chain) > 1:
        yield f"came out of {finding.chain[-1].label} too"
    if finding.absorbed:
        named = ", ".join(dict.fromkeys(one.label for one in finding.absorbed[:3]))
        more = len(finding.absorbed) > 3  # noqa: PLR2004  as many as are named
        others = f" and others, {len(finding.absorbed)} frames in all" if more else ""
        yield f"absorbed (non-finite in, finite out) by {named}{others}"
    if finding.led_to is not None:
        entry = finding.led_to.nonfinite_entries[0]
        yield f"{entry.label} of {finding.led_to.label} has {entry.counts} after it, in {finding.led_to.moment}"
    for frame in finding.absorbed_before[:3]:
        entry = frame.nonfinite_entries[0]
        yield (
            f"before it, {entry.context} of {frame.label} had {entry.counts} in {frame.moment}; "
            "what took it in gave only finite values out"
        )
    if len(finding.absorbed_before) > 3:  # noqa: PLR2004  as many as were shown
        yield f"and {len(finding.absorbed_before) - 3} more such places"


def _ranks(finding: Finding) -> Iterable[str]:
    if finding.other_ranks is None or finding.world_size == 1:
        return
    for one in finding.other_ranks[:_MOST_RANKS]:
        yield (
            f"rank {one.rank}: {one.context} of {one.module_name or 'the root module'}, "
            f"batch {one.batch_number}, frame {one.frame_number}"
        )
    if len(finding.other_ranks) > _MOST_RANKS:
        yield f"and {len(finding.other_ranks) - _MOST_RANKS} more"
    elif not finding.other_ranks:
        yield "no other recorded rank has an inf/nan"
