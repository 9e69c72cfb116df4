"""The rules for what goes nowhere and for what no rule explains."""

from __future__ import annotations

from overflow_analyzer.first_nonfinite.causes.case import Case, Cause, label_of


def absorbed(case: Case) -> Cause | None:
    """Something bad was taken in or given out, and all that came of it is finite."""
    if not case.event.was_absorbed:
        return None
    return Cause(
        "absorbed",
        "likely" if case.event.contained_by is not None else "possible",
        (
            case.what,
            *_by_whom(case),
            *_as_mask(case),
        ),
        "If it is meant (a mask, say), tell the recorder: "
        f'`ignore=("{case.frame.module_name}:{case.entry.context}",)`. If not, mind the gradient: 0 * nan is nan.',
    )


def _by_whom(case: Case) -> tuple[str, ...]:
    said = []
    if case.event.absorbed:
        said.append(f"{label_of(case.event.absorbed[-1])} took it in and gave only finite values out")
    if case.event.contained_by is not None:
        said.append(f"all that {label_of(case.event.contained_by)} gave out around it is finite")
    return tuple(said)


def _as_mask(case: Case) -> tuple[str, ...]:
    entry = case.entry
    if entry.neginf_count and not entry.posinf_count and not entry.nan_count:
        return ("it is -inf alone, which is consistent with a mask",)
    return ()


def unknown(case: Case) -> Cause:
    """No rule applies."""
    seen = [case.what]
    if case.origin is not None:
        seen.append(f"all that {label_of(case.origin)} took in is finite")
    return Cause(
        "unknown",
        "unknown",
        tuple(seen),
        f"Record batch {case.frame.batch_number} whole with more figures: "
        f'`TraceRecorder(model, path, trace_batch_nums=[{case.frame.batch_number}], statistics="full")`.',
    )
