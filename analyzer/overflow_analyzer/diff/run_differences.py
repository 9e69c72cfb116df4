"""How two runs were started: command, options, versions, device, seeds, environment, dtypes, where they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.diff.model import RunDifference

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from overflow_analyzer.diff.model import StructureDifference
    from overflow_analyzer.format.run_info import RunInfo


_VERSIONS: Final = {"torch": "torch_version", "Python": "python_version", "overflow-trace": "recorder_version"}
_DEVICE: Final = "device"


def run_differences(a: RunInfo, b: RunInfo, structure: Iterable[StructureDifference]) -> tuple[RunDifference, ...]:
    """Return what of two runs differs before any number does.

    Args:
        a: Of A.
        b: Of B. What only one of them says is not compared, where an earlier recorder did not say it.
        structure: Of the comparison, for the dtypes.
    """
    if not a.run_id or not b.run_id:  # a file that another tool rewrote
        return ()
    return tuple(_differences(a, b, structure))


def _differences(a: RunInfo, b: RunInfo, structure: Iterable[StructureDifference]) -> Iterator[RunDifference]:
    if a.command and b.command and a.command != b.command:
        yield RunDifference("command", "", a.command, b.command)
    if a.model_class != b.model_class:
        yield RunDifference("model", "", a.model_class, b.model_class)
    if a.world_size != b.world_size:
        yield RunDifference("ranks", "", a.world_size, b.world_size)
    yield from _named("option", a.options, b.options, only=a.options.keys() & b.options.keys())
    for name, field in _VERSIONS.items():
        one, other = getattr(a, field), getattr(b, field)
        if one and other and one != other:
            yield RunDifference("version", name, one, other)
    both = bool(a.environment and b.environment)
    if both:
        yield from _named("device", a.environment, b.environment, only={_DEVICE})
    if a.optimizers and b.optimizers:
        yield from _named("optimizer", _optimizers(a), _optimizers(b))
    yield from _named("seed", _seeds(a), _seeds(b))
    yield from _dtypes(structure)
    if both:
        # What a version of torch does not know is not the other's choice.
        switches = {name for name in a.environment.keys() ^ b.environment.keys() if name.startswith("torch.")}
        names = (a.environment.keys() | b.environment.keys()) - switches - {_DEVICE}
        yield from _named("environment", a.environment, b.environment, only=names)


def _optimizers(run: RunInfo) -> dict[str, float]:
    return {f"{name} {default}": value for name, some in run.optimizers.items() for default, value in some.items()}


def _seeds(run: RunInfo) -> dict[str, Any]:
    """What was set, without what says that nothing was; the variables among it stand in the environment."""
    return {name: value for name, value in (run.seeds or {}).items() if value is not False and name != "environment"}


def _named(
    what: Any, a: Mapping[str, Any], b: Mapping[str, Any], *, only: Collection[str] | None = None
) -> Iterator[RunDifference]:
    for name in (*a, *(name for name in b if name not in a)):
        if (only is None or name in only) and a.get(name) != b.get(name):
            yield RunDifference(what, "" if name == what else name, a.get(name), b.get(name))


def _dtypes(structure: Iterable[StructureDifference]) -> Iterator[RunDifference]:
    pairs = dict.fromkeys((one.a, one.b) for one in structure if one.what == "dtype" and "none" not in (one.a, one.b))
    yield from (RunDifference("dtype", "", *pair) for pair in pairs)
