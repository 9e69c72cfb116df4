"""The arithmetic of the Triton kernel, on the CPU in Triton's interpreter.

The interpreter is chosen when triton is imported. So this file runs itself once more in a process of its own; the tests
between are skipped here and run there.
"""

from __future__ import annotations

import inspect
import math
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings

from overflow_recorder.statistics import DeviceBuffer, measure
from overflow_recorder.statistics.formats import FORMATS
from tests.recorder.statistics_oracle import DTYPES, assert_same, expected, from_bits, tensors

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_recorder.statistics import Figures, Statistics

triton_kernels = pytest.importorskip("overflow_recorder.statistics.triton.kernels", exc_type=ImportError)

HOST = torch.device("cpu")
STATISTICS: list[Statistics] = ["extrema", "full"]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in a process of its own")


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="this is that process")
def test_the_kernel_in_its_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert " passed" in process.stdout


@pytest.mark.skipif(INTERPRETED, reason="interpreted kernels are not compiled")
@pytest.mark.parametrize("size", [1, 1000, 1024])
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fnuz, torch.int32, torch.uint64, torch.bool], ids=str
)
def test_the_kernel_compiles_for_a_gpu_that_is_not_there(
    dtype: torch.dtype, statistics: Statistics, size: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if "constexprs" not in inspect.signature(ASTSource).parameters:
        pytest.skip("Triton 3.2 takes a kernel's constants in another form")
    compiled = _compiled(dtype, statistics, size, GPUTarget("cuda", 80, 32))
    # THEN there is machine code, and aligned elements are loaded 16 bytes at a time
    assert compiled.asm["cubin"]
    if size == 1024 and dtype == torch.bfloat16:
        assert "ld.global.v4.b32" in compiled.asm["ptx"] or "ld.global.v2.b64" in compiled.asm["ptx"]


def _compiled(dtype: torch.dtype, statistics: Statistics, size: int, target: Any) -> Any:
    """What Triton's just-in-time compiler makes of a call with a tensor of this dtype and size."""
    import triton
    from triton.compiler import ASTSource

    kernel, form = triton_kernels.kernel.figures_kernel, FORMATS[dtype]
    constants = dict(triton_kernels._constants(form, full=statistics == "full"))
    options = {name: constants.pop(name) for name in ("num_warps", "enable_fp_fusion")}
    element = form.source.name.replace("uint", "u").replace("int", "i")
    signature = {"elements": f"*{element}", "rows": "*i64", "offset": "i32", "size": "i32"}
    signature |= dict.fromkeys(constants, "constexpr")
    if size == 1:  # such an argument is compiled in
        constants["size"], signature["size"] = 1, "constexpr"
    aligned = ["elements", "rows"] + (["size"] if size % 16 == 0 else [])
    places = {name: (list(kernel.arg_names).index(name),) for name in signature}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={places[name]: value for name, value in constants.items()},
        attrs={places[name]: [["tt.divisibility", 16]] for name in aligned},
    )
    return triton.compile(source, target=target, options=options)


def _collected(kinds: list[torch.Tensor], statistics: Statistics) -> list[Figures]:
    """Figures by the kernel alone: where it cannot read a tensor, the test fails."""
    buffer = DeviceBuffer(HOST, statistics, "triton")
    quick = buffer._quick
    assert quick is not None
    for kind in kinds:
        buffer.measure(kind)
    assert buffer._quick is quick, "the kernel failed"
    decoders = {getattr(slot, "func", None) for slot in buffer._slots}
    assert {decoder.__module__.rpartition(".")[2] for decoder in decoders if decoder} <= {"kernels"}
    return buffer.collect()


def _readable(tensor: torch.Tensor, statistics: Statistics) -> bool:
    """Whether the kernel takes the tensor: one that is dense, or transposed, or expanded from such a one."""
    wide = statistics == "full" and tensor.dtype == torch.float64
    used = [index for index, stride in enumerate(tensor.stride()) if stride and tensor.shape[index] > 1]
    order = sorted(used, key=tensor.stride)
    dense = all(
        tensor.stride(index) == math.prod(tensor.shape[other] for other in order[:place])
        for place, index in enumerate(order)
    )
    return dense and not wide


@interpreted
@pytest.mark.parametrize("statistics", STATISTICS)
@settings(max_examples=25)
@given(tensor=tensors())
def test_any_tensor_has_the_figures_of_a_plain_computation(tensor: torch.Tensor, statistics: Statistics) -> None:
    if _readable(tensor, statistics):
        assert_same(_collected([tensor], statistics)[0], expected(tensor, statistics))
    else:
        buffer = DeviceBuffer(HOST, statistics, "triton")
        buffer.measure(tensor)
        assert_same(buffer.collect()[0], expected(tensor, statistics))


@interpreted
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize == 1], ids=str)
def test_each_pattern_of_a_one_byte_dtype(dtype: torch.dtype) -> None:
    patterns = list(range(2 if dtype == torch.bool else 256))
    rows = [from_bits(patterns[start : start + 16], dtype) for start in range(0, len(patterns), 16)]
    for row, figures in zip(rows, _collected(rows, "full"), strict=True):
        assert_same(figures, expected(row, "full"))


@interpreted
@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64, torch.uint64], ids=str)
def test_several_programs_fold_into_one_row(
    dtype: torch.dtype, statistics: Statistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN tensors of one element, of blocks with and without a rest, and of more blocks than there are programs
    monkeypatch.setattr(triton_kernels, "_BLOCK", 64)
    monkeypatch.setattr(triton_kernels, "_PROGRAMS", dict.fromkeys(STATISTICS, 3))
    kinds = [torch.linspace(-200, 300, size, dtype=torch.float64).to(dtype) for size in (1, 63, 64, 65, 1000)]
    if dtype.is_floating_point:
        for place, value in ((3, math.nan), (4, math.inf), (500, -math.inf), (999, math.nan)):
            kinds[-1][place] = value
    for kind, figures in zip(kinds, _collected(kinds, statistics), strict=True):
        assert_same(figures, expected(kind, statistics))


@interpreted
def test_rows_are_blank_again_after_each_collect() -> None:
    buffer = DeviceBuffer(HOST, "full", "triton")
    for value in (math.nan, 2.0, -math.inf, 3e-39):
        tensor = torch.tensor([value, 1.0])
        buffer.measure(tensor)
        assert_same(buffer.collect()[0], expected(tensor, "full"))


@interpreted
def test_what_the_kernel_cannot_read_is_read_by_torch_operations() -> None:
    kinds = [
        torch.tensor([1.0, 2.0, 3.0, 4.0])[::2],
        torch.tensor([3 + 4j]),
        torch.tensor([1e300, -2e300], dtype=torch.float64),
        torch.tensor([1.0, math.inf]).to_sparse(),
        torch.tensor([complex(1, math.inf), complex(1, 2)]).conj().imag,
    ]
    buffer = DeviceBuffer(HOST, "full", "triton")
    for kind in kinds:
        buffer.measure(kind)
    for kind, figures in zip(kinds, buffer.collect(), strict=True):
        assert_same(figures, measure(kind, "full"))


@interpreted
def test_a_negated_view_has_its_infinities_negated() -> None:
    tensor = torch.tensor([math.inf, math.inf, -math.inf, 2.0])
    assert_same(_collected([torch._neg_view(tensor)], "extrema")[0], expected(-tensor, "extrema"))
