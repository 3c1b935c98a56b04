"""Sums, extremes, moments, scans, and softmax along a dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from neuronxcc.ir import build as b
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from torch_neuronx.dynamo import emit as e
from torch_neuronx.dynamo.dtypes import Scalar, compute_dtype
from torch_neuronx.dynamo.lowerings.pointwise import finish
from torch_neuronx.dynamo.registry import Context, lowers

aten = torch.ops.aten
Dims = int | Sequence[int] | None


def wide(cx: Context, x: Node) -> Node:
    """The operand in the type that the result is computed in."""
    return b.convert(x, compute_dtype(cx.dtype))


def _reduced(cx: Context, kind: str, x: Node, dims: Dims, *, keep: bool) -> Node:
    return finish(cx, b.reduce(x, kind, e.dims(dims, x.type.rank), keep=keep))


@lowers(aten.sum.default, aten.sum.dim_IntList)
def sum_(
    cx: Context, x: Node, dims: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> Node:
    del dtype  # cx.dtype
    return _reduced(cx, "add", wide(cx, x), dims, keep=keepdim)


@lowers(aten.prod.default)
def prod(cx: Context, x: Node, *, dtype: object = None) -> Node:
    del dtype
    return _reduced(cx, "mul", wide(cx, x), None, keep=False)


@lowers(aten.prod.dim_int)
def prod_dim(
    cx: Context, x: Node, dims: Dims, keepdim: bool = False, *, dtype: object = None
) -> Node:
    del dtype
    return _reduced(cx, "mul", wide(cx, x), dims, keep=keepdim)


@lowers(aten.mean.default, aten.mean.dim)
def mean(
    cx: Context, x: Node, dims: Dims = None, keepdim: bool = False, *, dtype: object = None
) -> Node:
    del keepdim, dtype
    x = wide(cx, x)
    over = e.dims(dims, x.type.rank)
    count = math.prod(x.shape[d] for d in over) if x.type.rank else 1
    total = b.reduce(x, "add", over)
    return finish(cx, b.reshape(_divided(total, count), cx.shape))


def _divided(x: Node, count: float) -> Node:
    return b.divide(x, e.like(x, count))


@lowers(aten.amax.default)
def amax(cx: Context, x: Node, dims: Dims = (), keepdim: bool = False) -> Node:
    return _reduced(cx, "max", x, dims, keep=keepdim)


@lowers(aten.amin.default)
def amin(cx: Context, x: Node, dims: Dims = (), keepdim: bool = False) -> Node:
    return _reduced(cx, "min", x, dims, keep=keepdim)


@lowers(aten.max.default)
def max_(cx: Context, x: Node) -> Node:
    return _reduced(cx, "max", x, None, keep=False)


@lowers(aten.min.default)
def min_(cx: Context, x: Node) -> Node:
    return _reduced(cx, "min", x, None, keep=False)


@lowers(aten.aminmax.default)
def aminmax(
    cx: Context, x: Node, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Node, Node]:
    del keepdim
    over = e.dims(dim, x.type.rank)
    low, high = (b.reshape(b.reduce(x, kind, over), cx.shape) for kind in ("min", "max"))
    return low, high


def _extreme(kind: str, cx: Context, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
    del keepdim
    if not x.type.rank:
        return x, e.number(0, DType.S64)
    over = e.dim(dim, x.type.rank)
    value = b.reshape(b.reduce(x, kind, over), cx.shape)
    return value, b.reshape(b.arg_reduce(x, kind, over), cx.shape)


lowers(aten.max.dim)(partial(_extreme, "max"))
lowers(aten.min.dim)(partial(_extreme, "min"))


def _position(
    kind: str, cx: Context, x: Node, dim: int | None = None, keepdim: bool = False
) -> Node:
    del keepdim
    if not x.type.rank:
        return e.number(0, DType.S64, cx.shape)
    if dim is None:
        return b.reshape(b.arg_reduce(b.reshape(x, (x.type.size,)), kind, 0), cx.shape)
    return b.reshape(b.arg_reduce(x, kind, e.dim(dim, x.type.rank)), cx.shape)


lowers(aten.argmax.default)(partial(_position, "max"))
lowers(aten.argmin.default)(partial(_position, "min"))


def _truth(kind: str, cx: Context, x: Node, dims: Dims = None, keepdim: bool = False) -> Node:
    truth = e.not_zero(x)
    return _reduced(cx, kind, truth, dims, keep=keepdim)


lowers(aten.any.default, aten.any.dim, aten.any.dims)(partial(_truth, "or"))
lowers(aten.all.default, aten.all.dim, aten.all.dims)(partial(_truth, "and"))


# ---- moments ------------------------------------------------------------------------------------


def moments(x: Node, over: Sequence[int], correction: float = 0) -> tuple[Node, Node]:
    """Mean and variance over dimensions, in two passes; shapes without these dimensions.

    Everything is seen from the first element, so equal ones have no variance, however large.
    """
    count = math.prod(x.shape[d] for d in over)
    if not count:
        average = _divided(b.reduce(x, "add", over), count)
        return average, _divided(average, 0)
    limits = [1 if d in over else n for d, n in enumerate(x.shape)]
    first = b.slice_(x, [0] * x.type.rank, limits)
    near = b.subtract(x, b.broadcast_to(first, x.shape))
    shift = _divided(b.reduce(near, "add", over), count)
    average = b.add(b.reshape(first, shift.shape), shift)
    apart = b.subtract(near, e.back(shift, x.shape, over))
    if x.dtype.is_complex:
        parts = b.real(apart), b.imag(apart)
        square = b.add(*(b.multiply(p, p) for p in parts))
    else:
        square = b.multiply(apart, apart)
    total = b.reduce(square, "add", over)
    return average, _divided(total, max(count - correction, 0))


def _spread(
    cx: Context, x: Node, dims: Dims, correction: Scalar | None, *, root: bool
) -> tuple[Node, Node]:
    """(Standard deviation or variance, mean), in the type that they are computed in."""
    x = b.convert(x, compute_dtype(x.dtype))
    over = e.dims(dims, x.type.rank)
    amount = 1.0 if correction is None else float(correction.real)
    average, variance = moments(x, over, amount)
    spread = b.sqrt(variance) if root else variance
    return b.reshape(spread, cx.shape), b.reshape(average, cx.shape)


Moments = Callable[[Context, Node, Dims, Scalar | None], Node | tuple[Node, Node]]


def _moments_of(
    with_mean: bool, root: bool, cx: Context, x: Node, dims: Dims, correction: Scalar | None
) -> Node | tuple[Node, Node]:
    spread, average = _spread(cx, x, dims, correction, root=root)
    spread = b.convert(spread, cx.types[0].dtype)
    return (spread, b.convert(average, cx.types[1].dtype)) if with_mean else spread


def _enter_moments() -> None:
    for name, with_mean, root in (
        ("var", False, False),
        ("std", False, True),
        ("var_mean", True, False),
        ("std_mean", True, True),
    ):
        packet = getattr(aten, name)
        of: Moments = partial(_moments_of, with_mean, root)

        def default(
            cx: Context, x: Node, unbiased: bool = True, *, of: Moments = of
        ) -> Node | tuple[Node, Node]:
            return of(cx, x, None, int(unbiased))

        def dim(
            cx: Context,
            x: Node,
            dims: Dims,
            unbiased: bool = True,
            keepdim: bool = False,
            *,
            of: Moments = of,
        ) -> Node | tuple[Node, Node]:
            del keepdim
            return of(cx, x, dims, int(unbiased))

        def correction_(
            cx: Context,
            x: Node,
            dims: Dims = None,
            *,
            correction: Scalar | None = None,
            keepdim: bool = False,
            of: Moments = of,
        ) -> Node | tuple[Node, Node]:
            del keepdim
            return of(cx, x, dims, correction)

        lowers(packet.default)(default)
        lowers(packet.dim)(dim)
        lowers(packet.correction)(correction_)


_enter_moments()


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    cx: Context,
    x: Node,
    order: float = 2,
    dims: Dims = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Node:
    del keepdim, dtype
    if x.dtype.is_complex:
        x = b.abs_(x)
    x = wide(cx, x)
    over = e.dims(dims, x.type.rank)
    size = b.abs_(x)
    if order != 0 and all(x.shape[d] == 1 for d in over):
        return finish(cx, b.reshape(size, cx.shape))  # no square that overflows
    if order == math.inf:
        result = b.reduce(size, "max", over)
    elif order == -math.inf:
        result = b.reduce(size, "min", over)
    elif order == 0:
        result = b.reduce(b.convert(e.not_zero(x), x.dtype), "add", over)
    elif order == 1:
        result = b.reduce(size, "add", over)
    elif order == 2:
        result = b.sqrt(b.reduce(b.multiply(x, x), "add", over))
    else:
        total = b.reduce(b.power(size, e.like(size, order)), "add", over)
        result = b.power(total, e.like(total, 1 / order))
    if not x.type.size and order < 0:
        result = e.like(result, math.inf)
    return finish(cx, b.reshape(result, cx.shape))


@lowers(aten.logsumexp.default)
def logsumexp(cx: Context, x: Node, dims: Dims, keepdim: bool = False) -> Node:
    del keepdim
    x = wide(cx, x)
    over = e.dims(dims, x.type.rank)
    top = b.reduce(b.real(x) if x.dtype.is_complex else x, "max", over)
    top = b.select(b.is_finite(top), top, b.select(b.is_nan(top), top, e.like(top, 0)))
    top = b.convert(top, x.dtype)
    total = b.reduce(b.exp(b.subtract(x, e.back(top, x.shape, over))), "add", over)
    return finish(cx, b.reshape(b.add(b.log(total), top), cx.shape))


# ---- scans --------------------------------------------------------------------------------------


def _scan(kind: str, cx: Context, x: Node, dim: int, *, dtype: object = None) -> Node:
    del dtype
    x = wide(cx, x)
    if kind == "logaddexp" and x.dtype.is_complex:
        raise NotImplementedError("logcumsumexp of complex numbers")
    return finish(cx, b.cumulative(x, kind, dim) if x.type.rank else x)


for _overload, _kind in {
    aten.cumsum.default: "add",
    aten.cumprod.default: "mul",
    aten.logcumsumexp.default: "logaddexp",
}.items():
    lowers(_overload)(partial(_scan, _kind))


def _running(kind: str, cx: Context, x: Node, dim: int) -> tuple[Node, Node]:
    """Running extremes with the position of the last one that equals them, as PyTorch does."""
    if not x.type.rank:
        return x, e.number(0, DType.S64)
    axis = e.dim(dim, x.type.rank)
    best = b.cumulative(x, kind, axis)
    here = b.equal(x, best)
    if x.dtype.is_float:
        here = b.or_(here, b.is_nan(x))
    place = e.positions(x.shape, axis)
    last = b.cumulative(b.select(here, place, e.like(place, 0)), "max", axis)
    return best, b.reshape(last, cx.shape)


lowers(aten.cummax.default)(partial(_running, "max"))
lowers(aten.cummin.default)(partial(_running, "min"))


# ---- softmax ------------------------------------------------------------------------------------


def softmax_of(x: Node, dim: int) -> Node:
    """Softmax of a float32 or float64 tensor along one dimension."""
    powers, total = _shifted_exp(x, dim)[1:]
    return b.divide(powers, e.back(total, x.shape, (dim,)))


def _shifted_exp(x: Node, dim: int) -> tuple[Node, Node, Node]:
    top = b.reduce(x, "max", dim)
    shifted = b.subtract(x, e.back(top, x.shape, (dim,)))
    powers = b.exp(shifted)
    return shifted, powers, b.reduce(powers, "add", dim)


def _softmax(log: bool, cx: Context, x: Node, dim: int, half_to_float: bool = False) -> Node:
    del half_to_float
    x = b.convert(x, compute_dtype(x.dtype))
    if not x.type.rank:
        return finish(cx, b.subtract(x, x) if log else b.exp(b.subtract(x, x)))
    axis = e.dim(dim, x.type.rank)
    if not log:
        return finish(cx, softmax_of(x, axis))
    shifted, _, total = _shifted_exp(x, axis)
    return finish(cx, b.subtract(shifted, e.back(b.log(total), x.shape, (axis,))))


lowers(aten._softmax.default)(partial(_softmax, False))
lowers(aten._log_softmax.default)(partial(_softmax, True))


def _softmax_backward(
    log: bool, cx: Context, grad: Node, y: Node, dim: int, input_dtype: object = None
) -> Node:
    del input_dtype
    working = compute_dtype(y.dtype)
    g, y = b.convert(grad, working), b.convert(y, working)
    if not y.type.rank:
        return finish(cx, b.multiply(b.subtract(g, g), y))
    axis = (e.dim(dim, y.type.rank),)
    if log:
        total = e.back(b.reduce(g, "add", axis), y.shape, axis)
        return finish(cx, b.subtract(g, b.multiply(b.exp(y), total)))
    weighted = b.multiply(g, y)
    total = e.back(b.reduce(weighted, "add", axis), y.shape, axis)
    return finish(cx, b.subtract(weighted, b.multiply(y, total)))


lowers(aten._softmax_backward_data.default)(partial(_softmax_backward, False))
lowers(aten._log_softmax_backward_data.default)(partial(_softmax_backward, True))

# ---- order --------------------------------------------------------------------------------------


@lowers(aten.sort.default)
def sort(cx: Context, x: Node, dim: int = -1, descending: bool = False) -> tuple[Node, Node]:
    return sort_stable(cx, x, stable=False, dim=dim, descending=descending)


@lowers(aten.sort.stable)
def sort_stable(
    cx: Context, x: Node, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Node, Node]:
    del cx, stable  # always stable, as PyTorch's CPU kernel is
    if not x.type.rank:
        return x, e.number(0, DType.S64)
    axis = e.dim(dim, x.type.rank)
    node = b.sort([x, e.positions(x.shape, axis)], axis, descending=descending)
    return b.get(node, 0), b.get(node, 1)


@lowers(aten.topk.default)
def topk(
    cx: Context, x: Node, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Node, Node]:
    del sorted  # always in order
    if not x.type.rank:
        return b.reshape(x, cx.shape), e.number(0, DType.S64, cx.shape)
    axis = e.dim(dim, x.type.rank)
    node = b.topk(b.swap_dims(x, axis, -1), k, largest=largest)
    return b.swap_dims(b.get(node, 0), axis, -1), b.swap_dims(b.get(node, 1), axis, -1)
