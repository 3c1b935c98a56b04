"""Builders of tensor IR nodes: a function per operator, plus what front ends want besides.

Every function checks its operands by the operator's rule in `shapes` and raises ShapeError. Names
are those of `Op` in lower case, with an underscore where Python has the name (`and_`, `slice_`).
Dimensions may be negative here and count from the end; nodes hold them normalised.

A Python number is taken where an elementwise operator expects a node: it becomes a constant of the
type of the other operand, which must represent it (integers) or is rounded to (floats).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from neuronxcc.ir.arithmetic import cast
from neuronxcc.ir.calls import *  # noqa: F403 - so that `build` has a function for every operator
from neuronxcc.ir.collectives import *  # noqa: F403
from neuronxcc.ir.dtypes import FLOATS8, DType
from neuronxcc.ir.make import *  # noqa: F403
from neuronxcc.ir.make import Ints, axes, axis, make
from neuronxcc.ir.node import Literal, Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError

Number = bool | int | float | complex
Operand = Node | Number


def _per_dim(values: Ints, rank: int) -> tuple[int, ...]:
    """One integer for all dimensions, or one each."""
    return (values,) * rank if isinstance(values, int) else tuple(values)


# ---- leaves -------------------------------------------------------------------------------------


def constant(
    value: Number | np.ndarray,
    dtype: DType | None = None,
    shape: Sequence[int] = (),
    *,
    owned: bool = False,
) -> Node:
    """A constant.

    Args:
        value: An array, kept as it is in element type if `dtype` is None; or a number.
        dtype: Type of the result; required for a number. Floats round to it, to nearest even.
        shape: For a number: the shape to fill with it (a broadcast of a scalar constant).
        owned: Nobody will write to the array again, so it need not be copied.

    Raises:
        ShapeError: an integer type cannot hold the number, or the number's type is not given.
    """
    if isinstance(value, np.ndarray):
        array = value if dtype is None else cast(value, dtype)
        return make(Op.CONSTANT, (), literal=Literal(array, owned=owned))
    if dtype is None:
        raise ShapeError(Op.CONSTANT, f"number {value!r} without a dtype")
    scalar = make(Op.CONSTANT, (), literal=Literal(_exact(value, dtype)))
    return broadcast_in_dim(scalar, shape, ()) if tuple(shape) else scalar


def _exact(value: Number, dtype: DType) -> np.ndarray:
    if isinstance(value, complex) and not dtype.is_complex:
        raise ShapeError(Op.CONSTANT, f"{value!r} as {dtype.value}; it is complex")
    if dtype.is_integer or dtype is DType.PRED:
        low, high = (0, 1) if dtype is DType.PRED else _range(dtype)
        if isinstance(value, complex) or not math.isfinite(value) or value != int(value):
            raise ShapeError(Op.CONSTANT, f"{value!r} as {dtype.value}; it is not an integer")
        if not low <= int(value) <= high:
            raise ShapeError(
                Op.CONSTANT, f"{value!r} as {dtype.value}; its range is [{low}, {high}]"
            )
        return np.array(int(value), dtype.numpy)
    if dtype in (DType.F64, DType.C64, DType.C128):
        return np.array(value, dtype.numpy)
    with np.errstate(over="ignore"):  # infinity is what rounding gives
        return cast(np.array(value, np.float64), dtype)


def _range(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def splat(value: Number, type_: TensorType) -> Node:
    """A tensor of that type filled with a number."""
    return constant(value, type_.dtype, type_.shape)


def full_like(x: Node, value: Number) -> Node:
    """A tensor of the type of `x` filled with a number."""
    return splat(value, x.type)


def iota(dtype: DType, shape: Sequence[int], dim: int) -> Node:
    """The position along `dim`, counted from 0, for every element of the shape."""
    extents = tuple(shape)
    if not (dtype.is_integer or dtype.is_float or dtype.is_complex):
        raise ShapeError(Op.IOTA, f"of {dtype.value}; must be a number")
    dim = axis(Op.IOTA, dim, len(extents))
    return Node.make(Op.IOTA, TensorType(dtype, extents), (), {"dim": dim})


# ---- elementwise --------------------------------------------------------------------------------


def unary(op: Op, x: Node) -> Node:
    """An operator of `Group.UNARY`."""
    return make(op, (x,))


def binary(op: Op, lhs: Operand, rhs: Operand) -> Node:
    """An operator of `Group.BINARY` on two tensors of one type, or a tensor and a number."""
    return make(op, _pair(op, lhs, rhs))


def _pair(op: Op, lhs: Operand, rhs: Operand) -> tuple[Node, Node]:
    if isinstance(lhs, Node):
        return lhs, rhs if isinstance(rhs, Node) else full_like(lhs, rhs)
    if not isinstance(rhs, Node):
        raise ShapeError(op, f"operands {lhs!r} and {rhs!r}; one must be a tensor")
    return full_like(rhs, lhs), rhs


abs_ = partial(unary, Op.ABS)  # of a complex number: real
negate = partial(unary, Op.NEGATE)
sign = partial(unary, Op.SIGN)
ceil = partial(unary, Op.CEIL)
floor = partial(unary, Op.FLOOR)
round_even = partial(unary, Op.ROUND_EVEN)
trunc = partial(unary, Op.TRUNC)
exp = partial(unary, Op.EXP)
exp2 = partial(unary, Op.EXP2)
expm1 = partial(unary, Op.EXPM1)
log = partial(unary, Op.LOG)
log2 = partial(unary, Op.LOG2)
log10 = partial(unary, Op.LOG10)
log1p = partial(unary, Op.LOG1P)
sqrt = partial(unary, Op.SQRT)
rsqrt = partial(unary, Op.RSQRT)
sin = partial(unary, Op.SIN)
cos = partial(unary, Op.COS)
tan = partial(unary, Op.TAN)
sinh = partial(unary, Op.SINH)
cosh = partial(unary, Op.COSH)
tanh = partial(unary, Op.TANH)
asin = partial(unary, Op.ASIN)
acos = partial(unary, Op.ACOS)
atan = partial(unary, Op.ATAN)
asinh = partial(unary, Op.ASINH)
acosh = partial(unary, Op.ACOSH)
atanh = partial(unary, Op.ATANH)
erf = partial(unary, Op.ERF)
erfc = partial(unary, Op.ERFC)
normal_cdf = partial(unary, Op.NORMAL_CDF)
normal_pdf = partial(unary, Op.NORMAL_PDF)
erfinv = partial(unary, Op.ERFINV)
lgamma = partial(unary, Op.LGAMMA)
digamma = partial(unary, Op.DIGAMMA)
logistic = partial(unary, Op.LOGISTIC)
not_ = partial(unary, Op.NOT)
popcnt = partial(unary, Op.POPCNT)
conj = partial(unary, Op.CONJ)
is_finite = partial(unary, Op.IS_FINITE)
is_nan = partial(unary, Op.IS_NAN)
real = partial(unary, Op.REAL)
imag = partial(unary, Op.IMAG)

add = partial(binary, Op.ADD)
subtract = partial(binary, Op.SUBTRACT)
multiply = partial(binary, Op.MULTIPLY)
divide = partial(binary, Op.DIVIDE)
remainder = partial(binary, Op.REMAINDER)
power = partial(binary, Op.POWER)
maximum = partial(binary, Op.MAXIMUM)
minimum = partial(binary, Op.MINIMUM)
atan2 = partial(binary, Op.ATAN2)
nextafter = partial(binary, Op.NEXTAFTER)
copysign = partial(binary, Op.COPYSIGN)
and_ = partial(binary, Op.AND)
or_ = partial(binary, Op.OR)
xor = partial(binary, Op.XOR)
shift_left = partial(binary, Op.SHIFT_LEFT)
shift_right_arithmetic = partial(binary, Op.SHIFT_RIGHT_ARITHMETIC)
shift_right_logical = partial(binary, Op.SHIFT_RIGHT_LOGICAL)
complex_ = partial(binary, Op.COMPLEX)


def compare(lhs: Operand, rhs: Operand, direction: str) -> Node:
    """Compare; direction is EQ, NE, LT, LE, GT or GE. All but NE are false where there is a NaN."""
    return make(Op.COMPARE, _pair(Op.COMPARE, lhs, rhs), direction=direction)


equal = partial(compare, direction="EQ")
not_equal = partial(compare, direction="NE")
less = partial(compare, direction="LT")
less_equal = partial(compare, direction="LE")
greater = partial(compare, direction="GT")
greater_equal = partial(compare, direction="GE")


def select(pred: Node, on_true: Operand, on_false: Operand) -> Node:
    """`on_true` where `pred`, else `on_false`; a scalar predicate chooses for all elements."""
    on_true, on_false = _pair(Op.SELECT, on_true, on_false)
    if not pred.shape and on_true.shape:
        pred = broadcast_in_dim(pred, on_true.shape, ())
    return make(Op.SELECT, (pred, on_true, on_false))


def clamp(low: Operand, x: Node, high: Operand) -> Node:
    """minimum(maximum(x, low), high): NaN in any operand wins. Scalar bounds are broadcast."""
    bounds = []
    for bound in (low, high):
        node = bound if isinstance(bound, Node) else full_like(x, bound)
        if not node.shape and x.shape:
            node = broadcast_in_dim(node, x.shape, ())
        bounds.append(node)
    return make(Op.CLAMP, (bounds[0], x, bounds[1]))


def convert(x: Node, dtype: DType) -> Node:
    """Convert to another type; `x` itself if it has it.

    Floats round to nearest even, to 16 and 8-bit types by way of float32, as PyTorch does; too
    large is infinite, but f8e4m3fn saturates at 448 and f8e8m0fnu holds |x|, at least 2**-127.
    Float to integer goes toward zero, saturates, and takes NaN to 0; to pred is `x != 0`; complex
    to real drops the imaginary part; integers wrap.
    """
    return x if x.dtype is dtype else make(Op.CONVERT, (x,), dtype=dtype)


def bitcast_convert(x: Node, dtype: DType) -> Node:
    """The same bits as another type of the same size."""
    return x if x.dtype is dtype else make(Op.BITCAST_CONVERT, (x,), dtype=dtype)


def reduce_precision(x: Node, exponent_bits: int, mantissa_bits: int) -> Node:
    """Round to a format of fewer bits, to nearest even, and keep the type.

    Too large values become infinite, denormals of the smaller format flush to zero, as in XLA.
    """
    return make(Op.REDUCE_PRECISION, (x,), exponent_bits=exponent_bits, mantissa_bits=mantissa_bits)


# ---- movement -----------------------------------------------------------------------------------


def broadcast_in_dim(x: Node, shape: Sequence[int], dims: Sequence[int]) -> Node:
    """Dimension i of `x` becomes dimension dims[i] of the result; extents of 1 repeat."""
    return make(Op.BROADCAST_IN_DIM, (x,), shape=tuple(shape), dims=tuple(dims))


def broadcast_to(x: Node, shape: Sequence[int]) -> Node:
    """Broadcast by NumPy's rules: dimensions are aligned at the end. `x` itself if it fits."""
    extents = tuple(shape)
    if x.shape == extents:
        return x
    if len(extents) < x.type.rank:
        raise ShapeError(Op.BROADCAST_IN_DIM, f"{x.type} to {list(extents)}; the rank may not drop")
    return broadcast_in_dim(x, extents, range(len(extents) - x.type.rank, len(extents)))


