"""The recorder's options as a dataclass, ready for ``DataclassArgumentParser``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from overflow_analyzer.format.columns import ROLES

OnNonfinite = Literal["raise", "warn", "ignore"]
_FORWARD_ROLES = ("weight", "buffer", "input", "output")
_RECORDABLE_ROLES = tuple(role for role in ROLES if role != "value")
_MINIMUM_BYTES = 64 * 1024


@dataclass
class RecorderArguments:
    """Options of the trace recorder; each field's help states its consequence."""

    _argument_group_name = "trace recorder"

    max_frames_to_save: int = field(
        default=21, metadata={"help": "Keep a window of this many frames; the report shows them before an inf/nan."}
    )
    trace_batch_nums: list[int] | None = field(
        default=None,
        metadata={"help": "Record these batches (0-based) whole. Detection is off, and other batches cost nothing."},
    )
    every_n_batches: int | None = field(
        default=None, metadata={"help": "Also record every n-th batch whole, from batch 0. Detection stays on."}
    )
    abort_after_batch_num: int | None = field(
        default=None, metadata={"help": "Stop the run when this batch's forward has ended."}
    )
    on_nonfinite: OnNonfinite = field(
        default="raise",
        metadata={"help": "At an inf/nan: raise (stop the run), warn once a module, or ignore (only record it)."},
    )
    roles: list[str] = field(
        default_factory=lambda: list(_FORWARD_ROLES),
        metadata={
            "help": f"Record these tensors of each module: {', '.join(_RECORDABLE_ROLES)}.",
            "choices": _RECORDABLE_ROLES,
            "metavar": "ROLE",
        },
    )
    statistics: Literal["extrema", "full"] = field(
        default="extrema",
        metadata={"help": "full adds zeros, subnormals, mean and root mean square of every tensor; it costs time."},
    )
    ignore: list[str] = field(
        default_factory=list,
        metadata={"help": "Ignore intended infinities, such as masks, by MODULE:CONTEXT patterns with * and ?."},
    )
    replay: bool = field(
        default=True,
        metadata={"help": "At an inf/nan that ends the run, run its module once more to name the operation and line."},
    )
    max_bytes: int | None = field(
        default=None, metadata={"help": "Keep the trace below this size; the oldest sampled batches are removed first."}
    )
    overwrite: bool = field(default=False, metadata={"help": "Replace an ended run's trace at the same path."})

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option has a value that means nothing; the message names it.
        """
        for name, least in (("max_frames_to_save", 1), ("every_n_batches", 1), ("abort_after_batch_num", 0)):
            optional = name != "max_frames_to_save"
            setattr(self, name, _check_integer(name, getattr(self, name), least, optional=optional))
        self.max_bytes = _check_integer("max_bytes", self.max_bytes, _MINIMUM_BYTES, optional=True)
        if self.trace_batch_nums is not None:
            self.trace_batch_nums = [_check_integer("trace_batch_nums", number, 0) for number in self.trace_batch_nums]
        _check_choice("on_nonfinite", self.on_nonfinite, get_args(OnNonfinite))
        _check_choice("statistics", self.statistics, ("extrema", "full"))
        self.roles = _names("roles", self.roles)
        for role in self.roles:
            _check_choice("roles", role, _RECORDABLE_ROLES)
        self.ignore = _names("ignore", self.ignore)
        for pattern in self.ignore:
            if ":" not in pattern:
                raise ValueError(f"ignore: {pattern!r} is not MODULE:CONTEXT, such as '*.attention:input[mask]'")

    def as_options(self) -> dict[str, Any]:
        """Return the options by name, as RunInfo stores them."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


def _check_integer(name: str, value: Any, least: int, *, optional: bool = False) -> Any:
    if optional and value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}: {value!r} is not an integer")
    if value < least:
        raise ValueError(f"{name}: {value} is less than {least}")
    return int(value)


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(choices)}")


def _names(name: str, value: Any) -> list[str]:
    if isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{name}: {value!r} is not a sequence of strings")
    return list(dict.fromkeys(value))
