"""What the operands of an operation prove about its result: a function a kind of arithmetic.

Each returns a cause and sentences with figures, or None where the figures do not prove its kind of failure.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.text.wording import counted
from overflow_recorder.replay.figures import is_float

if TYPE_CHECKING:
    from collections.abc import Callable

    from overflow_analyzer.format.origin import Tried

Found = tuple[str, tuple[str, ...]]


class Call(NamedTuple):
    """One operation that has run."""

    schema: Any
    args: tuple[Any, ...]
    """As they were before it ran."""
    kwargs: dict[str, Any]
    result: torch.Tensor

    @property
    def name(self) -> str:
        """Its name without namespace, and without the underscore of what works in place."""
        plain: str = self.schema.name.rpartition("::")[2]
        return plain.rstrip("_")

    def argument(self, name: str, default: Any = None) -> Any:
        """Return what it was given under one of its arguments' names."""
        for argument, value in zip(self.schema.arguments, self.args, strict=False):
            if argument.name == name:
                return value
        return self.kwargs.get(name, default)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors among its arguments by name."""
        named = zip((one.name for one in self.schema.arguments), self.args, strict=False)
        return {name: value for name, value in (*named, *self.kwargs.items()) if isinstance(value, torch.Tensor)}

    def scalars(self) -> tuple[str, ...]:
        """Return the numbers among its arguments, as ``other=0.0``."""
        named = zip((one.name for one in self.schema.arguments), self.args, strict=False)
        return tuple(f"{name}={value}" for name, value in named if isinstance(value, (int, float)))


def evidence_of(call: Call, tried: Tried | None, kind: str) -> Found | tuple[None, tuple[str, ...]]:
    """Return what the figures prove, the first proof that holds.

    Args:
        call: The operation, its operands and its result.
        tried: What it gives in a wider format.
        kind: How its result became non-finite, as ``watch.Kind``.
    """
    if kind == "literal":
        return "literal", (_literal(call),)
    if kind == "unwritten":
        return "unwritten-memory", ("the memory was allocated, and read where nothing had been written yet",)
    rule = _RULES.get(call.name)
    with suppress(Exception):  # a rule that cannot be applied proves nothing
        found = rule(call) if rule is not None else None
        if found is not None:
            return found
    found = _too_narrow(call, tried)
    if found is None and kind == "made" and call.name in _SUMS_AND_PRODUCTS:
        found = "overflow", ("sums and products of finite numbers are finite, but for what passes the format's limit",)
    return found if found is not None else (None, ())


def _literal(call: Call) -> str:
    scalars = (value for value in (*call.args, *call.kwargs.values()) if isinstance(value, float))
    written = next((value for value in scalars if not math.isfinite(value)), None)
    if written is not None:
        return f"the program writes {written} there"
    dtype = str(call.result.dtype).removeprefix("torch.")
    return f"the program makes a tensor of Python's numbers there, of which one is not finite in {dtype}"


def _too_narrow(call: Call, tried: Tried | None) -> Found | None:
    """The result fits into a wider format: the arithmetic itself is sound."""
    if tried is None or not tried.finite or tried.abs_max is None:
        return None
    dtype = str(call.result.dtype).removeprefix("torch.")
    limits = float_format(dtype)
    if limits is None:
        return None
    if tried.abs_max > limits.max:
        return "overflow", ()  # the result in the wider format is the proof
    return "overflow", (
        f"in {tried.dtype} it is finite ({limits.describe(tried.abs_max)}): a value inside the operation does not fit",
    )


def _of(count: Any, thing: str, total: int) -> str:
    return f"{int(count)} of {counted(total, thing)}"


def _pair(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Return its two operands, of which one may be a number, in one shape."""
    one, other = (torch.as_tensor(value) for value in call.args[:2])
    shape = torch.broadcast_shapes(one.shape, other.shape)  # type: ignore[no-untyped-call]
    return one.expand(shape), other.expand(shape)


