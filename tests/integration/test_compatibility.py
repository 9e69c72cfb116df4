"""Each deviation from transformers' ``DebugUnderflowOverflow`` that ``docs/compatibility.md`` lists, shown on both."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import pickle
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from overflow_recorder import BatchLimitReached, NonFiniteError, RecorderWarning, TraceRecorder
from tests.integration.debuggers import Forward, Ours, Upstream, both, watch

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENT = Path(__file__).parents[2] / "docs" / "compatibility.md"
X = torch.ones(1, 2)
INF = X * float("inf")


def modules_in(text: str) -> list[str]:
    """The names in frame headers, in order."""
    return re.findall(r"^ {18}(?!\*)(\S*) \S+$", text, re.MULTILINE)


def test_every_deviation_is_listed_and_every_listed_one_is_shown() -> None:
    headings = re.findall(r"^### (.*)$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    slugs = {"test_" + heading.lower().replace(" ", "_").replace(",", "") for heading in headings}
    tests = {name for name in globals() if name.startswith("test_")}
    assert tests - {"test_every_deviation_is_listed_and_every_listed_one_is_shown"} == slugs


# Numbers that were wrong.


def test_batch_number_of_the_root_frame() -> None:
    # GIVEN a root whose own arithmetic overflows in batch 1, its child being finite
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.child(x) * 1e30  # type: ignore[no-any-return]

    # WHEN both watch it
    upstream, ours = both(Root, [(X,), (X * 1e20,)])
    # THEN theirs counts one too many, and nothing else differs
    assert "Detected inf/nan during batch_number=2\n" in upstream.text
    assert "Detected inf/nan during batch_number=1\n" in ours.text
    assert ours.text == upstream.text.replace("batch_number=2", "batch_number=1")


def test_window_after_a_traced_batch() -> None:
    # GIVEN ten batches of three frames; a window of two
    def make() -> nn.Module:
        return nn.Sequential(nn.Identity(), nn.Identity())

    # WHEN theirs has traced batch 0, THEN its window is a list that holds all that came later
    model = make()
    theirs = Upstream(model, max_frames_to_save=2, trace_batch_nums=[0])
    with contextlib.redirect_stdout(io.StringIO()):
        for _ in range(10):
            model(X)
    assert len(theirs.frames) == 9 * 3
    # Ours keeps two frames, all the while that it measures; sampled batches are what is traced with detection on.
    from overflow_recorder import TraceRecorder

    windows: list[int] = []

    class Listen:
        def on_nonfinite(self, recorder: object, event: Any) -> None:
            windows.append(len(event.window))

    model = make()
    with TraceRecorder(
        model, None, max_frames_to_save=2, every_n_batches=1, on_nonfinite="ignore", callbacks=[Listen()]
    ):
        for _ in range(9):
            model(X)
        model(INF)
    assert windows
    assert set(windows) == {2}


def test_alarm_left_over_from_a_traced_batch() -> None:
    # GIVEN an inf in batch 0, which is traced, and a finite batch 1
    upstream, ours = both(nn.Identity, [(INF,), (X,)], trace_batch_nums=[0])
    # THEN theirs stops in the finite batch
    assert upstream.batches == 1
    assert "Detected inf/nan" in upstream.text
    assert (ours.error, ours.batches) == (None, 2)
    assert "Detected inf/nan" not in ours.text


def test_detection_in_batches_that_are_not_traced() -> None:
    # GIVEN an inf in batch 0, while batch 1 is traced
    upstream, ours = both(nn.Identity, [(INF,), (X,)], trace_batch_nums=[1])
    # THEN theirs raises in batch 0 and never comes to batch 1
    assert upstream.batches == 0
    assert isinstance(upstream.error, ValueError)
    assert (ours.error, ours.batches) == (None, 2)
    assert "has infs" not in ours.text
    assert "*** Starting batch number=1 ***" in ours.text


def test_absolute_value_of_the_smallest_integer() -> None:
    values = torch.tensor([-128, 5], dtype=torch.int8)
    upstream, ours = both(nn.Identity, [(values,)], trace_batch_nums=[0])
    assert "-1.28e+02 5.00e+00 input[0]" in upstream.text
    assert "5.00e+00 1.28e+02 input[0]" in ours.text


def test_recomputed_forwards() -> None:
    # GIVEN a child under activation checkpointing, trained for two batches, of which the second is traced
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.child, x, use_reentrant=False).relu()  # type: ignore[no-any-return]

    def trained(debugger: Any) -> str:
        model = Checkpointed()
        return watch(debugger, model, [lambda: model(X).sum().backward()] * 2, trace_batch_nums=[1]).text

    # WHEN both watch, THEN theirs has the backward of batch 0 in batch 1, cut before its output
    assert modules_in(trained(Upstream)) == ["child", "child", ""]
    ours = trained(Ours)
    assert modules_in(ours) == ["child", ""]
    assert ours.count(" output\n") == 2


# Models that it could not run.

AWKWARD = {
    "bool": torch.tensor([True, False]),
    "uint16": torch.tensor([3, 7]).to(torch.uint16),
    "uint32": torch.tensor([3, 7]).to(torch.uint32),
    "uint64": torch.tensor([3, 7]).to(torch.uint64),
    "float8_e4m3fn": torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn),
    "float8_e5m2": torch.tensor([0.5, 2.0]).to(torch.float8_e5m2),
    "sparse": torch.tensor([0.0, 2.0]).to_sparse(),
    "meta": torch.empty(2, device="meta"),
    "empty": torch.empty(0),
}
AWKWARD_LINES = {
    "bool": "0.00e+00 1.00e+00",
    "uint16": "3.00e+00 7.00e+00",
    "uint32": "3.00e+00 7.00e+00",
    "uint64": "3.00e+00 7.00e+00",
    "float8_e4m3fn": "5.00e-01 2.00e+00",
    "float8_e5m2": "5.00e-01 2.00e+00",
    "sparse": "0.00e+00 2.00e+00",
    "meta": "        no values",
    "empty": "            empty",
}


@pytest.mark.parametrize("kind", AWKWARD)
def test_tensors_without_abs_min_or_max(kind: str) -> None:
    upstream, ours = both(nn.Identity, [(AWKWARD[kind],)], trace_batch_nums=[0])
    assert (upstream.batches, ours.batches) == (0, 1)
    assert f"\n{AWKWARD_LINES[kind]} input[0]\n{AWKWARD_LINES[kind]} output\n" in ours.text


def test_replicas_of_dataparallel() -> None:
    # GIVEN a replica as DataParallel makes it: copied, its parameters plain attributes
    def replicated(debugger: Any) -> Any:
        model = nn.Sequential(nn.Linear(2, 2))

        def batch() -> None:
            linear: Any = model[0]
            replica = linear._replicate_for_data_parallel()
            replica.weight, replica.bias = linear.weight.clone(), linear.bias.clone()
            replica(X)

        return watch(debugger, model, [batch], trace_batch_nums=[0])

    assert isinstance(replicated(Upstream).error, KeyError)
    assert modules_in(replicated(Ours).text) == ["0"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_script_modules() -> None:
    def make() -> nn.Module:
        return nn.Sequential(torch.jit.script(nn.Linear(2, 2)), nn.ReLU())

    with pytest.raises(RuntimeError, match="ScriptModule"):
        Upstream(make())
    model = make()
    with pytest.warns(RecorderWarning, match="0. is a ScriptModule") as warned:
        ours = watch(Ours, model, [lambda: model(X)], trace_batch_nums=[0])
    assert len(warned) == 1
    assert modules_in(ours.text) == ["1", ""]


# Numbers that it did not see.


@dataclass
class Output:
    logits: torch.Tensor
    states: list[torch.Tensor]


def test_the_loss() -> None:
    # GIVEN a model whose loss is nan although all that it gives out is finite
    def train(watcher: Callable[..., Any]) -> str:
        layer = nn.Linear(2, 2)
        model = nn.Sequential(layer)
        watcher(model)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.suppress(ValueError):
            for _ in range(2):
                (model(X).sum() * float("nan")).backward()
                with torch.no_grad():
                    layer.weight.fill_(float(layer.bias.grad.sum()))  # type: ignore[union-attr]
        return printed.getvalue()

    # THEN theirs stops in the next batch, at the weight that it spoilt, and ours before the backward
    assert "Detected inf/nan during batch_number=1\n" in train(Upstream)
    text = train(functools.partial(Ours, replay=False))
    assert "Detected inf/nan during batch_number=0\n" in text
    assert text.rstrip().endswith("nan      nan loss")


def test_nested_values() -> None:
    nested = (((X,),),)
    for output, theirs, contexts in (
        ([X, X], "output", ["output[0]", "output[1]"]),
        ({"logits": X}, "output", ["output[logits]"]),
        (Output(X, [X]), "output", ["output[logits]", "output[states][0]"]),
        (nested, "output[0][0]", ["output[0][0][0]"]),
    ):
        upstream, ours = both(lambda output=output: Forward(lambda _: output), [(X,)], trace_batch_nums=[0])  # type: ignore[misc]
        assert upstream.text.endswith(f"     not a tensor {theirs}\n")
        assert ours.text.endswith("".join(f"1.00e+00 1.00e+00 {context}\n" for context in contexts))
    upstream, ours = both(lambda: Forward(lambda pair: pair[0]), [((X, X),)], trace_batch_nums=[0])
    assert "     not a tensor input[0]\n" in upstream.text
    assert "1.00e+00 1.00e+00 input[0][1]\n" in ours.text


def test_keyword_inputs() -> None:
    # GIVEN a child that is called with a positional and a keyword argument
    def run(debugger: Any) -> str:
        model = Forward(lambda x, mask: x * mask)
        return watch(debugger, model, [lambda: model(X, mask=X * 3)], trace_batch_nums=[0]).text

    assert "3.00e+00" not in run(Upstream).replace("3.00e+00 3.00e+00 output", "")
    assert "1.00e+00 1.00e+00 input[0]\n3.00e+00 3.00e+00 input[mask]\n3.00e+00 3.00e+00 output\n" in run(Ours)


def test_inputs_changed_in_place() -> None:
    # GIVEN an in-place ReLU on [-9, 1]
    upstream, _ = both(lambda: nn.ReLU(inplace=True), [(torch.tensor([-9.0, 1.0]),)], trace_batch_nums=[0])
    _, ours = both(lambda: nn.ReLU(inplace=True), [(torch.tensor([-9.0, 1.0]),)], trace_batch_nums=[7])
    assert "0.00e+00 1.00e+00 input[0]" in upstream.text
    assert ours.text == ""
    model = nn.ReLU(inplace=True)
    printed = watch(Ours, model, [lambda: model(torch.tensor([-9.0, 1.0]))], trace_batch_nums=[0])
    assert "1.00e+00 9.00e+00 input[0]\n0.00e+00 1.00e+00 output" in printed.text


def test_buffers() -> None:
    # GIVEN a BatchNorm in training whose running_var is NaN: its output does not depend on it
    def make() -> nn.Module:
        model = nn.BatchNorm1d(2)
        model.running_var[0] = float("nan")  # type: ignore[index]
        return model

    upstream, ours = both(make, [(torch.randn(4, 2),)])
    assert (upstream.text, upstream.error) == ("", None)
    assert isinstance(ours.error, NonFiniteError)
    assert "     nan      nan running_var\n" in ours.text
    assert "running_mean" not in ours.text


def test_modules_added_after_attaching() -> None:
    def run(debugger: Any) -> list[str]:
        model = nn.Sequential(nn.Identity())

        def first() -> None:
            model(X)
            model.append(nn.Tanh())

        return modules_in(watch(debugger, model, [first, lambda: model(X)], trace_batch_nums=[1]).text)

    assert run(Upstream) == ["0", ""]
    assert run(Ours) == ["0", "1", ""]


def test_forwards_that_raise() -> None:
    def fail(x: torch.Tensor) -> torch.Tensor:
        raise KeyError(x)

    upstream, ours = both(lambda: Forward(fail), [(X,)], trace_batch_nums=[0])
    assert isinstance(upstream.error, KeyError)
    assert isinstance(ours.error, KeyError)
    assert upstream.text == ""
    assert ours.text.endswith(" Forward\n1.00e+00 1.00e+00 input[0]\n     not a tensor output\n")


def test_shared_modules() -> None:
    # GIVEN one module that is part of two others, and so is called twice
    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Identity()
            self.first, self.second = nn.Sequential(shared), nn.Sequential(shared)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))  # type: ignore[no-any-return]

    # WHEN both trace it
    upstream, ours = both(Root, [(X,)], trace_batch_nums=[0])
    # THEN theirs has two frames for each of its two calls
    assert upstream.text.count(" Identity\n") == 4
    assert ours.text.count(" Identity\n") == 2
    assert modules_in(ours.text) == ["first.0", "first", "first.0", "second", ""]


def test_empty_containers() -> None:
    upstream, ours = both(lambda: Forward(lambda _: ()), [(X,)], trace_batch_nums=[0])
    assert ours.text == upstream.text + "     not a tensor output\n"


# Manners.


def test_what_is_raised() -> None:
    upstream, ours = both(nn.Identity, [(INF,)])
    assert type(upstream.error) is ValueError
    assert type(ours.error) is NonFiniteError
    assert "input[0] of the root module (Identity), batch 0: 2 inf of 2 elements" in str(ours.error)
    upstream, ours = both(nn.Identity, [(X,)], abort_after_batch_num=0)
    assert type(upstream.error) is ValueError
    assert type(ours.error) is BatchLimitReached
    assert issubclass(BatchLimitReached, ValueError)
    assert issubclass(NonFiniteError, ValueError)


@pytest.mark.parametrize(
    ("module", "given", "passes"),
    [
        (functools.partial(nn.Softmax, -1), "0 -inf", True),
        (functools.partial(nn.Softmax, -1), "-inf -inf", False),  # a full row
        (nn.Sigmoid, "0 inf", False),
        (nn.Sigmoid, "-inf -inf", False),  # 0 throughout
    ],
)
def test_masks_of_infinity(module: Callable[[], nn.Module], given: str, passes: bool) -> None:
    mask = torch.tensor([[float(one) for one in given.split()]])
    upstream, ours = both(lambda: nn.Sequential(module()), [(mask,)])
    assert isinstance(upstream.error, ValueError)
    assert isinstance(ours.error, NonFiniteError)
    model = nn.Sequential(module())
    with contextlib.nullcontext() if passes else pytest.raises(NonFiniteError), TraceRecorder(model, None):
        model(mask)


def test_after_the_alarm() -> None:
    def run(debugger: Any) -> Exception | None:
        model = nn.Identity()

        def bad() -> None:
            with contextlib.suppress(ValueError):
                model(INF)

        return watch(debugger, model, [bad, lambda: model(X)]).error

    assert isinstance(run(Upstream), ValueError)
    assert run(Ours) is None


def test_attached_twice() -> None:
    model = nn.Identity()
    Upstream(model, trace_batch_nums=[0])
    assert watch(Upstream, model, [lambda: model(X)], trace_batch_nums=[0]).text.count(" Identity\n") == 2
    model = nn.Identity()
    first = Ours(model)
    model(X)
    with pytest.warns(RecorderWarning, match="another recorder"):
        second = watch(Ours, model, [lambda: model(X)], trace_batch_nums=[0])
    assert second.text.count(" Identity\n") == 1
    assert not first.is_attached


def test_copied_models() -> None:
    for debugger, wanted in ((Upstream, 1), (Ours, 0)):
        model = nn.Identity()
        debugger(model, trace_batch_nums=[0, 1])
        with contextlib.redirect_stdout(io.StringIO()):
            model(X)
        duplicate, text = copy.deepcopy(model), io.StringIO()
        with contextlib.redirect_stdout(text):
            duplicate(X)
        assert text.getvalue().count(" Identity\n") == wanted
        pickled = pickle.dumps(model)
        assert (b"transformers.debug_utils" in pickled) == bool(wanted)
        assert b"overflow_recorder" not in pickled


def test_closed_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()

    def run(debugger: Any, **options: Any) -> Exception | None:
        model = nn.Identity()
        recorder = debugger(model, **options)
        monkeypatch.setattr(sys, "stdout", closed)
        try:
            model(X)
        except ValueError as error:
            return error
        finally:
            monkeypatch.undo()
            if hasattr(recorder, "close"):
                recorder.close()
        return None

    assert isinstance(run(Upstream, trace_batch_nums=[0]), ValueError)
    assert run(Ours, trace_batch_nums=[0]) is None


def test_names_with_control_characters() -> None:
    def make() -> nn.Module:
        model = nn.Sequential()
        model.add_module("red\x1b[31m", nn.Identity())
        return model

    upstream, ours = both(make, [(X,)], trace_batch_nums=[0])
    assert "red\x1b[31m Identity" in upstream.text
    assert ours.text == upstream.text.replace("\x1b", "\\x1b")


def test_very_many_values() -> None:
    upstream, ours = both(lambda: Forward(lambda x: (x,) * 3000), [(X,)], trace_batch_nums=[0])
    assert upstream.text.count(" output[") == 3000
    assert 100 < ours.text.count("1.00e+00 1.00e+00 output[") < 3000
    assert ours.text.splitlines()[-1].startswith("     not a tensor ")


@pytest.mark.parametrize(
    ("option", "value"), [("max_frames_to_save", 0), ("trace_batch_nums", [-1]), ("trace_batch_nums", ["1"])]
)
def test_options_that_mean_nothing(option: str, value: Any) -> None:
    Upstream(nn.Identity(), **{option: value})
    with pytest.raises((TypeError, ValueError), match=option):
        Ours(nn.Identity(), **{option: value})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_detection_on_an_accelerator() -> None:
    # GIVEN an overflow in the first of three modules, on the device
    def run(debugger: Any) -> tuple[str, list[str]]:
        reached: list[str] = []

        def second(x: torch.Tensor) -> torch.Tensor:
            reached.append("second")
            return x

        model = nn.Sequential(nn.Identity(), Forward(second), nn.Identity()).cuda()
        return watch(debugger, model, [lambda: model(INF.cuda())]).text, reached

    upstream, ours = run(Upstream), run(Ours)
    # THEN the report is the same, though the batch has run to its end
    assert (ours[0], upstream[1], ours[1]) == (upstream[0], [], ["second"])