def broadcast_together(*nodes: Node) -> tuple[Node, ...]:
    """Broadcast tensors to their common shape by NumPy's rules."""
    try:
        shape = np.broadcast_shapes(*(node.shape for node in nodes))
    except ValueError as error:
        listed = ", ".join(str(node.type) for node in nodes)
        raise ShapeError(Op.BROADCAST_IN_DIM, f"({listed}) have no common shape") from error
    return tuple(broadcast_to(node, shape) for node in nodes)


def reshape(x: Node, shape: Sequence[int]) -> Node:
    """The same elements in row-major order under another shape; `x` itself if it has it."""
    extents = tuple(shape)
    return x if x.shape == extents else make(Op.RESHAPE, (x,), shape=extents)


def expand_dims(x: Node, dims: Ints) -> Node:
    """Insert dimensions of extent 1; `dims` are positions in the result."""
    count = 1 if isinstance(dims, int) else len(dims)
    places = axes(Op.RESHAPE, dims, x.type.rank + count)
    rest = iter(x.shape)
    return reshape(x, [1 if d in places else next(rest) for d in range(x.type.rank + count)])


def transpose(x: Node, permutation: Sequence[int]) -> Node:
    """Dimension i of the result is dimension permutation[i] of `x`."""
    order = axes(Op.TRANSPOSE, permutation, x.type.rank)
    return x if order == tuple(range(x.type.rank)) else make(Op.TRANSPOSE, (x,), permutation=order)


