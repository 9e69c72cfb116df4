"""From a module's call to a frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from overflow_recorder import NonFiniteError
from tests.recorder.recordings import (
    Forward,
    PlainRecorder,
    as_expected,
    entry,
    expected_rows,
    record,
    recording,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

X = torch.tensor([[-9.0, 1.0]])


def names(frames: list[Any]) -> list[str]:
    return [frame.module_name for frame in frames]


class Mixed(nn.Module):
    """A bit of everything: nesting, keywords, buffers, sharing, several dtypes, None, values that are no tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.norm = nn.BatchNorm1d(8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.shared = nn.Linear(8, 8)
        self.stack = nn.Sequential(self.shared, nn.ReLU(inplace=True), nn.Dropout(0.5), self.shared)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = Forward(lambda x, scale: {"logits": x * scale, "parts": [x.half(), (x.bfloat16(), None)], "n": 3})

    def forward(self, ids: torch.Tensor, *, mask: torch.Tensor, flag: bool = True) -> Any:
        x = self.embed(ids)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        x, _ = self.lstm(x)
        x = self.stack(x)
        x, weights = self.attention(x, x, x, key_padding_mask=mask, need_weights=True)
        return self.head(x, scale=torch.tensor(float("inf"))), weights, flag


@pytest.mark.parametrize("training", [True, False])
def test_every_row_agrees_with_a_plain_computation(training: bool, tmp_path: Path) -> None:
    # GIVEN the same model, inputs and seed, once under plain hooks
    ids, mask = torch.arange(12).reshape(2, 6) % 10, torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    torch.manual_seed(0)
    plain = Mixed().train(training)
    oracle = PlainRecorder(plain)
    for _ in range(2):
        plain(ids, mask=mask)

    # WHEN
    torch.manual_seed(0)
    model = Mixed().train(training)

    def run() -> None:
        for _ in range(2):
            model(ids, mask=mask)

    frames = record(model, tmp_path / "run", run)

    # THEN
    assert names(frames) == [name for name, _ in oracle.frames]
    for frame, (_, rows) in zip(frames, oracle.frames, strict=True):
        assert as_expected(frame) == expected_rows(rows), frame.module_name


def test_a_module_used_twice_has_two_frames_under_its_first_name(tmp_path: Path) -> None:
    # GIVEN
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Linear(2, 2), relu)

    # WHEN
    frames = record(model, tmp_path / "run", lambda: model(X))

    # THEN
    assert [(frame.module_name, frame.call_index) for frame in frames] == [("0", 0), ("1", 0), ("0", 1), ("", 0)]


def test_inputs_are_those_from_before_a_forward_that_changes_them(tmp_path: Path) -> None:
    # WHEN
    model = nn.ReLU(inplace=True)
    (frame,) = record(model, tmp_path / "run", lambda: model(X.clone()))

    # THEN
    assert (entry(frame, "input[0]").abs_min, entry(frame, "input[0]").abs_max) == (1.0, 9.0)
    assert (entry(frame, "output").abs_min, entry(frame, "output").abs_max) == (0.0, 1.0)


def test_a_buffer_that_nothing_shows_is_found(tmp_path: Path) -> None:
    # GIVEN a running variance of nan: in train mode all outputs are fine
    model = nn.BatchNorm1d(2)
    model.running_var.fill_(float("nan"))  # type: ignore[union-attr]

    # WHEN
    with pytest.raises(NonFiniteError, match=r"running_var of the root module \(BatchNorm1d\), batch 0"):
        record(model, tmp_path / "run", lambda: model(torch.randn(4, 2)), on_nonfinite="raise")


@dataclass
class Pair:
    first: Any
    second: Any


class Custom:
    tensor = X


