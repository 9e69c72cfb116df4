"""A ``Summary`` as text, as Markdown and as what becomes JSON."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.render.replay import replay_command, seed_call
from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.markdown import escape_markdown
from overflow_analyzer.text.strict_json import fields_of
from overflow_analyzer.text.tables import Column, render_table
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from overflow_analyzer.trace.gaps import Kept
    from overflow_analyzer.trace.summary import RankSummary, Summary


_SHOWN_GAPS: Final = 5
_LABEL_WIDTH: Final = 10
_CODE: Final = ("variables", "options", "seeds", "replay")  # labels of what a program reads
_KILO: Final = 1000
_EPSILONS: Final = ("B", "kB", "MB", "GB", "TB")

RANK_COLUMNS: Final = (
    Column("rank", lambda rank: str(rank.rank), "right"),
    Column("ended", lambda rank: rank.ended),
    Column("batches", lambda rank: str(rank.batches.count), "right"),
    Column("frames", lambda rank: str(rank.frames.count), "right"),
    Column("rows", lambda rank: str(rank.rows), "right"),
    Column("parts", lambda rank: str(rank.parts), "right"),
    Column("size", lambda rank: _bytes(rank.bytes), "right"),
    Column("rows in window", lambda rank: str(rank.ring_rows), "right"),
)


def summary_as_json(summary: Summary) -> dict[str, Any]:
    """Return the summary for ``to_json``: the totals, the run, and one object a rank."""
    run = summary.ranks[0].run
    return {
        **fields_of(summary, "path", "format_version", "closed"),
        "ranks": len(summary.ranks),
        **fields_of(summary, "world_size", "missing_ranks", "batches", "frames", "rows", "bytes"),
        "dtypes": sorted({dtype for rank in summary.ranks for dtype in rank.dtypes}),
        **fields_of(summary, "lost", "unknown_columns"),
        "run": {
            **{name: value for name, value in asdict(run).items() if name not in ("rank", "end", "format_version")},
            "seed_call": seed_call(run),
            "replay": replay_command(run),
        },
        "by_rank": [_rank_as_json(rank) for rank in summary.ranks],
    }


def _rank_as_json(rank: RankSummary) -> dict[str, Any]:
    values = {name: value for name, value in asdict(rank).items() if name != "run"}
    return {**values, **fields_of(rank.run, "hostname", "notes", "end"), "why_missing": why_missing(rank)}


def why_missing(rank: RankSummary) -> tuple[str, ...]:
    """Return sentences that say why frames of a rank were not kept, as far as its options and its end tell."""
    if not rank.frames.missing:
        return ()
    options = rank.run.options
    every, chosen = options.get("every_n_batches"), options.get("trace_batch_nums")
    window = options.get("max_frames_to_save")
    kept = ["every batch" if every == 1 else f"one batch in {every}"] if every else []
    if isinstance(chosen, (list, tuple)) and chosen:
        kept.append(f"batches {_first(chosen)}")
    kept += [f"the window of the last {window} frames"] if window else []
    reasons = [f"the recorder was asked to keep {', '.join(kept)}"] if kept else []
    if rank.parts_removed:
        reasons.append(f"max_bytes removed {counted(rank.parts_removed, 'part')}, the oldest first")
    if rank.dropped_frames:
        reasons.append(f"{counted(rank.dropped_frames, 'frame')} given up because the disk was slower than the run")
    return (*reasons, *(f"lost: {sentence}" for sentence in rank.lost))


def render_summary(summary: Summary, *, markdown: bool = False, width: int | None = None) -> str:
    """Return the summary for reading; ``width``, of the terminal in columns, is for the table alone."""
    model = summary.ranks[0].run.model_class or "a model"
    title = f"{summary.path}: trace of {model}, format version {summary.format_version}"
    table = render_table(RANK_COLUMNS, summary.ranks, markdown=markdown, width=width)
    facts = summary_facts(summary)
    if markdown:
        lines = [f"- **{label}**: {_marked_up(label, text)}" for label, text in facts]
        return "\n".join([f"### {escape_markdown(title)}", "", *lines, "", table])
    lines = [f"{label:<{_LABEL_WIDTH}}{escape(text)}" for label, text in facts]
    return "\n".join([escape(title), "", *lines, "", table])


def summary_facts(summary: Summary) -> list[tuple[str, str]]:
    """Return what there is to say of a trace as a whole, each with its label; names in it are not escaped."""
    return [*_run_facts(summary), *_content_facts(summary)]


def _marked_up(label: str, text: str) -> str:
    shown = escape(text)
    return f"`{shown}`" if label in _CODE and "`" not in shown else escape_markdown(text)


def _run_facts(summary: Summary) -> Iterator[tuple[str, str]]:
    run = summary.ranks[0].run
    if run.run_id:
        hosts = list(dict.fromkeys(rank.run.hostname for rank in summary.ranks if rank.run.hostname))
        more = f" and {len(hosts) - 1} more" if len(hosts) > 1 else ""
        yield "run", f"{run.run_id}, started {_time(run.started_ns)}{f' on {hosts[0]}{more}' if hosts else ''}"
    named = {"torch": run.torch_version, "Python": run.python_version, "overflow-trace": run.recorder_version}
    if versions := [f"{name} {version}" for name, version in named.items() if version]:
        yield "versions", ", ".join(versions)
    if device := run.environment.get("device"):
        yield "device", device
    if variables := [f"{name}={value}" for name, value in run.environment.items() if name.isupper()]:
        yield "variables", ", ".join(variables)
    given = ((name, value) for name, value in run.options.items() if value not in (None, [], ""))
    texts = (f"{name}={','.join(map(str, value)) if isinstance(value, list) else value}" for name, value in given)
    if options := ", ".join(texts):
        yield "options", options
    if call := seed_call(run):
        yield "seeds", call
    if command := replay_command(run):
        yield "replay", command


def _content_facts(summary: Summary) -> Iterator[tuple[str, str]]:
    sealed = summary.rows - sum(rank.ring_rows for rank in summary.ranks)
    per_row = f", {summary.bytes / sealed:.1f} bytes a row" if sealed else ""
    frames, rows = counted(summary.frames, "frame"), counted(summary.rows, "row")
    yield "size", f"{frames}, {rows}, {_bytes(summary.bytes)}{per_row}"
    if summary.missing_ranks:
        missing, ranks = _first(summary.missing_ranks), f"{len(summary.missing_ranks)} of {summary.world_size} ranks"
        yield "missing", f"{ranks} left nothing readable: {missing}"
    for label, describe in _BY_RANK.items():
        for ranks, text in _alike(summary, describe):
            yield label, f"{ranks}{text}"
    for sentence in summary.lost:
        yield "lost", sentence
    for name in summary.unknown_columns:
        yield "left out", f"{name}: this version does not know it"


def _alike(summary: Summary, describe: Callable[[RankSummary], str]) -> Iterator[tuple[str, str]]:
    """Yield each description with the neighbouring ranks for which it holds."""
    for text, some in itertools.groupby(summary.ranks, describe):
        ranks = [one.rank for one in some]
        span = f"rank {ranks[0]}: " if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}: "
        if text:
            yield ("" if len(ranks) == len(summary.ranks) else span), text


def _end_text(rank: RankSummary) -> str:
    end = rank.run.end
    if end is None:
        return rank.ended
    where = "" if end.batch_number is None else f" in batch {end.batch_number}"
    return f"{rank.ended}{where}, {_time(end.time_ns)}{f': {end.reason}' if end.reason else ''}"


def _frames_text(rank: RankSummary) -> str:
    because = "; ".join(why_missing(rank))
    return f"{_kept_text(rank.frames)}{f' ({because})' if because else ''}"


def _kept_text(kept: Kept) -> str:
    if kept.first is None:
        return "none kept"
    text = f"{kept.count} kept, {kept.first} to {kept.last}"
    if not kept.missing:
        return f"{text}, no gap"
    gaps = [str(gap.first) if gap.first == gap.last else f"{gap.first}-{gap.last}" for gap in kept.gaps]
    return f"{text}; {kept.missing} missing in {counted(kept.gap_count, 'gap')}: {_first(gaps)}"


def _first(items: Sequence[object]) -> str:
    return ", ".join([*map(str, items[:_SHOWN_GAPS]), *(["..."] if len(items) > _SHOWN_GAPS else [])])


_BY_RANK: Final[dict[str, Callable[[RankSummary], str]]] = {
    "ended": _end_text,
    "batches": lambda rank: _kept_text(rank.batches),
    "frames": _frames_text,
    "dtypes": lambda rank: ", ".join(rank.dtypes),
    "not seen": lambda rank: "; ".join(rank.run.notes),
}


def _time(time_ns: int) -> str:
    try:
        return datetime.fromtimestamp(time_ns // 10**9, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{time_ns} ns"


def _bytes(number: int) -> str:
    size, unit = float(number), 0
    while size >= _KILO and unit < len(_EPSILONS) - 1:
        size, unit = size / _KILO, unit + 1
    return f"{number} B" if unit == 0 else f"{size:.1f} {_EPSILONS[unit]}"