def swap_dims(x: Node, first: int = -2, second: int = -1) -> Node:
    """Exchange two dimensions."""
    order = list(range(x.type.rank))
    a, b = axes(Op.TRANSPOSE, (first, second), x.type.rank)
    order[a], order[b] = order[b], order[a]
    return transpose(x, order)


def slice_(
    x: Node, starts: Sequence[int], limits: Sequence[int], strides: Sequence[int] | None = None
) -> Node:
    """Elements starts[d], starts[d] + strides[d], ... under limits[d], all within the extents."""
    steps = (1,) * x.type.rank if strides is None else tuple(strides)
    return make(Op.SLICE, (x,), starts=tuple(starts), limits=tuple(limits), strides=steps)


def slice_dim(x: Node, dim: int, start: int, limit: int, stride: int = 1) -> Node:
    """Slice one dimension; `x` itself if nothing is left out."""
    dim = axis(Op.SLICE, dim, x.type.rank)
    if (start, limit, stride) == (0, x.shape[dim], 1):
        return x
    starts, limits, strides = [0] * x.type.rank, list(x.shape), [1] * x.type.rank
    starts[dim], limits[dim], strides[dim] = start, limit, stride
    return slice_(x, starts, limits, strides)


def pad(x: Node, value: Operand, low: Ints, high: Ints, interior: Ints = 0) -> Node:
    """Put `value` before, after and between the elements; negative counts cut off."""
    rank = x.type.rank
    fill = value if isinstance(value, Node) else constant(value, x.dtype)
    edges = {"low": low, "high": high, "interior": interior}
    return make(Op.PAD, (x, fill), **{k: _per_dim(v, rank) for k, v in edges.items()})