def _softmax(call: Call) -> Found | None:
    x, dim = call.args[0], call.argument("dim", -1)
    if not x.dim():
        return None
    masked = (x == -math.inf).all(dim)
    sentences = []
    if masked.any():
        first = [int(index) for index in masked.nonzero()[0]]
        rows = _of(masked.sum(), "row", masked.numel())
        sentences.append(f"{rows} along dimension {dim} are -inf throughout (fully masked), the first {first}")
        return "masked-row-softmax", tuple(sentences)
    infinite = (x == math.inf).any(dim)
    if infinite.any():
        return "inf-minus-inf", (f"{_of(infinite.sum(), 'row', infinite.numel())} hold +inf: softmax takes inf - inf",)
    return None


def _division(call: Call) -> Found | None:
    numerator, divisor = call.args[0], call.args[1]
    return _by_zero(numerator, divisor)


def _by_zero(numerator: Any, divisor: Any) -> Found | None:
    if not isinstance(divisor, torch.Tensor):
        return ("division-by-zero", ("the divisor is 0",)) if divisor == 0 else None
    zeros = divisor == 0
    if not zeros.any():
        return None
    sentences = [f"{_of(zeros.sum(), 'divisor', divisor.numel())} {'is' if int(zeros.sum()) == 1 else 'are'} 0"]
    if isinstance(numerator, torch.Tensor):
        nothing = int(((numerator == 0) & zeros).sum())
        if nothing:
            sentences.append(f"{counted(nothing, 'quotient')} of 0 / 0, which is nan")
    return "division-by-zero", tuple(sentences)


def _reciprocal(call: Call) -> Found | None:
    return _by_zero(None, call.args[0])


def _product(call: Call) -> Found | None:
    one, other = _pair(call)
    count = int((((one == 0) & torch.isinf(other)) | (torch.isinf(one) & (other == 0))).sum())
    return ("zero-times-inf", (f"{counted(count, 'product')} of 0 and inf, which is nan",)) if count else None


def _matrix_product(call: Call) -> Found | None:
    """A sum of products with an infinite factor: 0 x inf and inf - inf are both possible, and told by the factors."""
    factors = [value for value in call.tensors().values() if is_float(value) and value.dim() > 1][-2:]
    infinite = [int(torch.isinf(value).sum()) for value in factors]
    if len(factors) == 2 and any(infinite) and any((value == 0).any() for value in factors):  # noqa: PLR2004  two factors
        return "zero-times-inf", (f"its factors hold {infinite[0]} and {infinite[1]} inf, and zeros to meet them",)
    return None


def _sum_of_two(call: Call) -> Found | None:
    one, other = _pair(call)
    sign = -1 if call.name in ("sub", "rsub") else 1
    against = torch.isinf(one) & torch.isinf(other) & (one == -sign * other)
    if against.any():
        return "inf-minus-inf", (f"{counted(int(against.sum()), 'sum')} of inf and -inf, which is nan",)
    lowest = torch.finfo(call.result.dtype).min
    masks = (one == lowest) & (other <= lowest / 2) | (other == lowest) & (one <= lowest / 2)
    if sign > 0 and masks.any():
        count = counted(int(masks.sum()), "element")
        return "masks-added", (f"in {count} the smallest number of the format was added to another of its size",)
    return None


def _outside(test: Callable[[torch.Tensor], torch.Tensor], what: str) -> Callable[[Call], Found | None]:
    def rule(call: Call) -> Found | None:
        wrong = test(call.args[0])
        if not wrong.any():
            return None
        return "out-of-domain", (f"{_of(wrong.sum(), 'operand', wrong.numel())}: {what}",)

    return rule


def _root(call: Call) -> Found | None:
    x = call.args[0]
    negative, zero = int((x < 0).sum()), int((x == 0).sum()) if call.name == "rsqrt" else 0
    if negative:
        return "out-of-domain", (f"{_of(negative, 'operand', x.numel())}: the square root of a negative number",)
    return ("division-by-zero", (f"{_of(zero, 'operand', x.numel())}: 1 / sqrt(0)",)) if zero else None


def _logarithm(call: Call) -> Found | None:
    x, limit = call.args[0], -1 if call.name == "log1p" else 0
    at, below = int((x == limit).sum()), int((x < limit).sum())
    sentences = [f"{_of(at, 'operand', x.numel())} at {limit}, whose {call.name} is -inf"] if at else []
    if below:
        sentences.append(f"{_of(below, 'operand', x.numel())} below {limit}, whose {call.name} is nan")
    return ("out-of-domain", tuple(sentences)) if sentences else None


