"""A cause is claimed only where it is the right one: over a table of small trainings whose cause is known.

The table is ``failures``. Each script is recorded until the recorder raises and runs the origin module again
("replayed"), and whole without a replay ("traced"). A part is also recorded while the recorder only warns ("warned").
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
import torch

from overflow_analyzer import find_first_nonfinite, open_trace
from overflow_analyzer.first_nonfinite.causes import CAUSES
from overflow_recorder import NonFiniteError, NonFiniteWarning, TraceRecorder
from tests.analyzer.commands import analyze
from tests.integration.failures import ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from overflow_analyzer import Finding
    from tests.integration.failures import Row

MODES: Final[dict[str, dict[str, Any]]] = {
    "replayed": {},
    "traced": {"every_n_batches": 1, "on_nonfinite": "ignore"},
    "warned": {"on_nonfinite": "warn", "max_frames_to_save": 64},
}
WARNED_ONE_IN: Final = 4
SURENESS: Final = ("unknown", "possible", "likely", "certain")
DOCUMENTED: Final = Path(__file__).parents[2] / "docs" / "causes.md"


class Answer(NamedTuple):
    """What the product says of a script."""

    name: str
    row: Row
    cause: str
    confidence: str
    place: str
    batch: int
    operation_seen: bool

    @property
    def claimed(self) -> bool:
        return self.confidence in ("likely", "certain")

    @property
    def right(self) -> bool:
        return self.cause in self.row.right

    @property
    def right_place(self) -> bool:
        places = (self.row.place,) if self.operation_seen else (self.row.place, self.row.seen)
        return self.place in places and self.batch == self.row.batch

    def __str__(self) -> str:
        where = f"{self.place!r}, batch {self.batch}"
        return f"{self.name}: {self.cause} ({self.confidence}), {where}; right is {self.row.right}, {self.row.place!r}"


def finding_of(row: Row, path: Path, mode: str) -> Finding | None:
    @contextlib.contextmanager
    def record(model: nn.Module, **options: Any) -> Iterator[TraceRecorder]:
        with contextlib.suppress(NonFiniteError), TraceRecorder(model, path, **{**MODES[mode], **options}) as recorder:
            yield recorder

    with torch.random.fork_rng(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFiniteWarning)
        warnings.filterwarnings("ignore", "std|var")  # one sample has none: that is the point
        torch.manual_seed(0)
        row.script(record)
    return find_first_nonfinite(open_trace(path))


def answer(name: str, path: Path, mode: str) -> Answer:
    row, finding = ROWS[name], finding_of(ROWS[name], path, mode)
    if finding is None:
        return Answer(name, row, "nothing", "certain", row.place, row.batch, operation_seen=False)
    operation = None if finding.replay is None else finding.replay.operation
    place = (finding.origin or finding.frame).module_name if operation is None else operation.module_name
    cause, batch = finding.cause, finding.frame.batch_number
    return Answer(name, row, cause.name, cause.confidence, place, batch, operation is not None)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Answer]]:
    directory = tmp_path_factory.mktemp("failures")
    return {
        mode: [
            answer(name, directory / f"{mode}-{position}.parquet", mode)
            for position, name in enumerate(ROWS)
            if mode != "warned" or position % WARNED_ONE_IN == 0
        ]
        for mode in MODES
    }


def matrix(answers: dict[str, list[Answer]]) -> str:
    """The confusion matrix, without its zeros: what was named for each right cause, and how often."""

    def named(mode: str, cause: str) -> str:
        of_cause = [one for one in answers[mode] if one.row.right[0] == cause]
        counts = Counter(one.cause if one.claimed or one.cause == "unknown" else f"{one.cause}?" for one in of_cause)
        return ", ".join(f"{name} {count}" for name, count in counts.most_common())

    causes = sorted({row.right[0] for row in ROWS.values()}, key=(*CAUSES, "nothing").index)
    lines = ["| right cause | scripts | named after a replay | named without |", "|---|---|---|---|"]
    for cause in causes:
        scripts = sum(row.right[0] == cause for row in ROWS.values())
        lines.append(f"| {cause} | {scripts} | {named('replayed', cause)} | {named('traced', cause)} |")
    return "\n".join(lines) + "\n"


def test_each_cause_has_scripts_that_have_it_and_scripts_that_look_like_it() -> None:
    own = Counter(row.right[0] for row in ROWS.values())
    alike = Counter(cause for row in ROWS.values() for cause in row.looks_like)
    assert len(ROWS) >= 120
    assert {cause for cause in CAUSES if own[cause] < 3 or (alike[cause] < 3 and cause != "unknown")} == set()
    assert not {name for name, row in ROWS.items() if set(row.looks_like) & set(row.right)}


def test_no_cause_is_claimed_but_the_right_one(answers: dict[str, list[Answer]]) -> None:
    print(matrix(answers))
    every = [one for mode in MODES for one in answers[mode]]
    assert [str(one) for one in every if one.claimed and not one.right] == []
    assert [str(one) for one in every if one.right and not one.right_place] == []


def test_where_the_operation_was_seen_nine_in_ten_are_claimed_and_right(answers: dict[str, list[Answer]]) -> None:
    seen = [one for one in answers["replayed"] if one.operation_seen]
    assert len(seen) >= 90
    assert sum(one.claimed and one.right for one in seen) >= 0.9 * len(seen)


@pytest.mark.parametrize("mode", ["traced", "warned"])
def test_without_a_replay_the_claims_are_more_modest(answers: dict[str, list[Answer]], mode: str) -> None:
    too_sure = [
        str(one)
        for one in answers[mode]
        if one.cause not in ("nothing", "unknown") and SURENESS.index(one.confidence) > SURENESS.index(one.row.at_most)
    ]
    assert too_sure == []


def test_the_page_of_causes_shows_the_matrix(answers: dict[str, list[Answer]], request: pytest.FixtureRequest) -> None:
    page, shown = DOCUMENTED.read_text(encoding="utf-8"), matrix(answers)
    table = re.compile(r"^\| right cause.*?(?=\n\n)", re.MULTILINE | re.DOTALL)
    if request.config.getoption("--overwrite"):
        page = table.sub(shown.strip(), page)
        DOCUMENTED.write_text(page, encoding="utf-8")
    found = table.search(page)
    assert found is not None
    assert found.group() == shown.strip()


# --- what is absorbed


def test_a_healthy_training_exits_with_0_and_the_advice_makes_its_trace_clean(tmp_path: Path) -> None:
    # GIVEN a causal mask that is absorbed
    path = tmp_path / "trace.parquet"
    row = ROWS["a healthy encoder under a causal mask"]
    finding = finding_of(row, path, "traced")
    assert finding is not None
    assert analyze("report", path).code == 0
    assert '"*:input[*mask]"' in finding.cause.next_step  # for all arguments of the encoder's parts

    # WHEN the recorder is told what the explanation says
    advice = finding.cause.next_step.partition("`ignore=(")[2].partition(")`")[0]
    ignore = [one.strip('" ') for one in advice.split(",") if one.strip()]
    again = row._replace(script=lambda record: row.script(lambda model: record(model, ignore=ignore)))

    # THEN nothing is left to find
    assert finding_of(again, tmp_path / "again.parquet", "traced") is None


def test_what_was_absorbed_before_a_fault_is_not_acquitted(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    finding_of(ROWS["a feed-forward overflows under a causal mask that its attention absorbs"], path, "traced")
    report = analyze("report", path)
    assert report.code == 1
    assert "what took it in gave only finite values out" in report.out
    assert "not the fault" not in report.out
    assert "ignore=" not in report.out
