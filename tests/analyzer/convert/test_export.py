"""Rows in other formats, read back by other readers."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import sys
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.convert.export import csv_pieces, json_lines, ranked_tables
from overflow_analyzer.convert.tensorboard import export_tensorboard
from overflow_analyzer.errors import MissingExtraError
from overflow_analyzer.format.columns import SINGLE_FILE_SCHEMA
from overflow_analyzer.trace.opening import Trace, open_trace
from tests.analyzer.commands import analyze, analyze_process
from tests.analyzer.samples import HOSTILE, INF, NAN, two_batches, write_clean, write_hostile, write_ranks
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from pathlib import Path

SPECIAL = [INF, -INF, NAN, 5e-324, 1e300, 0.0, 0.1, 6.27e4]


def one_row(tmp_path: Path, **changes: Any) -> Trace:
    return open_trace(write_trace(tmp_path / "run.parquet", [frame(0, 0, "a", tensor("output", "output", **changes))]))


@pytest.fixture(scope="module")
def special(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """A row for each special figure, and one without."""
    entries = [tensor("output", f"output[{at}]", value, value) for at, value in enumerate(SPECIAL)]
    frames = [frame(0, 0, "a", *entries, tensor("output", "none", abs_max=None))]  # type: ignore[arg-type]  # null
    return open_trace(write_trace(tmp_path_factory.mktemp("run") / "run.parquet", frames))


def same(value: float, other: float) -> bool:
    return struct.pack("<d", value) == struct.pack("<d", other) or (math.isnan(value) and math.isnan(other))


def test_csv_keeps_every_figure_apart(special: Trace) -> None:
    # GIVEN inf, -inf, nan, the smallest double and a null WHEN they are written as CSV and read by Python
    rows = list(csv.DictReader(io.StringIO("".join(csv_pieces(ranked_tables(special))))))

    # THEN each is itself, and only the null is empty
    assert all(same(float(row["abs_max"]), value) for row, value in zip(rows, SPECIAL, strict=False))
    assert [row["abs_max"] == "" for row in rows] == [False] * len(SPECIAL) + [True]


def test_json_lines_keep_every_figure_apart(special: Trace) -> None:
    rows = [json.loads(line, parse_constant=pytest.fail) for line in json_lines(ranked_tables(special))]
    assert all(same(float(row["abs_max"]), value) for row, value in zip(rows, SPECIAL, strict=False))
    assert [row["abs_max"] for row in rows[:3]] == ["inf", "-inf", "nan"]
    assert rows[-1]["abs_max"] is None


@given(value=st.floats())
def test_any_figure_survives_either_format(tmp_path_factory: pytest.TempPathFactory, value: float) -> None:
    trace = one_row(tmp_path_factory.mktemp("run"), abs_max=value)
    (row,) = csv.DictReader(io.StringIO("".join(csv_pieces(ranked_tables(trace)))))
    (line,) = json_lines(ranked_tables(trace))
    assert same(float(row["abs_max"]), value)
    assert same(float(json.loads(line)["abs_max"]), value)


@pytest.mark.parametrize(("shape", "text"), [((), "[]"), ((4,), "[4]"), ((4, 64, 0), "[4, 64, 0]"), (None, "")])
def test_shapes_in_csv(shape: tuple[int, ...] | None, text: str, tmp_path: Path) -> None:
    (row,) = csv.DictReader(io.StringIO("".join(csv_pieces(ranked_tables(one_row(tmp_path, shape=shape))))))
    assert row["shape"] == text


def test_the_columns_are_those_of_the_contract(special: Trace) -> None:
    header = next(csv_pieces(ranked_tables(special))).splitlines()[0]
    assert header.replace('"', "").split(",") == SINGLE_FILE_SCHEMA.names
    assert list(json.loads(next(json_lines(ranked_tables(special))))) == SINGLE_FILE_SCHEMA.names


@pytest.mark.parametrize(("rank", "ranks"), [(None, [0, 1, 3]), (1, [1])])
def test_ranks(rank: int | None, ranks: list[int], tmp_path: Path) -> None:
    trace = open_trace(write_ranks(tmp_path / "run.parquet"))
    rows = [json.loads(line) for line in json_lines(ranked_tables(trace, rank=rank))]
    assert sorted({row["rank"] for row in rows}) == ranks
    assert len(rows) == sum(trace.rank(one).rows for one in ranks)


def test_the_header_stands_once_however_many_pieces_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overflow_analyzer.convert.export._ROWS_A_PIECE", 3)
    pieces = list(csv_pieces(ranked_tables(open_trace(write_clean(tmp_path / "run.parquet")))))
    assert len(pieces) > 3
    assert "".join(pieces).count("batch_number") == 1


def test_pandas_reads_the_csv(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "run.parquet")
    analyze("export", path, "--to", "csv", "-o", tmp_path / "run.csv")
    table = pd.read_csv(tmp_path / "run.csv", keep_default_na=False, na_values={"abs_max": [""]})
    assert len(table) == 46
    assert list(table["module_name"].unique()) == ["embed", "head", ""]


def test_names_in_a_csv_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    ran = analyze("export", write_hostile(tmp_path / "run.parquet"), "--to", "csv", "-o", "-")
    assert not {"\x1b", "\u202e"} & set(ran.out)
    assert HOSTILE.encode("unicode_escape").decode()[:8] in ran.out


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_file_is_whole_and_not_replaced_unasked(kind: str, tmp_path: Path) -> None:
    path = write_clean(tmp_path / "run.parquet")
    target = tmp_path / "out"
    written = analyze("export", path, "--to", kind, "-o", target)
    assert written.out == f"{target}: {target.stat().st_size} bytes\n"
    assert target.read_text() == analyze("export", path, "--to", kind, "-o", "-").out
    assert analyze("export", path, "--to", kind, "-o", target).code == 2
    assert analyze("export", path, "--to", kind, "-o", target, "--overwrite").code == 0


def events(directory: Path) -> dict[str, dict[int, float]]:
    """Scalars by tag and step, read with tensorboardX's own protocol buffers."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    for path in sorted(directory.rglob("events.out.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                tag = f"{path.parent.relative_to(directory)}|{value.tag}"
                found.setdefault(tag, {})[event.step] = value.simple_value
    return found


