"""Rules of reductions, windows, scans and sorts."""

from __future__ import annotations

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.shape_rules.checks import (
    CUMULATIVE_KINDS,
    INTEGERS,
    PRED,
    REAL,
    REDUCE_KINDS,
    WINDOW_KINDS,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dim,
    check_dims,
    check_dtype,
    check_ints,
    check_kind,
    choice,
)
from neuronxcc.ir.shape_rules.contraction import dilated, windows


def reduce_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Without the reduced dimensions."""
    arity(op, types, 1)
    (x,) = types
    check_kind(op, attrs, REDUCE_KINDS, x.dtype)
    dims = check_dims(op, "dims", attrs["dims"], x.rank)
    return (TensorType(x.dtype, tuple(n for d, n in enumerate(x.shape) if d not in dims)),)


def arg_reduce_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Without the dimension, which is not empty."""
    arity(op, types, 1)
    (x,) = types
    check_kind(op, attrs, ("min", "max"), x.dtype)
    check_dtype(op, attrs["dtype"], INTEGERS, "index")
    dim = check_dim(op, attrs, x.rank)
    if not x.shape[dim]:
        raise ShapeError(op, f"dim {dim} of {x} is empty; it has no first element")
    return (TensorType(attrs["dtype"], (*x.shape[:dim], *x.shape[dim + 1 :])),)


def _window_shape(op: Op, x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    window = check_ints(op, "window", attrs["window"], x.rank, 1)
    strides = check_ints(op, "strides", attrs["strides"], x.rank, 1)
    low = check_ints(op, "low", attrs["low"], x.rank)
    high = check_ints(op, "high", attrs["high"], x.rank)
    ones = (1,) * x.rank
    base = check_ints(op, "base_dilation", attrs.get("base_dilation", ones), x.rank, 1)
    holes = check_ints(op, "window_dilation", attrs.get("window_dilation", ones), x.rank, 1)
    return tuple(
        windows(
            max(low[i] + dilated(x.shape[i], base[i]) + high[i], 0),
            dilated(window[i], holes[i]),
            strides[i],
        )
        for i in range(x.rank)
    )


def reduce_window_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """As many elements as windows fit."""
    arity(op, types, 1)
    (x,) = types
    check_kind(op, attrs, WINDOW_KINDS, x.dtype)
    return (TensorType(x.dtype, _window_shape(op, x, attrs)),)


def select_and_scatter_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The source has one element per window."""
    arity(op, types, 2)
    x, source = types
    check_kind(op, attrs, ("add", "mul", "min", "max"), x.dtype)
    choice(op, "select", attrs["select"], ("max", "min"))
    check_dtype(op, x.dtype, INTEGERS | REAL)
    expected = TensorType(x.dtype, _window_shape(op, x, attrs))
    if source != expected:
        raise ShapeError(op, f"source {source}; the windows need {expected}")
    return (x,)


def cumulative_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The type of the operand."""
    arity(op, types, 1)
    check_kind(op, attrs, CUMULATIVE_KINDS, types[0].dtype)
    check_dim(op, attrs, types[0].rank)
    return types


def sort_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Operands of one shape; the first is the key and has an order."""
    if not types:
        raise ShapeError(op, "takes at least one operand")
    if any(t.shape != types[0].shape for t in types):
        listed = ", ".join(map(str, types))
        raise ShapeError(op, f"({listed}); operands must have one shape")
    check_dtype(op, types[0].dtype, PRED | INTEGERS | REAL, "key")
    check_dim(op, attrs, types[0].rank)
    return types


def topk_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The last dimension shrinks to k; values and positions."""
    arity(op, types, 1)
    (x,) = types
    check_dtype(op, x.dtype, PRED | INTEGERS | REAL)
    k = attrs["k"]
    if not x.rank or not 0 <= k <= x.shape[-1]:
        raise ShapeError(op, f"k {k} of {x}; must be in [0, last extent]")
    shape = (*x.shape[:-1], k)
    return (TensorType(x.dtype, shape), TensorType(DType.S64, shape))