def _power(call: Call) -> Found | None:
    base, exponent = _pair(call)
    zero = int(((base == 0) & (exponent < 0)).sum())
    if zero:
        return "division-by-zero", (f"{_of(zero, 'power', base.numel())} of 0 with a negative exponent",)
    broken = int(((base < 0) & (exponent != exponent.floor())).sum())
    if broken:
        return "out-of-domain", (f"{_of(broken, 'power', base.numel())} of a negative number, exponent not whole",)
    return None


def _x_log_y(call: Call) -> Found | None:
    x, y = _pair(call)
    count = int(((x != 0) & (y <= 0)).sum())
    return ("out-of-domain", (f"{_of(count, 'logarithm', y.numel())} of 0 or a negative number",)) if count else None


def _exponential(call: Call) -> Found | None:
    x = call.args[0].abs() if call.name in ("sinh", "cosh") else call.args[0]
    top = (
        math.log2(torch.finfo(call.result.dtype).max)
        if call.name == "exp2"
        else math.log(torch.finfo(call.result.dtype).max)
    )
    over = torch.isfinite(x) & (x > top)
    if not over.any():
        return None
    dtype = str(call.result.dtype).removeprefix("torch.")
    return "overflow", (
        (
            f"{_of(over.sum(), 'exponent', x.numel())} beyond {top:.4g}, where {call.name} passes {dtype}'s limit; "
            f"the largest is {float(x[over].max()):.4g}"
        ),
    )


def _mean(call: Call) -> Found | None:
    if not call.args[0].numel():
        return "division-by-zero", ("it is the mean of no elements: 0 / 0",)
    return None


def _deviation(call: Call) -> Found | None:
    x, dims = call.args[0], call.argument("dim")
    correction = call.argument("correction", 1)
    sizes = [x.shape[dim] for dim in ([dims] if isinstance(dims, int) else dims or range(x.dim()))]
    count = math.prod(sizes)
    if count - (1 if correction is None else correction) > 0:
        return None
    return "division-by-zero", (f"it is over {counted(count, 'element')} with correction {correction}: 0 / 0",)


def _accumulation(call: Call) -> Found | None:
    """Only a sum that passes the limit makes an inf of finite addends, and only inf - inf a nan of infinite ones."""
    x = call.args[0]
    limits = float_format(str(call.result.dtype).removeprefix("torch."))
    positive, negative = int((x == math.inf).sum()), int((x == -math.inf).sum())
    if positive and negative:
        return "inf-minus-inf", (f"{positive} inf and {negative} -inf are among {counted(x.numel(), 'addend')}",)
    if limits is None or not x.numel() or not bool(torch.isfinite(x).all()):
        return None
    addends = x.numel() // call.result.numel() if call.result.numel() < x.numel() else x.shape[call.argument("dim")]
    return "overflow", (f"{counted(addends, 'addend')} a result, the largest {limits.describe(float(x.abs().max()))}",)


def _loss_of_labels(call: Call) -> Found | None:
    target, ignored, weight = call.argument("target"), call.argument("ignore_index", -100), call.argument("weight")
    counted_labels = target[target != ignored]
    if counted_labels.numel() and weight is not None and not weight[counted_labels].any():
        return "division-by-zero", ("the weights of all labels are 0: 0 / 0",)
    if counted_labels.numel():
        return None
    return "division-by-zero", (f"{_of(target.numel(), 'label', target.numel())} are ignored ({ignored}): 0 / 0",)


def _normalisation(call: Call) -> Found | None:
    """A normalisation divides by sqrt(variance + eps)."""
    x, eps = call.args[0], call.argument("eps")
    if call.name == "native_layer_norm":
        groups = x.double().flatten(x.dim() - len(call.argument("normalized_shape")))
    elif call.name == "native_group_norm":
        groups = x.double().reshape(x.shape[0], call.argument("group"), -1)
    else:
        groups = x.double().transpose(0, 1).flatten(1)
    known = None if call.argument("training", default=True) else call.argument("running_var")
    still = (groups.var(-1, correction=0) if known is None else known) == 0
    if eps or not still.any():
        return None
    return "division-by-zero", (f"{_of(still.sum(), 'group', still.numel())} with a variance of 0, and eps is {eps}",)


