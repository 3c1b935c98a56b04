"""Reductions along the last free dimensions, and what is made of them: softmax and rms_norm."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Callable
from typing import Any, Final

from nki.errors import NkiError
from nki.isa.functions import FUNCTIONS
from nki.language.elementwise import constant_bias
from nki.language.function import Function, kind_of
from nki.language.tiles import broadcast_last, cast_copy, free_axes, new, same_shape, split, tile
from nki.memory import MemoryRegion
from nki.tensor import NkiTensor

__all__ = ["all", "max", "mean", "min", "prod", "rms_norm", "softmax", "sum", "var"]

_STATISTICS = 512  # elements that nisa.bn_stats takes at once


class Reduction(Function):
    """A reduction: ``f(x, axis, dtype=None, keepdims=False)``; ``emit(x, first, out)`` issues."""

    def __call__(
        self, x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False
    ) -> NkiTensor:
        """Return a new tile in SBUF, reduced.

        Args:
            x: a tile in SBUF or PSUM.
            axis: the last free dimension, or several that are the last ones.
            dtype: the type of the result, by default that of `x`; engines compute in float32.
            keepdims: keep reduced dimensions with size 1. Without it a result of one element per
                partition has the shape (partitions, 1) nevertheless, as every tile has a free
                dimension.

        Raises:
            NkiTypeError: `x` is no tile (NKI240).
            NkiError: other axes (NKI242).
        """
        return _reduced(self, x, axis, dtype, keepdims)


def _reduced(function: Function, x: Any, axis: Any, dtype: Any, keepdims: bool) -> NkiTensor:
    data = tile(function.__name__, "x", x)
    first = free_axes(function.__name__, data, axis)
    short, kept = split(data, first)
    out = new(short, kind_of(data, dtype))
    function.emit(data, first, out)
    return out.reshape(kept) if keepdims else out


Emit = Callable[[NkiTensor, int, NkiTensor], None]


def _axes(x: NkiTensor, first: int) -> tuple[int, ...]:
    return tuple(range(first, x.ndim))


def _reduce(op: str) -> Emit:
    def emit(x: NkiTensor, first: int, out: NkiTensor) -> None:
        FUNCTIONS["tensor_reduce"](out, op, x, _axes(x, first))

    return emit


def _mean(x: NkiTensor, first: int, out: NkiTensor) -> None:
    total = new(out.shape, "float32")
    FUNCTIONS["tensor_reduce"](total, "add", x, _axes(x, first))
    FUNCTIONS["tensor_scalar"](out, total, "multiply", 1.0 / math.prod(x.shape[first:]))


def _all(x: NkiTensor, first: int, out: NkiTensor) -> None:
    if math.prod(x.shape[first:]) > 1:
        FUNCTIONS["tensor_reduce"](out, "logical_and", x, _axes(x, first))
    else:  # a reduction of one element is that element, whatever the operator
        FUNCTIONS["tensor_scalar"](out, x, "not_equal", 0.0)


def _groups(x: NkiTensor, first: int) -> list[NkiTensor]:
    """Return the tiles of (partitions, n) that are reduced one by one."""
    try:
        flat = x.reshape((*x.shape[:first], math.prod(x.shape[first:])))
    except NkiError:  # the dimensions do not continue each other in memory
        return _groups(cast_copy(x), first)
    choices = itertools.product(*(range(n) for n in flat.shape[1:-1]))
    return [flat[(slice(None), *choice)] for choice in choices]


def _var(x: NkiTensor, first: int, out: NkiTensor) -> None:
    groups = _groups(x, first)
    results = out.reshape((out.shape[0], len(groups)))
    for number, group in enumerate(groups):
        parts = range(0, group.shape[1], _STATISTICS)
        statistics = new((x.shape[0], 6 * len(parts)), "float32")
        for i, start in enumerate(parts):
            end = start + _STATISTICS
            part = group[:, start : builtins.min(end, group.shape[1])]
            FUNCTIONS["bn_stats"](statistics[:, 6 * i : 6 * i + 6], part)
        moments = new((x.shape[0], 2), "float32")
        FUNCTIONS["bn_aggr"](moments, statistics)
        FUNCTIONS["tensor_copy"](results[:, number : number + 1], moments[:, 1:2])


class _Variance(Reduction):
    def __call__(
        self, x: NkiTensor, axis: Any, dtype: Any = None, keepdims: bool = False
    ) -> NkiTensor:
        """As other reductions, but `keepdims` is ignored, as documented: dimensions stay."""
        del keepdims
        return super().__call__(x, axis, dtype, keepdims=True)


class _All(Function):
    def __call__(self, x: NkiTensor, axis: Any, dtype: Any = None) -> NkiTensor:
        """As other reductions, without `keepdims`."""
        return _reduced(self, x, axis, dtype, keepdims=False)


sum: Final = Reduction("sum", "Return the sum.", _reduce("add"))  # noqa: A001
max: Final = Reduction("max", "Return the largest element.", _reduce("maximum"))  # noqa: A001
min: Final = Reduction("min", "Return the smallest element.", _reduce("minimum"))  # noqa: A001
prod: Final = Reduction("prod", "Return the product.", _reduce("multiply"))
mean: Final = Reduction("mean", "Return the sum over the number of elements.", _mean)
var: Final = _Variance(
    "var", "Return the mean of squared differences from the mean; dimensions are kept.", _var
)
all: Final = _All("all", "Return 1 where no element is 0, else 0.", _all)  # noqa: A001


def softmax(x: NkiTensor, axis: Any = -1, dtype: Any = None) -> NkiTensor:
    """Return exp(x) over its sum along some axes, computed with the largest element taken off.

    Args:
        x: a tile in SBUF or PSUM.
        axis: the last free dimension, or several that are the last ones.
        dtype: the type of the result, by default that of `x`; it is computed in float32.

    Raises:
        NkiTypeError: `x` is no tile (NKI240).
        NkiError: other axes (NKI242).
    """
    data = tile("softmax", "x", x)
    first = free_axes("softmax", data, axis)
    out = new(data.shape, kind_of(data, dtype))
    powers = new(data.shape, "float32")
    short, kept = split(data, first)
    top, total = new(short, "float32"), new(short, "float32")
    FUNCTIONS["tensor_reduce"](top, "maximum", data, _axes(data, first), negate=True)
    if first == 1:
        FUNCTIONS["activation"](
            powers, "exp", data, bias=top, reduce_op="add", reduce_res=total,
            reduce_cmd="reset_reduce",
        )  # fmt: skip
        FUNCTIONS["reciprocal"](total, total)
        FUNCTIONS["tensor_scalar"](out, powers, "multiply", total)
        return out
    # Several sums per partition: no operand has one element per sum, so they are repeated.
    FUNCTIONS["tensor_tensor"](powers, data, broadcast_last(top.reshape(kept), data.shape), "add")
    FUNCTIONS["activation"](powers, "exp", powers)
    FUNCTIONS["tensor_reduce"](total, "add", powers, _axes(data, first))
    FUNCTIONS["reciprocal"](total, total)
    repeated = broadcast_last(total.reshape(kept), data.shape)
    FUNCTIONS["tensor_tensor"](out, powers, repeated, "multiply")
    return out


def rms_norm(
    x: NkiTensor,
    w: NkiTensor,
    axis: Any,
    n: int,
    epsilon: float = 1e-6,
    dtype: Any = None,
    compute_dtype: Any = None,
) -> NkiTensor:
    """Return x / sqrt(sum(x**2) / n + epsilon) * w.

    Args:
        x: a tile in SBUF or PSUM.
        w: weights, a tile in the shape of `x`.
        axis: the last free dimension, or several that are the last ones.
        n: what the sum of squares is divided by.
        epsilon: added to the mean square.
        dtype: the type of the result, by default that of `x`.
        compute_dtype: the type of the squares and of their sum, by default float32.

    Raises:
        NkiTypeError: an argument is no tile (NKI240).
        NkiError: other axes (NKI242), or `w` has another shape (NKI241).
    """
    data, weights = tile("rms_norm", "x", x), tile("rms_norm", "w", w)
    same_shape("rms_norm", data, weights)
    first = free_axes("rms_norm", data, axis)
    out = new(data.shape, kind_of(data, dtype))
    inner = "float32" if compute_dtype is None else compute_dtype
    short, kept = split(data, first)
    squares, total = new(data.shape, inner), new(short, inner)
    FUNCTIONS["activation"](squares, "square", data)
    FUNCTIONS["tensor_reduce"](total, "add", squares, _axes(data, first))
    factor = new(short, "float32")
    bias = constant_bias(float(epsilon), data.shape[0])
    FUNCTIONS["activation"](factor, "rsqrt", total, bias=bias, scale=1.0 / n)
    if data.buffer is MemoryRegion.psum and weights.buffer is MemoryRegion.psum:
        weights = cast_copy(weights)  # an instruction reads one tile of PSUM
    if first == 1:
        FUNCTIONS["scalar_tensor_tensor"](out, data, "multiply", factor, "multiply", weights)
        return out
    scaled = new(data.shape, "float32")
    repeated = broadcast_last(factor.reshape(kept), data.shape)
    FUNCTIONS["tensor_tensor"](scaled, data, repeated, "multiply")
    FUNCTIONS["tensor_tensor"](out, scaled, weights, "multiply")
    return out
