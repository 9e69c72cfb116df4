"""Kill recorded trainings at random moments, in varied configurations, and look for what their traces must hold.

``python -m tests.verification.soak --kills 200 [--seed S]`` prints a table; the exit status is 1 if a trace does not
open, or if a frame is lost, there twice, or other than in a run that nobody killed. Such a trace is kept as
``S-N``; with ``--seed S --first N --kills 1`` that kill is tried again. ``test_soak.py`` is the short form.
"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tabulate import tabulate

from overflow_analyzer.errors import TraceError
from tests.crew import Crew
from tests.integration.runs import FRAMES, Seen, warnings_in
from tests.recorder.recordings import EVERYTHING
from tests.verification.soak_checking import Acknowledged, Control, Figures, check_rank
from tests.verification.soak_training import EVENTS, batches_file, train

if TYPE_CHECKING:
    from tests.crew import Member

__all__ = ["CONFIGURATIONS", "PRELOADED", "Outcome", "soak", "table_of"]

PRELOADED: Final = ("torch._dynamo", "torch.optim", "tests.verification.soak_training")
"""What a training needs and imports only once it runs."""
_BATCHES: Final = 60
_NEVER: Final = 1 << 60
_FROM_OUTSIDE: Final = "SIGKILL by another process"
_HARD: Final = ("SIGKILL", "SIGTERM", "os._exit", "a segmentation fault", "os.abort")
_ANY: Final = (*_HARD, _FROM_OUTSIDE, "an exception", "sys.exit", "SIGINT", "SIGHUP", "SIGXCPU")
_MOST_EVENTS: Final = {"sealing": 12, "removing": 8, "closing": 8}
"""Of the last of these a process dies, if it comes to so many."""
_FORWARD: Final = ("weight", "buffer", "input", "output")
_MODES: Final[dict[str, dict[str, Any]]] = {
    "detection": {"max_frames_to_save": 10},
    "batches by number": {"trace_batch_nums": [*range(0, _BATCHES, 2)]},
    "every batch": {"every_n_batches": 1},
    "every third batch": {"every_n_batches": 3},
    "every batch, max_bytes": {"every_n_batches": 1, "max_bytes": 1 << 17},
}


class Configuration(NamedTuple):
    """What is recorded, and at which moments it is killed."""

    mode: str
    roles: str
    """"forward" or "all"."""
    ranks: int
    moment: str

    @property
    def options(self) -> dict[str, Any]:
        """The recorder's."""
        roles = EVERYTHING if self.roles == "all" else _FORWARD
        return {"max_frames_to_save": 21, "roles": list(roles), **_MODES[self.mode]}

    @property
    def control_options(self) -> dict[str, Any]:
        """Those of a run that measures the same frames and keeps all of them."""
        options = {key: value for key, value in self.options.items() if key != "max_bytes"}
        return options if "trace_batch_nums" in options else {**options, "every_n_batches": 1}


CONFIGURATIONS: Final = (
    Configuration("every batch", "forward", 1, "recording"),
    Configuration("detection", "forward", 1, "recording"),
    Configuration("every batch", "all", 1, "sealing"),
    Configuration("every batch, max_bytes", "all", 1, "removing"),
    Configuration("every batch", "forward", 2, "recording"),
    Configuration("every third batch", "all", 1, "closing"),
    Configuration("batches by number", "all", 1, "recording"),
    Configuration("detection", "all", 2, "recording"),
    Configuration("every third batch", "forward", 2, "sealing"),
    Configuration("every batch, max_bytes", "forward", 2, "removing"),
    Configuration("detection", "forward", 1, "closing"),
    Configuration("batches by number", "forward", 1, "sealing"),
    Configuration("every batch, max_bytes", "all", 1, "closing"),
)


@dataclass
class Outcome:
    """What became of all kills of one configuration."""

    configuration: Configuration
    kills: int = 0
    opened: int = 0
    figures: Figures = field(default_factory=Figures)
    complaints: list[str] = field(default_factory=list)
    """A sentence for each kill after which something was wrong."""