def concatenate(nodes: Sequence[Node], dim: int) -> Node:
    """Join tensors along a dimension."""
    if len(nodes) == 1:
        return nodes[0]
    rank = nodes[0].type.rank if nodes else 0
    return make(Op.CONCATENATE, nodes, dim=axis(Op.CONCATENATE, dim, rank))


def stack(nodes: Sequence[Node], dim: int) -> Node:
    """Join tensors along a new dimension."""
    return concatenate([expand_dims(node, dim) for node in nodes], dim)


def reverse(x: Node, dims: Ints) -> Node:
    """Turn dimensions around."""
    return make(Op.REVERSE, (x,), dims=sorted(axes(Op.REVERSE, dims, x.type.rank)))


def _starts(starts: Sequence[Node | int]) -> list[Node]:
    return [s if isinstance(s, Node) else constant(s, DType.S64) for s in starts]


def dynamic_slice(x: Node, starts: Sequence[Node | int], sizes: Sequence[int]) -> Node:
    """Cut a window; starts (integer scalars) are clamped so that it lies inside."""
    return make(Op.DYNAMIC_SLICE, (x, *_starts(starts)), sizes=tuple(sizes))


def dynamic_update_slice(x: Node, update: Node, starts: Sequence[Node | int]) -> Node:
    """`x` with a window replaced; starts (integer scalars) are clamped so that it lies inside."""
    return make(Op.DYNAMIC_UPDATE_SLICE, (x, update, *_starts(starts)))


# ---- contractions -------------------------------------------------------------------------------


def dot_general(
    lhs: Node,
    rhs: Node,
    *,
    lhs_batch: Sequence[int] = (),
    rhs_batch: Sequence[int] = (),
    lhs_contract: Sequence[int] = (),
    rhs_contract: Sequence[int] = (),
    dtype: DType | None = None,
) -> Node:
    """Multiply and sum over the contract dimensions, for each position of the batch dimensions.

    The result has the batch dimensions, the others of `lhs`, the others of `rhs`. Floats of up to
    32 bits accumulate in float32 and are rounded once, to `dtype`; integers wrap in `dtype`.

    Args:
        lhs: Left operand.
        rhs: Right operand, of the same type (8-bit floats may be mixed).
        lhs_batch: Batch dimensions, paired with `rhs_batch` in order.
        rhs_batch: See `lhs_batch`.
        lhs_contract: Contract dimensions, paired with `rhs_contract` in order.
        rhs_contract: See `lhs_contract`.
        dtype: Type of the result; None: that of the operands, float32 for 8-bit floats.
    """
    dims = {
        "lhs_batch": axes(Op.DOT_GENERAL, lhs_batch, lhs.type.rank),
        "rhs_batch": axes(Op.DOT_GENERAL, rhs_batch, rhs.type.rank),
        "lhs_contract": axes(Op.DOT_GENERAL, lhs_contract, lhs.type.rank),
        "rhs_contract": axes(Op.DOT_GENERAL, rhs_contract, rhs.type.rank),
    }
    return make(Op.DOT_GENERAL, (lhs, rhs), dtype=_contracted(lhs, dtype), **dims)