def _conversion(call: Call) -> Found | None:
    source, dtype = call.tensors().get("src", call.args[0]), call.result.dtype
    limit = torch.finfo(dtype).max
    beyond = int((source.double().abs() > limit).sum())
    if source.dtype == dtype or not beyond:
        return None
    here = str(dtype).removeprefix("torch.")
    there = str(source.dtype).removeprefix("torch.")
    return "precision-cast", (f"{_of(beyond, 'element', source.numel())} of {there} beyond {here}'s {limit:g}",)


def _attention(call: Call) -> Found | None:
    """Take the fused operation apart once: is it the mask, the scores or the values?"""
    query, key = call.args[0].float(), call.args[1].float()
    mask = call.argument("attn_mask", call.argument("attn_bias"))
    scale = call.argument("scale") or 1 / math.sqrt(query.shape[-1])
    if mask is not None:
        closed = ~mask if mask.dtype == torch.bool else mask == -math.inf
        rows = closed.all(-1)
        if rows.any():
            first = [int(index) for index in rows.nonzero()[0]]
            return "masked-row-softmax", (
                f"{_of(rows.sum(), 'row', rows.numel())} of the mask are closed throughout, the first {first}",
            )
    scores = query @ key.transpose(-1, -2) * scale
    limits = float_format(str(call.args[0].dtype).removeprefix("torch."))
    largest = float(scores.abs().max())
    if limits is None or largest <= limits.max:
        return None
    row = [*map(int, np.unravel_index(int(scores.abs().argmax()), scores.shape))]
    return "overflow", (f"the scores are at most {limits.describe(largest)}, in row {row[:-1]}",)


_SUMS_AND_PRODUCTS: Final = (
    *("add", "sub", "rsub", "mul", "square", "addcmul", "sum", "cumsum", "prod", "cumprod", "mm", "bmm", "mv", "dot"),
    *("addmm", "addmv", "addbmm", "baddbmm", "convolution", "_fft_r2c", "_fft_c2c", "_fft_c2r"),
)
_RULES: Final[dict[str, Callable[[Call], Found | None]]] = {
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax"), _softmax),
    **dict.fromkeys(("div", "true_divide", "floor_divide", "remainder", "fmod"), _division),
    "reciprocal": _reciprocal,
    "addcdiv": lambda call: _by_zero(call.args[1], call.args[2]),
    "mul": _product,
    **dict.fromkeys(("mm", "bmm", "addmm", "baddbmm", "mv", "dot"), _matrix_product),
    **dict.fromkeys(("add", "sub", "rsub"), _sum_of_two),
    **dict.fromkeys(("log", "log2", "log10", "log1p"), _logarithm),
    "xlogy": _x_log_y,
    **dict.fromkeys(("lgamma", "digamma"), _outside(lambda x: (x <= 0) & (x == x.floor()), "at 0, -1, -2, ...")),
    **dict.fromkeys(("sqrt", "rsqrt"), _root),
    "pow": _power,
    **dict.fromkeys(("exp", "exp2", "expm1", "sinh", "cosh"), _exponential),
    **dict.fromkeys(("acos", "asin"), _outside(lambda x: x.abs() > 1, "beyond [-1, 1]")),
    "atanh": _outside(lambda x: x.abs() >= 1, "at or beyond -1 or 1"),
    "acosh": _outside(lambda x: x < 1, "below 1"),
    "erfinv": _outside(lambda x: x.abs() >= 1, "at or beyond -1 or 1"),
    "logit": _outside(lambda x: (x <= 0) | (x >= 1), "at or beyond 0 or 1"),
    "mean": lambda call: _mean(call) or _accumulation(call),
    **dict.fromkeys(("std", "var", "std_mean", "var_mean"), _deviation),
    **dict.fromkeys(("sum", "cumsum", "logcumsumexp", "linalg_vector_norm", "norm", "nansum"), _accumulation),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _loss_of_labels),
    **dict.fromkeys(
        ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"), _normalisation
    ),
    **dict.fromkeys(("_to_copy", "copy", "to"), _conversion),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
            "_scaled_dot_product_cudnn_attention",
            "_scaled_dot_product_fused_attention_overrideable",
        ),
        _attention,
    ),
}