class _Soak:
    """Kills, one after the other, in a folder that each leaves as it was."""

    def __init__(self, crew: Crew, folder: Path, keep: Path) -> None:
        self._crew, self._folder, self._keep = crew, folder, keep
        self._controls: dict[str, Control] = {}

    def _control(self, configuration: Configuration) -> Control:
        options = configuration.control_options
        key = repr(options)
        if key not in self._controls:
            path = self._folder / f"control{len(self._controls)}.parquet"
            plan = {"options": options, "batches": _BATCHES, "moment": "recording", "at": _NEVER, "ending": ""}
            ended = self._crew.run(train, path, f"{path}.seen", plan)
            if ended.status or ended.output:
                raise RuntimeError(f"the control run failed: {ended.output}")
            self._controls[key] = Control(path, FRAMES)
            shutil.rmtree(path)
        return self._controls[key]

    def kill_once(self, outcome: Outcome, chance: random.Random, name: str) -> None:
        """Start a run, let it die, and add what its trace holds to an outcome."""
        configuration, work = outcome.configuration, self._folder / "work"
        control = self._control(configuration)
        work.mkdir()
        moment, ending = configuration.moment, chance.choice(_ANY if configuration.moment == "recording" else _HARD)
        at = chance.randrange(_MOST_EVENTS[moment]) if moment in EVENTS else chance.randrange(FRAMES * _BATCHES)
        plan = {"options": configuration.options, "batches": _BATCHES, "moment": moment, "ending": ending, "at": at}
        victim = chance.randrange(configuration.ranks)
        statuses = self._run(configuration.ranks, victim, plan, chance)
        if statuses[victim] == 0:  # it ended before its moment came
            shutil.rmtree(work)
            return
        outcome.kills += 1
        complaints = [f"rank {rank} ended with {one}" for rank, one in statuses.items() if one and rank != victim]
        complaints += self._warnings
        figures = Figures()
        try:
            for rank in range(configuration.ranks):
                figures += check_rank(work / "run.parquet", rank, control, self._said(rank), configuration.options)
            outcome.opened += 1
        except TraceError as error:
            complaints.append(f"it does not open: {error}")
        if figures.faults:
            complaints.append(f"{figures}")
        outcome.figures += figures
        if complaints:
            outcome.complaints.append(f"{name}, {', '.join(map(str, configuration))}, {ending} at {at}: {complaints}")
            self._keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(work, self._keep / name, dirs_exist_ok=True)
        shutil.rmtree(work)

    def _run(self, ranks: int, victim: int, plan: dict[str, Any], chance: random.Random) -> dict[int, int]:
        """Run to the end of all ranks and return their exit statuses."""
        living = {**plan, "moment": "recording", "at": _NEVER}
        outside = plan["ending"] == _FROM_OUTSIDE
        members: dict[int, Member] = {}
        for rank in range(ranks):
            mine = living if rank != victim or outside else plan
            environment = {"RANK": str(rank), "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
            path = self._folder / "work" / "run.parquet"
            members[rank] = self._crew.start(train, path, self._seen(rank), mine, **environment)
        if outside:
            counted = Seen(self._seen(victim))
            members[victim].wait_until(lambda: counted.frames >= min(plan["at"], FRAMES * _BATCHES // 2))
            time.sleep(chance.random() / 100)
            members[victim].kill()
        ended = {rank: member.wait() for rank, member in members.items()}
        self._warnings = [line for one in ended.values() for line in warnings_in(one.output)]
        return {rank: one.status for rank, one in ended.items()}

    def _seen(self, rank: int) -> Path:
        return self._folder / "work" / f"seen{rank}"

    def _said(self, rank: int) -> Acknowledged:
        return Acknowledged(Seen(self._seen(rank)).frames, Seen(batches_file(self._seen(rank))).frames)


def soak(kills: int, seed: int, crew: Crew, keep: Path, first: int = 0) -> list[Outcome]:
    """Kill so often, each configuration in turn.

    Args:
        kills: In all.
        seed: The same seed tries the same kills.
        crew: Starts the processes.
        keep: Where a trace is kept with which something is wrong.
        first: Number of the first kill.
    """
    outcomes = [Outcome(configuration) for configuration in CONFIGURATIONS]
    with tempfile.TemporaryDirectory() as folder:
        at_work = _Soak(crew, Path(folder), keep)
        for number in itertools.count(first):
            left = kills - sum(outcome.kills for outcome in outcomes)
            if left <= 0:
                break
            chance = random.Random(f"{seed}:{number}")
            at_work.kill_once(outcomes[number % len(outcomes)], chance, f"{seed}-{number}")
            if sys.stderr.isatty():
                print(f"{left} to go ", end="\r", file=sys.stderr, flush=True)
    return outcomes


def table_of(outcomes: list[Outcome]) -> str:
    """Return a table with a line for each configuration, and one for all."""
    names = [name.name.replace("_", " ") for name in fields(Figures)]
    rows: list[list[Any]] = [[*one.configuration, one.kills, one.opened, *astuple(one.figures)] for one in outcomes]
    total = Figures()
    for one in outcomes:
        total += one.figures
    kills, opened = sum(one.kills for one in outcomes), sum(one.opened for one in outcomes)
    rows.append(["all", "", "", "", kills, opened, *astuple(total)])
    headers = ["mode", "roles", "ranks", "killed while", "kills", "opened", *names]
    return tabulate(rows, headers, tablefmt="github")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="tries the same kills again")
    parser.add_argument("--first", type=int, default=0, help="number of the first kill")
    parser.add_argument("--keep", type=Path, default=Path("soak-failures"), help="where traces are kept that are wrong")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    print(f"{arguments.kills} kills, seed {seed}", flush=True)
    with Crew(*PRELOADED) as crew:
        outcomes = soak(arguments.kills, seed, crew, arguments.keep, arguments.first)
    print(table_of(outcomes))
    complaints = [complaint for outcome in outcomes for complaint in outcome.complaints]
    for complaint in complaints:
        print(complaint)
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