def test_every_tensor_of_a_nested_output_is_named(tmp_path: Path) -> None:
    # GIVEN
    model = Forward(lambda x: {"a": [x, {"b": Pair(x, None)}], "c": Custom(), "d": "text"})

    # WHEN
    (frame,) = record(model, tmp_path / "run", lambda: model(X))

    # THEN
    assert [(one.context, one.kind) for one in frame.of_roles("output")] == [
        ("output[a][0]", "tensor"),
        ("output[a][1][b][first]", "tensor"),
        ("output[a][1][b][second]", "none"),
        ("output[c]", "other"),
        ("output[d]", "other"),
    ]


@pytest.mark.parametrize(
    ("count", "kept", "note"), [(300, 300, None), (5000, 500, "4500 more values are not recorded")]
)
def test_wide_outputs(count: int, kept: int, note: str | None, tmp_path: Path) -> None:
    # WHEN
    model = Forward(lambda x: [x] * count)
    (frame,) = record(model, tmp_path / "run", lambda: model(X))

    # THEN
    rows = frame.of_roles("output")
    assert [one.context for one in rows if one.kind == "tensor"] == [f"output[{number}]" for number in range(kept)]
    assert [one.note for one in rows if one.kind == "other"] == ([note] if note else [])


def test_a_frame_wide_in_every_part_is_bounded_and_says_so(tmp_path: Path) -> None:
    # GIVEN
    model = Forward(lambda *values: values)
    for number in range(700):
        model.register_parameter(f"weight_{number}", nn.Parameter(torch.ones(1)))

    # WHEN
    (frame,) = record(model, tmp_path / "run", lambda: model(*[X] * 400))

    # THEN
    assert len(frame.entries) == 1000
    assert frame.entries[-1].note == "at least 501 more values are not recorded"


def test_a_small_budget_of_bytes_keeps_the_frame_and_says_what_is_missing(tmp_path: Path) -> None:
    model = Forward(lambda x: [x] * 100)
    frames = record(model, tmp_path / "run", lambda: model(X), max_bytes=64 * 1024)
    assert any("more values are not recorded" in (one.note or "") for frame in frames for one in frame.entries)


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> None:
        raise LookupError("no such row")


def test_a_forward_that_raises_is_a_frame_that_says_so(tmp_path: Path) -> None:
    # GIVEN a model that goes on without the part that failed
    def forward(first: nn.Module, failing: nn.Module, x: torch.Tensor) -> Any:
        try:
            return failing(first(x))
        except LookupError:
            return first(x)

    model = Forward(forward, nn.Linear(2, 2), Failing())

    # WHEN
    frames = record(model, tmp_path / "run", lambda: model(X))

    # THEN
    assert names(frames) == ["0", "1", "0", ""]
    (output,) = frames[1].of_roles("output")
    assert (output.context, output.kind, output.note) == ("output", "other", "forward raised LookupError")
    assert entry(frames[1], "input[0]").abs_max == entry(frames[0], "output").abs_max
    assert [one.note for one in frames[2].entries] == [None] * 4


def test_when_the_root_raises_the_batch_has_ended(tmp_path: Path) -> None:
    # GIVEN
    model = Forward(lambda inner, x: inner(x), Failing())

    def run() -> None:
        for _ in range(2):
            with pytest.raises(LookupError, match="no such row"):
                model(X)

    # WHEN
    frames = record(model, tmp_path / "run", run)

    # THEN
    assert [(frame.batch_number, frame.module_name, frame.call_index) for frame in frames] == [
        (0, "0", 0),
        (0, "", 0),
        (1, "0", 0),
        (1, "", 0),
    ]
    assert all(frame.of_roles("output")[0].note == "forward raised LookupError" for frame in frames)


