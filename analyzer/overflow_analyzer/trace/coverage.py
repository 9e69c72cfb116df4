"""What a trace cannot say, in sentences: every answer about a run holds only for what was recorded of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.format.arrays import coded
from overflow_analyzer.text.wording import counted
from overflow_analyzer.trace.nonfinite_rows import ignored_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.rank_trace import RankTrace


_FORWARD_ROLES: Final = {"weight": "weights", "buffer": "buffers", "input": "inputs", "output": "outputs"}
_GRADIENT_ROLES: Final = {
    "grad_input": "gradients of inputs",
    "grad_output": "gradients of outputs",
    "weight_grad": "gradients of weights",
    "optimizer_state": "optimizer state",
}
_COMPILED_CLASS: Final = "OptimizedModule"
_MOST_NAMED: Final = 8
_ENDINGS: Final = {
    "killed": "The run was killed: what it did after the last recorded frame is not known.",
    "still running": "The run was still going when this was read.",
    "unknown": "How the run ended is not known.",
}


def coverage_of(trace: Trace) -> tuple[str, ...]:
    """Return what the trace does not cover, a sentence each; empty where every batch was recorded whole.

    Args:
        trace: An open trace. Rows are read only where intended infinities have to be counted.
    """
    by_rank = {one.rank: tuple(_of_rank(one)) for one in trace.ranks}
    sentences = dict.fromkeys(sentence for some in by_rank.values() for sentence in some)
    said = [_for_ranks(one, [rank for rank, some in by_rank.items() if one in some], trace) for one in sentences]
    return (
        *said,
        *_of_several_runs(trace),
        *_of_missing_ranks(trace),
        *(f"It could not be read: {lost}." for lost in trace.lost),
    )


def _for_ranks(sentence: str, ranks: Sequence[int], trace: Trace) -> str:
    return sentence if len(ranks) == len(trace.ranks) else f"{_ranks(ranks)}: {sentence}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {_numbers(ranks)}"


def _numbers(numbers: Iterable[int], most: int = 8) -> str:
    """Return numbers with runs drawn together, as ``0, 3-7``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    shown = ["-".join(map(str, run)) for run in runs[:most]]
    return ", ".join(shown) + (f" and {len(runs) - most} more" if len(runs) > most else "")


def _of_several_runs(trace: Trace) -> tuple[str, ...]:
    """Look at what each rank says of the run that it was in: ranks that were copied together do not agree."""
    sizes = {one.rank: one.run.world_size for one in trace.ranks if one.run.run_id}
    if (len(set(sizes.values())) == 1 and max(sizes) < max(sizes.values())) or not sizes:
        return ()
    said = ", ".join(f"rank {rank} was one of {size}" for rank, size in list(sizes.items())[:_MOST_NAMED])
    return (f"The ranks are of different runs ({said}): what one of them shows says nothing of another.",)


def _of_missing_ranks(trace: Trace) -> tuple[str, ...]:
    missing = trace.missing_ranks
    return (f"{_ranks(missing)} of {trace.world_size} left nothing readable.",) if missing else ()


def _of_rank(rank: RankTrace) -> Iterable[str]:
    options = rank.run.options
    if options:
        yield from _selection(rank, options)
        yield from _roles(options)
    else:
        yield "The file does not say how it was recorded: batches, frames and roles may be missing."
    yield from _losses(rank)
    # What the recorder said of it at its close; of a run that never closed, what the model's classes tell.
    yield from (f"Not seen: {note}." for note in rank.run.notes)
    if not rank.run.notes or rank.run.end is None:
        yield from _compiled(rank)
    ignored = options.get("ignore")
    if ignored and isinstance(ignored, list):
        patterns = ", ".join(map(str, ignored))
        yield f"Infinities were ignored as intended where {patterns} matched: {counted(ignored_rows(rank), 'row')}."


def _selection(rank: RankTrace, options: dict[str, Any]) -> Iterable[str]:
    names = ("trace_batch_nums", "every_n_batches", "max_frames_to_save")
    numbers, every, frames = map(options.get, names)
    if rank.ended == "detected":  # that keeps more than the window: all that there is of its batch
        frames = rank.frame_count
    # What an option holds is a file's word: anything may stand there.
    numbers = [one for one in numbers if type(one) is int] if isinstance(numbers, list) else []
    sampled = f"one batch in {every}" if type(every) is int and every > 1 else ""
    end = rank.run.end
    last_batch, seen = (None, None) if end is None else (end.batch_number, end.frames_seen)
    if every == 1:
        return
    if numbers:
        if last_batch is None or last_batch >= len(numbers) or not set(range(last_batch + 1)) <= set(numbers):
            named = f"{'batch' if len(numbers) == 1 else 'batches'} {_numbers(numbers)}"
            chosen = " and ".join(filter(None, (named, sampled)))
            was = "was" if len(numbers) == 1 and not sampled else "were"
            yield f"Only {chosen} {was} measured: nothing is known of the others."
    elif seen is None or type(frames) is not int or seen > frames:
        whole = f"{sampled[:1].upper()}{sampled[1:]} was kept whole; of the others only" if sampled else "Only"
        of = f" of the {seen} that ran" if seen else ""
        yield f"{whole} the last {frames} frames were kept{of}: nothing is known of the others."


def _roles(options: dict[str, Any]) -> Iterable[str]:
    recorded = options.get("roles")
    recorded = recorded if isinstance(recorded, list) else []
    missing = [text for role, text in _FORWARD_ROLES.items() if role not in recorded]
    gradients = [text for role, text in _GRADIENT_ROLES.items() if role not in recorded]
    if len(gradients) == len(_GRADIENT_ROLES):
        gradients = ["gradients", "optimizer state"]
    if missing or gradients:
        yield f"Not recorded: {', '.join([*missing, *gradients])}."


def _losses(rank: RankTrace) -> Iterable[str]:
    end = rank.run.end
    if rank.ended == "switched off":
        reason = f" ({end.reason})" if end is not None and end.reason else ""
        yield f"The recorder switched itself off{reason}: nothing is known of what came after."
    elif rank.ended in _ENDINGS:
        yield _ENDINGS[rank.ended]
    if rank.dropped_frames:
        dropped = rank.dropped_frames
        yield f"{dropped} frames were given up because the disk was slower than the run: nothing is known of them."
    if end is not None and end.parts_removed:
        yield f"max_bytes removed {end.parts_removed} parts: the oldest batches are gone."
    for lost in rank.lost:
        yield f"It could not be read: {lost}."


def _compiled(rank: RankTrace) -> Iterable[str]:
    """Look at the first rows only: a model is compiled as a whole or at its top levels, in every batch the same."""
    _, classes = coded(next(rank.tables(["module_class"]), rank.ring), "module_class")
    if _COMPILED_CLASS in classes or rank.run.model_class == _COMPILED_CLASS:
        yield "Modules inside regions compiled by torch.compile run without hooks and are not in the trace."