def _contracted(lhs: Node, dtype: DType | None) -> DType:
    if dtype is not None:
        return dtype
    return DType.F32 if lhs.dtype in FLOATS8 else lhs.dtype


def matmul(lhs: Node, rhs: Node, dtype: DType | None = None) -> Node:
    """lhs[..., m, k] @ rhs[..., k, n]; leading dimensions broadcast by NumPy's rules.

    Vectors are taken as in NumPy: a row on the left, a column on the right.
    """
    if not (lhs.shape and rhs.shape):
        raise ShapeError(Op.DOT_GENERAL, f"matmul of {lhs.type} and {rhs.type}; no scalars")
    if rhs.type.rank <= 2:  # one matrix for all: no batch dimension, the rows of lhs run on
        return dot_general(lhs, rhs, lhs_contract=(-1,), rhs_contract=(0,), dtype=dtype)
    if lhs.type.rank == 1:
        row = matmul(expand_dims(lhs, 0), rhs, dtype)
        return reshape(row, (*row.shape[:-2], row.shape[-1]))
    try:
        lead = np.broadcast_shapes(lhs.shape[:-2], rhs.shape[:-2])
    except ValueError as error:
        text = f"matmul of {lhs.type} and {rhs.type}; leading dimensions do not broadcast"
        raise ShapeError(Op.DOT_GENERAL, text) from error
    lhs = broadcast_to(lhs, (*lead, *lhs.shape[-2:]))
    rhs = broadcast_to(rhs, (*lead, *rhs.shape[-2:]))
    batch = range(len(lead))
    return dot_general(
        lhs,
        rhs,
        lhs_batch=batch,
        rhs_batch=batch,
        lhs_contract=(-1,),
        rhs_contract=(-2,),
        dtype=dtype,
    )


def convolution(
    x: Node,
    w: Node,
    *,
    strides: Ints = 1,
    low: Ints = 0,
    high: Ints = 0,
    lhs_dilation: Ints = 1,
    rhs_dilation: Ints = 1,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    lhs_spec: Sequence[int] | None = None,
    rhs_spec: Sequence[int] | None = None,
    out_spec: Sequence[int] | None = None,
    dtype: DType | None = None,
) -> Node:
    """Slide `w` over `x` (no flip), multiply and sum; accumulates like `dot_general`.

    Args:
        x: Input; canonical layout (batch, features, spatial...).
        w: Weights; canonical layout (output features, input features of a group, spatial...).
        strides: Step of the window, per spatial dimension or for all.
        low: Zeros before the (dilated) input; negative cuts off.
        high: Zeros after it.
        lhs_dilation: Distance of input elements (transposed convolution).
        rhs_dilation: Distance of weight elements.
        feature_group_count: Groups of features with weights of their own.
        batch_group_count: Groups of the batch, as in XLA (gradients of grouped convolutions).
        lhs_spec: The dimensions of `x` that are batch, features, spatial...; None: canonical.
        rhs_spec: The dimensions of `w` that are output, input features, spatial...
        out_spec: The dimensions of the result that are batch, features, spatial...
        dtype: Type of the result; None: that of the operands, float32 for 8-bit floats.
    """
    rank = x.type.rank
    canonical = tuple(range(rank))
    windows = {
        "strides": strides,
        "low": low,
        "high": high,
        "lhs_dilation": lhs_dilation,
        "rhs_dilation": rhs_dilation,
    }
    return make(
        Op.CONVOLUTION,
        (x, w),
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
        lhs_spec=canonical if lhs_spec is None else tuple(lhs_spec),
        rhs_spec=canonical if rhs_spec is None else tuple(rhs_spec),
        out_spec=canonical if out_spec is None else tuple(out_spec),
        dtype=_contracted(x, dtype),
        **{name: _per_dim(value, rank - 2) for name, value in windows.items()},
    )