def test_a_forward_that_returns_none_while_its_caller_handles_an_exception(tmp_path: Path) -> None:
    # GIVEN
    def forward(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
        try:
            int("x")
        except ValueError:
            inner(x)
        return x

    model = Forward(forward, Forward(lambda x: None))

    # THEN it has not raised
    frames = record(model, tmp_path / "run", lambda: model(X))
    (output,) = frames[0].of_roles("output")
    assert (output.kind, output.note) == ("none", None)


@pytest.mark.parametrize("abort", [None, 0])
def test_an_exception_reaches_the_caller_as_it_is(abort: int | None, tmp_path: Path) -> None:
    # GIVEN a forward that raises when it finds the nan that the recorder would raise for
    class Checking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.isnan().any():
                raise FloatingPointError("nan")
            return x

    model = nn.Sequential(Checking())

    # WHEN, THEN
    with pytest.raises(FloatingPointError, match=r"^nan$") as raised:
        record(
            model, tmp_path / "run", lambda: model(X * float("nan")), on_nonfinite="raise", abort_after_batch_num=abort
        )
    assert raised.value.__context__ is None
    assert not model[0]._forward_hooks


def test_the_report_is_printed_where_a_forward_raises_at_a_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Forward(lambda x: {}[x])
    with pytest.raises(KeyError):
        record(model, tmp_path / "run", lambda: model(X * float("nan")), on_nonfinite="raise")
    assert "Detected inf/nan during batch_number=0" in capsys.readouterr().out


@pytest.mark.parametrize("statistics", ["extrema", "full"])
def test_a_callback_is_given_the_frames_that_the_trace_has(statistics: str, tmp_path: Path) -> None:
    # GIVEN inputs and outputs of every kind: no tensor, no element, no value, not finite, intended, of many dimensions
    class Keep:
        frames: ClassVar[list[Any]] = []

        def on_frame(self, recorder: Any, event: Any) -> None:
            self.frames.append(event.frame)

    def forward(inner: Any, x: torch.Tensor, *rest: Any) -> Any:
        return [inner(x), None, "text", x[:0], x.to("meta"), x / 0, x.sqrt(), x[(None,) * 9], x.bfloat16()]

    model = Forward(forward, nn.BatchNorm1d(2))

    # WHEN
    def run() -> None:
        for _ in range(2):
            model(torch.cat([X, X * 2]).requires_grad_(), {"a": 1})[0].sum().backward()

    roles = ("weight", "buffer", "input", "output", "weight_grad")
    options = {"statistics": statistics, "ignore": ["0:output"], "roles": roles, "callbacks": [Keep]}
    frames = record(model, tmp_path / "run", run, **options)

    # THEN field by field (nan is nan)
    assert len(frames) == 8
    assert list(map(repr, Keep.frames)) == list(map(repr, frames))


def test_a_recorder_that_a_callback_closes_while_a_forward_raises(tmp_path: Path) -> None:
    # GIVEN
    class Close:
        def on_frame(self, recorder: Any, event: Any) -> None:
            recorder.close()

    model = Forward(lambda inner, x: inner(x), Failing())
    with pytest.raises(LookupError, match="no such row"), recording(model, tmp_path / "run", callbacks=[Close]):
        model(X)

    # THEN the next forward is as if there had never been a recorder
    with pytest.raises(LookupError, match="no such row"):
        model(X)
    assert not model._forward_hooks


def replicated(module: nn.Module) -> Any:
    """A replica as DataParallel makes one."""
    return module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def test_a_replica_has_the_originals_name_and_weights_of_its_own(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Sequential(nn.Linear(2, 2))
    replica = replicated(model[0])
    replica.weight, replica.bias = torch.full((2, 2), 3.0), torch.full((2,), 4.0)

    def run() -> None:
        attached = replicated(model[0])
        attached.weight, attached.bias = replica.weight, replica.bias
        attached(X)

    # WHEN
    (frame,) = record(model, tmp_path / "run", run)

    # THEN
    assert (frame.module_name, frame.module_class) == ("0", "Linear")
    assert (entry(frame, "weight").abs_max, entry(frame, "bias").abs_max) == (3.0, 4.0)


def test_replicas_of_the_root_do_not_count_batches(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)

    def run() -> None:
        for _ in range(2):
            replica = replicated(model)
            replica.weight, replica.bias = model.weight, model.bias
            replica(X)
        model(X)

    # THEN
    assert [frame.batch_number for frame in record(model, tmp_path / "run", run)] == [0, 0, 0]


def test_a_root_that_calls_itself_is_one_batch(tmp_path: Path) -> None:
    # GIVEN
    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.linear(x) if len(x) == 1 else torch.cat([self(part) for part in x.chunk(2)])

    model = Halving()

    # WHEN
    def run() -> None:
        for _ in range(2):
            model(torch.randn(4, 2))

    frames = record(model, tmp_path / "run", run)

    # THEN
    assert [frame.batch_number for frame in frames] == [0] * 11 + [1] * 11
    assert names(frames[:11]) == ["linear", "", "linear", "", "", "linear", "", "linear", "", "", ""]
    assert [frame.call_index for frame in frames[:11] if frame.module_name == ""] == list(range(7))


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("depth", ["root", "child"])
def test_an_interrupted_forward_is_a_batch_and_the_next_one_is_whole(
    depth: str, measured: bool, tmp_path: Path
) -> None:
    # GIVEN
    interrupt = [True]

    def forward(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if interrupt and interrupt.pop():
            raise KeyboardInterrupt
        return linear(x)  # type: ignore[no-any-return]

    model = Forward(forward, nn.Linear(2, 2))
    model = model if depth == "root" else Forward(lambda inner, x: inner(x), model)

    # WHEN
    def run() -> None:
        with pytest.raises(KeyboardInterrupt):
            model(X)
        model(X)

    options = {} if measured else {"every_n_batches": None, "trace_batch_nums": [1]}
    frames = record(model, tmp_path / "run", run, **options)

    # THEN
    expected = ["0", ""] if depth == "root" else ["0.0", "0", ""]
    assert [(frame.batch_number, frame.module_name) for frame in frames] == [(1, name) for name in expected]
    assert [frame.call_index for frame in frames] == [0] * len(expected)


def test_what_another_hook_makes_of_the_input_is_what_the_forward_was_given(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)

    def run() -> None:
        model.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        model(X)

    # THEN
    (frame,) = record(model, tmp_path / "run", run)
    assert entry(frame, "input[0]").abs_max == 18.0


def test_a_module_that_was_entered_before_measuring_began(tmp_path: Path) -> None:
    # GIVEN a loop that says in the middle of a forward which batch it is
    def forward(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
        recorder.begin_batch(3)
        return linear(x)  # type: ignore[no-any-return]

    model = Forward(forward, nn.Linear(2, 2))

    # WHEN
    with recording(model, tmp_path / "run", every_n_batches=None, trace_batch_nums=[3]) as (recorder, frames):
        model(X)

    # THEN
    assert [(frame.batch_number, frame.module_name) for frame in frames] == [(3, "0"), (3, "")]
    assert entry(frames[1], "input[0]").abs_max == 9.0


def test_only_roles_that_were_asked_for(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    frames = record(model, tmp_path / "run", lambda: model(torch.randn(3, 2)), roles=["output"])
    assert {one.role for frame in frames for one in frame.entries} == {"output"}
    frames = record(model, tmp_path / "weights", lambda: model(torch.randn(3, 2)), roles=["weight", "buffer"])
    assert [(frame.module_name, one.context) for frame in frames for one in frame.entries] == [
        ("0", context) for context in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ]


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 4),
    "relu": lambda: nn.ReLU(inplace=True),
    "norm": lambda: nn.LayerNorm(4),
    "dropout": lambda: nn.Dropout(0.5),
    "batchnorm": lambda: nn.BatchNorm1d(4),
    "block": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
    "overflow": lambda: Forward(lambda x: x * 1e38 * 1e38),
}


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_any_chain_agrees_with_a_plain_computation(
    layers: list[str], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # GIVEN
    def made() -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(*(LAYERS[layer]() for layer in layers))

    plain = made()
    oracle = PlainRecorder(plain)
    plain(torch.randn(3, 4))

    # WHEN
    model = made()
    path = tmp_path_factory.mktemp("chain") / "run"
    frames = record(model, path, lambda: model(torch.randn(3, 4)))

    # THEN
    assert [(frame.module_name, as_expected(frame)) for frame in frames] == [
        (name, expected_rows(rows)) for name, rows in oracle.frames
    ]
