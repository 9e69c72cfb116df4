"""What is known about a run: how it was started and recorded (``RunInfo``), and how it ended (``EndInfo``)."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from overflow_analyzer.errors import DamagedTraceError, UnknownVersionError
from overflow_analyzer.format.columns import FORMAT_VERSION
from overflow_analyzer.format.typed_json import build

HowEnded = Literal["closed", "detected", "aborted", "exception", "switched off", "killed", "still running", "unknown"]


def check_format_version(found: object, where: object) -> None:
    """Raise ``UnknownVersionError`` unless ``found`` is the version this package reads."""
    if found != FORMAT_VERSION:
        raise UnknownVersionError(
            f"{where}: format version {found!r} is not known here (this overflow-trace reads {FORMAT_VERSION}); "
            "install the overflow-trace that wrote it, or a newer one"
        )


@dataclass(frozen=True)
class EndInfo:
    """How a run ended, written when the recorder closes."""

    how: HowEnded
    time_ns: int
    """Wall clock, nanoseconds since 1970."""
    batch_number: int | None = None
    frame_number: int | None = None
    """Of the frame at which an inf/nan was detected."""
    reason: str | None = None
    """The exception that ended the run, or why the recorder switched itself off."""
    frames_seen: int | None = None
    """Frames of the whole run, kept or not."""
    frames_dropped: int = 0
    """Frames of selected batches that were given up because the disk was slower than the run."""
    parts_removed: int = 0
    """Sealed parts that ``max_bytes`` removed."""

    def to_json(self) -> str:
        """Return strict JSON; the keys are the fields' names."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> EndInfo | None:
        """Parse ``to_json``'s text; None where it is not such a text."""
        try:
            end: EndInfo = build(cls, json.loads(text))
        except (ValueError, TypeError, RecursionError):
            return None
        return end


@dataclass(frozen=True)
class RunInfo:
    """How one rank's run was started and what was asked of the recorder; stored in ``_run.json`` and in every part."""

    run_id: str
    rank: int
    world_size: int
    model_class: str
    started_ns: int
    """Wall clock, nanoseconds since 1970."""
    torch_version: str = ""
    python_version: str = ""
    recorder_version: str = ""
    hostname: str = ""
    process_id: int = 0
    command: tuple[str, ...] = ()
    """``sys.argv`` of the training process."""
    options: dict[str, Any] = field(default_factory=dict)
    """The recorder's options by name, as given to ``TraceRecorder``."""
    seeds: dict[str, Any] | None = None
    """What ``set_seed`` or ``enable_full_determinism`` had set, ready to set it again."""
    environment: dict[str, str] = field(default_factory=dict)
    """What changes numbers besides, at the start: the device, environment variables, torch's switches, by name."""
    optimizers: dict[str, dict[str, float]] = field(default_factory=dict)
    """By class, the numbers among the defaults of each optimizer whose step was seen, as ``lr`` and ``eps``."""
    notes: tuple[str, ...] = ()
    """Sentences on what the recorder could not see of the run, and why; written when it closes."""
    end: EndInfo | None = None
    format_version: int = FORMAT_VERSION

    def to_json(self) -> str:
        """Return the JSON text stored in the trace (strict JSON, keys are the fields' names)."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False, default=str)

    @classmethod
    def from_mapping(cls, found: object, where: object) -> RunInfo:
        """Build a RunInfo from parsed JSON; fields that a later minor release added are left out.

        Raises:
            UnknownVersionError: Another format version.
            DamagedTraceError: Not an object with a run's fields.
        """
        if not isinstance(found, dict) or "format_version" not in found:
            raise DamagedTraceError(f"{where}: does not describe a run")
        check_format_version(found["format_version"], where)
        words: dict[str, Any] = {
            name: [*map(str, found[name])] for name in ("command", "notes") if isinstance(found.get(name), list)
        }
        variables = found.get("environment")
        if isinstance(variables, dict):
            words["environment"] = {name: str(value) for name, value in variables.items()}
        try:
            run: RunInfo = build(cls, found | words)
        except TypeError as error:
            raise DamagedTraceError(f"{where}: does not describe a run ({error})") from None
        return run

    @classmethod
    def from_json(cls, text: str | bytes, where: object) -> RunInfo:
        """Parse ``to_json``'s text.

        Raises:
            UnknownVersionError: Another format version.
            DamagedTraceError: Not JSON, or not a run.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DamagedTraceError(f"{where}: is not JSON ({error})") from None
        return cls.from_mapping(found, where)