# ---- reductions ---------------------------------------------------------------------------------


def reduce(x: Node, kind: str, dims: Ints | None = None, *, keep: bool = False) -> Node:
    """Combine all elements along dimensions: kind add, mul, min, max, and, or, xor.

    16 and 8-bit floats accumulate in float32 and are rounded once. An empty sum is 0, an empty
    product 1, an empty min/max the greatest/least value (infinite for floats). Reductions, windows
    and running totals start there, as PyTorch's do: a sum of nothing but -0.0 is 0.0.

    Args:
        x: Operand.
        kind: How.
        dims: Which; None: all.
        keep: Leave extents of 1 in place of the reduced dimensions.
    """
    over = tuple(sorted(axes(Op.REDUCE, dims, x.type.rank)))
    result = make(Op.REDUCE, (x,), kind=kind, dims=over) if over else alone(x, kind)
    shape = [1 if d in over else n for d, n in enumerate(x.shape)]
    return reshape(result, shape) if keep else result


def alone(x: Node, kind: str) -> Node:
    """Reduce one element, which is `x` already: a sum starts at 0, so it is never -0.0."""
    return add(x, 0) if kind == "add" and not x.dtype.is_integer else x


def arg_reduce(
    x: Node, kind: str, dim: int, dtype: DType = DType.S64, *, keep: bool = False
) -> Node:
    """Position of the extreme (kind min or max) along `dim`: the first; the first NaN if any."""
    dim = axis(Op.ARG_REDUCE, dim, x.type.rank)
    result = make(Op.ARG_REDUCE, (x,), kind=kind, dim=dim, dtype=dtype)
    return expand_dims(result, dim) if keep else result


def reduce_window(
    x: Node,
    kind: str,
    window: Ints,
    *,
    strides: Ints = 1,
    low: Ints = 0,
    high: Ints = 0,
    base_dilation: Ints = 1,
    window_dilation: Ints = 1,
) -> Node:
    """Reduce (add, mul, min, max) every window; all sizes per dimension of `x`, or one for all.

    Padding and holes hold the neutral element of the kind. Accumulates like `reduce`.
    """
    sizes = {
        "window": window,
        "strides": strides,
        "low": low,
        "high": high,
        "base_dilation": base_dilation,
        "window_dilation": window_dilation,
    }
    rank = x.type.rank
    return make(
        Op.REDUCE_WINDOW, (x,), kind=kind, **{k: _per_dim(v, rank) for k, v in sizes.items()}
    )


def select_and_scatter(
    x: Node,
    source: Node,
    window: Ints,
    *,
    strides: Ints = 1,
    low: Ints = 0,
    high: Ints = 0,
    select: str = "max",
    kind: str = "add",
) -> Node:
    """For every window of `x`, combine the source's element into the place of the extreme.

    The gradient of max pooling. The first extreme wins, the first NaN before it; padding is never
    selected. Places that nothing reaches are 0 (kind add), in general the kind's neutral element.
    """
    rank = x.type.rank
    sizes = {"window": window, "strides": strides, "low": low, "high": high}
    return make(
        Op.SELECT_AND_SCATTER,
        (x, source),
        select=select,
        kind=kind,
        **{k: _per_dim(v, rank) for k, v in sizes.items()},
    )


def cumulative(x: Node, kind: str, dim: int) -> Node:
    """Running add, mul, min, max or logaddexp along a dimension, the element itself included."""
    return make(Op.CUMULATIVE, (x,), kind=kind, dim=axis(Op.CUMULATIVE, dim, x.type.rank))


def sort(
    operands: Sequence[Node], dim: int, *, descending: bool = False, stable: bool = True
) -> Node:
    """Sort tensors of one shape together by the first; NaN counts as the largest value.

    Has one result per operand: take them with `get`. -0.0 equals 0.0.
    """
    rank = operands[0].type.rank if operands else 0
    dim = axis(Op.SORT, dim, rank)
    return make(Op.SORT, operands, dim=dim, descending=descending, stable=stable)


def topk(x: Node, k: int, *, largest: bool = True) -> Node:
    """The k extremes along the last dimension, in order, the lower position first among equals.

    Two results (`get`): values, and positions as s64. NaN counts as the largest value.
    """
    return make(Op.TOPK, (x,), k=k, largest=largest)