def test_tensorboard_has_a_scalar_for_each_figure_and_batch(tmp_path: Path) -> None:
    # GIVEN ranks, one of them with a nan
    tables = ranked_tables(open_trace(write_ranks(tmp_path / "run.parquet")))

    # WHEN they are exported
    written = export_tensorboard(tables, tmp_path / "events")

    # THEN each rank and phase is a run, each figure a tag, each batch a step
    found = events(tmp_path / "events")
    assert found["rank=0/train|abs_max/embed.output"] == {0: 3.0, 1: 3.0}
    assert found["rank=0/train|abs_max/Model.output.logits"] == {0: 2.0, 1: 2.0}
    assert found["rank=1/train|nonfinite/embed.output"] == {2: 2.0}
    assert math.isnan(found["rank=1/train|abs_max/embed.output"][2])
    assert written == sum(map(len, found.values()))


def test_the_calls_of_a_module_are_told_apart(tmp_path: Path) -> None:
    frames = [frame(at, 0, "a", tensor("output", "output", 0, at), call_index=at, in_batch=at) for at in range(2)]
    tables = ranked_tables(open_trace(write_trace(tmp_path / "run.parquet", frames)))
    export_tensorboard(tables, tmp_path / "events")
    found = events(tmp_path / "events")
    assert found["rank=0/train|abs_max/a.output"] == {0: 0.0}
    assert found["rank=0/train|abs_max/a.output-call1"] == {0: 1.0}


def test_no_name_leads_out_of_the_directory(tmp_path: Path) -> None:
    # GIVEN a phase that is a path
    frames = [frame(0, 0, "../../x", tensor("output", "../y"), phase="../../../../evil")]
    tables = ranked_tables(open_trace(write_trace(tmp_path / "run.parquet", frames)))

    # WHEN it is exported
    export_tensorboard(tables, tmp_path / "in" / "events")

    # THEN everything lies where it was asked for
    files = list(tmp_path.rglob("events.out.*"))
    assert files
    assert all((tmp_path / "in" / "events").resolve() in one.resolve().parents for one in files)


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    path = write_clean(tmp_path / "run.parquet")
    assert analyze("export", path, "--to", "tensorboard", "-o", tmp_path / "events").code == 0
    ran = analyze("export", path, "--to", "tensorboard", "-o", tmp_path / "events")
    assert ran.code == 2
    assert "holds something already" in ran.err
    assert (
        analyze("export", path, "--to", "tensorboard", "-o", tmp_path / "run.parquet" / "rank=0" / "_run.json").code
        == 2
    )


def test_without_the_extra_one_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN no tensorboardX
    path = write_clean(tmp_path / "run.parquet")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)

    # WHEN it is needed
    ran = analyze("export", path, "--to", "tensorboard", "-o", tmp_path / "events")

    # THEN the line says how to get it, and nothing was made
    assert (ran.code, ran.out) == (MissingExtraError.exit_code, "")
    assert ran.err.endswith("pip install 'overflow-trace[tensorboard]'\n")
    assert not (tmp_path / "events").exists()


def test_torch_is_not_loaded_for_tensorboard(tmp_path: Path) -> None:
    # GIVEN a torch that says when it is imported
    path = write_clean(tmp_path / "run.parquet")
    (tmp_path / "torch.py").write_text("import sys; print('torch', file=sys.stderr)\n")
    ran = analyze_process("export", path, "--to", "tensorboard", "-o", tmp_path / "events", PYTHONPATH=str(tmp_path))
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("extra", [("--overwrite", "-o", "events"), ("-o", "-")])
def test_options_that_tensorboard_has_no_use_for(extra: tuple[str, ...], tmp_path: Path) -> None:
    assert analyze("export", write_clean(tmp_path / "run.parquet"), "--to", "tensorboard", *extra).code == 2


def test_a_rank_that_is_not_there(tmp_path: Path) -> None:
    ran = analyze("export", write_clean(tmp_path / "run.parquet"), "--to", "csv", "-o", tmp_path / "a", "--rank", 4)
    assert ran.code == 2
    assert not (tmp_path / "a").exists()


def test_what_is_exported_is_what_was_recorded(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "run.parquet", two_batches(), RUN)
    rows = [json.loads(line) for line in json_lines(ranked_tables(open_trace(path)))]
    expected = [
        (one.frame_number, one.module_name, entry.context, entry.abs_max)
        for one in two_batches()
        for entry in one.entries
    ]
    assert [(row["frame_number"], row["module_name"], row["context"], row["abs_max"]) for row in rows] == expected
