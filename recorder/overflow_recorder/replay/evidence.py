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

    @property
    def positional(self) -> dict[str, Any]:
        """What it was given by position, by the arguments' names."""
        return dict(zip((one.name for one in self.schema.arguments), self.args, strict=False))

    def argument(self, name: str, default: Any = None) -> Any:
        """Return what it was given under one of its arguments' names."""
        return self.positional.get(name, self.kwargs.get(name, default))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors among its arguments by name."""
        named = {**self.positional, **self.kwargs}
        return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}

    def scalars(self) -> tuple[str, ...]:
        """Return the numbers among its arguments, as ``other=0.0``."""
        return tuple(f"{name}={value}" for name, value in self.positional.items() if isinstance(value, (int, float)))


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
    rule, found = _RULES.get(call.name), None
    with suppress(Exception):  # a rule that cannot be applied proves nothing
        found = rule(call) if rule is not None else None
    found = found or _too_narrow(call, tried)
    if found is None and kind == "made" and call.name in _SUMS_AND_PRODUCTS:
        found = "overflow", ("sums and products of finite numbers are finite, but for what passes the format's limit",)
    return found or (None, ())


def _literal(call: Call) -> str:
    scalars = (value for value in (*call.args, *call.kwargs.values()) if isinstance(value, float))
    written = next((value for value in scalars if not math.isfinite(value)), None)
    if written is not None:
        return f"the program writes {written} there"
    dtype = _dtype(call.result)
    return f"the program makes a tensor of Python's numbers there, of which one is not finite in {dtype}"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _too_narrow(call: Call, tried: Tried | None) -> Found | None:
    """The result fits into a wider format: the arithmetic itself is sound."""
    limits = float_format(_dtype(call.result))
    if tried is None or not tried.finite or tried.abs_max is None or limits is None:
        return None
    if tried.abs_max > limits.max:
        return "overflow", ()  # the result in the wider format is the proof
    return "overflow", (
        f"in {tried.dtype} it is finite ({limits.describe(tried.abs_max)}): a value inside the operation does not fit",
    )


def _of(wrong: torch.Tensor, thing: str) -> str:
    return f"{int(wrong.sum())} of {counted(wrong.numel(), thing)}"


def _if_any(wrong: torch.Tensor, cause: str, thing: str, what: str) -> Found | None:
    """Name the cause, and how many things it is true of, where it is true of any."""
    return (cause, (f"{_of(wrong, thing)}{what}",)) if wrong.any() else None


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
    if masked.any():
        first = masked.nonzero()[0].tolist()
        what = f" along dimension {dim} are -inf throughout (fully masked), the first {first}"
        return _if_any(masked, "masked-row-softmax", "row", what)
    return _if_any((x == math.inf).any(dim), "inf-minus-inf", "row", " hold +inf: softmax takes inf - inf")


def _by_zero(numerator: Any, divisor: Any) -> Found | None:
    if not isinstance(divisor, torch.Tensor):
        return ("division-by-zero", ("the divisor is 0",)) if divisor == 0 else None
    zeros = divisor == 0
    if not zeros.any():
        return None
    sentences = [f"{_of(zeros, 'divisor')} {'is' if int(zeros.sum()) == 1 else 'are'} 0"]
    if isinstance(numerator, torch.Tensor):
        nothing = int(((numerator == 0) & zeros).sum())
        if nothing:
            sentences.append(f"{counted(nothing, 'quotient')} of 0 / 0, which is nan")
    return "division-by-zero", tuple(sentences)


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
        return _if_any(test(call.args[0]), "out-of-domain", "operand", f": {what}")

    return rule


def _root(call: Call) -> Found | None:
    x = call.args[0]
    found = _if_any(x < 0, "out-of-domain", "operand", ": the square root of a negative number")
    if found is None and call.name == "rsqrt":
        return _if_any(x == 0, "division-by-zero", "operand", ": 1 / sqrt(0)")
    return found


def _logarithm(call: Call) -> Found | None:
    x, limit = call.args[0], -1 if call.name == "log1p" else 0
    at = _if_any(x == limit, "out-of-domain", "operand", f" at {limit}, whose {call.name} is -inf")
    below = _if_any(x < limit, "out-of-domain", "operand", f" below {limit}, whose {call.name} is nan")
    return (at[0], at[1] + below[1]) if at and below else at or below


def _power(call: Call) -> Found | None:
    base, exponent = _pair(call)
    zero, broken = (base == 0) & (exponent < 0), (base < 0) & (exponent != exponent.floor())
    return _if_any(zero, "division-by-zero", "power", " of 0 with a negative exponent") or _if_any(
        broken, "out-of-domain", "power", " of a negative number, exponent not whole"
    )


def _x_log_y(call: Call) -> Found | None:
    x, y = _pair(call)
    return _if_any((x != 0) & (y <= 0), "out-of-domain", "logarithm", " of 0 or a negative number")


def _exponential(call: Call) -> Found | None:
    x = call.args[0].abs() if call.name in ("sinh", "cosh") else call.args[0]
    top = (math.log2 if call.name == "exp2" else math.log)(torch.finfo(call.result.dtype).max)
    over = torch.isfinite(x) & (x > top)
    if not over.any():
        return None
    limit = f" beyond {top:.4g}, where {call.name} passes {_dtype(call.result)}'s limit"
    return _if_any(over, "overflow", "exponent", f"{limit}; the largest is {float(x[over].max()):.4g}")


def _mean(call: Call) -> Found | None:
    if not call.args[0].numel():
        return "division-by-zero", ("it is the mean of no elements: 0 / 0",)
    return _accumulation(call)


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
    limits = float_format(_dtype(call.result))
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
    if not target.numel():
        return "division-by-zero", ("there are no labels: the mean over no element is 0 / 0",)
    return "division-by-zero", (f"{_of(target == ignored, 'label')} are ignored ({ignored}): 0 / 0",)


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
    return None if eps else _if_any(still, "division-by-zero", "group", f" with a variance of 0, and eps is {eps}")


def _conversion(call: Call) -> Found | None:
    source, dtype = call.tensors().get("src", call.args[0]), call.result.dtype
    limit = torch.finfo(dtype).max
    if source.dtype == dtype:
        return None
    what = f" of {_dtype(source)} beyond {_dtype(call.result)}'s {limit:g}"
    return _if_any(source.double().abs() > limit, "precision-cast", "element", what)


def _attention(call: Call) -> Found | None:
    """Take the fused operation apart once: is it the mask, the scores or the values?"""
    query, key = call.args[0].float(), call.args[1].float()
    mask = call.argument("attn_mask", call.argument("attn_bias"))
    scale = call.argument("scale") or 1 / math.sqrt(query.shape[-1])
    if mask is not None:
        closed = ~mask if mask.dtype == torch.bool else mask == -math.inf
        rows = closed.all(-1)
        if rows.any():
            what = f" of the mask are closed throughout, the first {rows.nonzero()[0].tolist()}"
            return _if_any(rows, "masked-row-softmax", "row", what)
    scores = query @ key.transpose(-1, -2) * scale
    limits = float_format(_dtype(call.args[0]))
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
    **dict.fromkeys(("div", "true_divide", "floor_divide", "remainder", "fmod"), lambda call: _by_zero(*call.args[:2])),
    "reciprocal": lambda call: _by_zero(None, call.args[0]),
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
    "mean": _mean,
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
