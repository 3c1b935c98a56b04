"""Operators that move elements to places which follow from shapes and attributes alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dim,
    check_dims,
    check_ints,
    check_shape,
    dilated,
)
from neuronxcc.ir.operators.definition import (
    Case,
    Cost,
    Kind,
    Meaning,
    Operator,
    Rule,
    names,
    tensor,
)
from neuronxcc.targets import Engine


def _operator(
    op: Op,
    rule: Rule,
    meaning: Meaning,
    attrs: str,
    case: Callable[[], Case],
    *,
    view: bool = False,
) -> Operator:
    """A block; `view`: it costs nothing."""
    return Operator(
        op=op,
        kind=Kind.MOVEMENT,
        engine=Engine.NONE if view else Engine.DMA,
        cost=Cost.FREE if view else Cost.BYTES,
        attrs=names(attrs),
        rule=rule,
        meaning=meaning,
        cases=lambda: (case(),),
        complex=True,
    )


_X = tensor(DType.F32, 3, 4, 5)  # of cases


# ---- broadcast_in_dim ---------------------------------------------------------------------------


def broadcast_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Dimensions keep their order and their extent, or grow from 1."""
    arity(op, types, 1)
    x, shape = types[0], check_shape(op, attrs["shape"])
    dims = check_dims(op, "dims", attrs["dims"], len(shape))
    fits = len(dims) == x.rank and list(dims) == sorted(dims)
    if not fits or any(n not in (1, shape[d]) for n, d in zip(x.shape, dims, strict=True)):
        raise ShapeError(
            op,
            f"{x} to {list(shape)} with dims {dims}; needs one increasing dimension per operand "
            "dimension, of equal extent unless the operand's is 1",
        )
    return (TensorType(x.dtype, shape),)


def broadcast(node: Node, x: Array) -> Array:
    """BROADCAST_IN_DIM."""
    aligned = [1] * len(node["shape"])
    for extent, dim in zip(x.shape, node["dims"], strict=True):
        aligned[dim] = extent
    return np.broadcast_to(x.reshape(aligned), node["shape"])


BROADCAST_IN_DIM = _operator(
    Op.BROADCAST_IN_DIM,
    broadcast_rule,
    broadcast,
    "shape dims",
    lambda: Case("", (tensor(DType.F32, 3, 1),), {"shape": (2, 3, 4), "dims": (1, 2)}),
)

# ---- reshape ------------------------------------------------------------------------------------


def reshape_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The number of elements stays."""
    arity(op, types, 1)
    x, shape = types[0], check_shape(op, attrs["shape"])
    if math.prod(shape) != x.size:
        raise ShapeError(op, f"{x} to {list(shape)}; the number of elements must stay {x.size}")
    return (TensorType(x.dtype, shape),)


RESHAPE = _operator(
    Op.RESHAPE,
    reshape_rule,
    lambda node, x: x.reshape(node["shape"]),
    "shape",
    lambda: Case("", (_X,), {"shape": (6, 10)}),
    view=True,
)

# ---- transpose ----------------------------------------------------------------------------------


def transpose_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Every dimension once."""
    arity(op, types, 1)
    (x,) = types
    permutation = check_dims(op, "permutation", attrs["permutation"], x.rank)
    if len(permutation) != x.rank:
        raise ShapeError(op, f"permutation {permutation} of {x}; must name every dimension")
    return (TensorType(x.dtype, tuple(x.shape[d] for d in permutation)),)


TRANSPOSE = _operator(
    Op.TRANSPOSE,
    transpose_rule,
    lambda node, x: x.transpose(node["permutation"]),
    "permutation",
    lambda: Case("", (_X,), {"permutation": (2, 0, 1)}),
)

# ---- slice --------------------------------------------------------------------------------------


def slice_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The window lies inside."""
    arity(op, types, 1)
    (x,) = types
    starts = check_ints(op, "starts", attrs["starts"], x.rank, 0)
    limits = check_ints(op, "limits", attrs["limits"], x.rank, 0)
    strides = check_ints(op, "strides", attrs["strides"], x.rank, 1)
    if any(not a <= b <= n for a, b, n in zip(starts, limits, x.shape, strict=True)):
        raise ShapeError(op, f"[{starts}, {limits}) of {x}; needs 0 <= start <= limit <= extent")
    shape = (-(-(b - a) // s) for a, b, s in zip(starts, limits, strides, strict=True))
    return (TensorType(x.dtype, tuple(shape)),)


def _slice(node: Node, x: Array) -> Array:
    return x[tuple(map(slice, node["starts"], node["limits"], node["strides"]))]


SLICE = _operator(
    Op.SLICE,
    slice_rule,
    _slice,
    "starts limits strides",
    lambda: Case("", (_X,), {"starts": (0, 1, 1), "limits": (3, 4, 5), "strides": (2, 1, 3)}),
)

# ---- pad: x, value ------------------------------------------------------------------------------


def pad_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The value is a scalar of the operand's type; no extent gets negative."""
    arity(op, types, 2)
    x, value = types
    if value != TensorType(x.dtype):
        raise ShapeError(op, f"value {value}; must be a scalar of type {x.dtype.value}")
    low = check_ints(op, "low", attrs["low"], x.rank)
    high = check_ints(op, "high", attrs["high"], x.rank)
    interior = check_ints(op, "interior", attrs["interior"], x.rank, 0)
    edges = zip(x.shape, low, high, interior, strict=True)
    shape = tuple(a + dilated(n, i + 1) + b for n, a, b, i in edges)
    if any(n < 0 for n in shape):
        raise ShapeError(op, f"low {low}, high {high} of {x} give extents {shape}")
    return (TensorType(x.dtype, shape),)


def padded(x: Array, value: Any, low: Any, high: Any, distance: Any) -> Array:
    """Put elements `distance` apart, then pad with value or, where negative, cut off."""
    spread = [(n - 1) * d + 1 if n else 0 for n, d in zip(x.shape, distance, strict=True)]
    inner = np.full(spread, value, x.dtype)
    inner[tuple(slice(None, None, d) for d in distance)] = x
    shape = [max(n + a + b, 0) for n, a, b in zip(spread, low, high, strict=True)]
    result = np.full(shape, value, x.dtype)
    source, target = [], []
    for n, out, a in zip(spread, shape, low, strict=True):
        first, place = max(-a, 0), max(a, 0)
        count = max(min(n - first, out - place), 0)
        source.append(slice(first, first + count))
        target.append(slice(place, place + count))
    result[tuple(target)] = inner[tuple(source)]
    return result


def pad(node: Node, x: Array, value: Array) -> Array:
    """PAD."""
    return padded(x, value, node["low"], node["high"], [i + 1 for i in node["interior"]])


PAD = _operator(
    Op.PAD,
    pad_rule,
    pad,
    "low high interior",
    lambda: Case(
        "",
        (_X, tensor(DType.F32)),
        {"low": (1, -1, 0), "high": (0, 2, -2), "interior": (0, 1, 0)},
    ),
)

# ---- concatenate --------------------------------------------------------------------------------


def concatenate_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Operands differ in one dimension only."""
    if not types:
        raise ShapeError(op, "takes at least one operand")
    first = types[0]
    dim = check_dim(op, attrs, first.rank)

    def others(t: TensorType) -> tuple[Any, ...]:
        return (t.dtype, t.rank, t.shape[:dim], t.shape[dim + 1 :])

    if any(others(t) != others(first) for t in types):
        listed = ", ".join(map(str, types))
        raise ShapeError(op, f"({listed}) along {dim}; may differ in that dimension only")
    shape = (*first.shape[:dim], sum(t.shape[dim] for t in types), *first.shape[dim + 1 :])
    return (TensorType(first.dtype, shape),)


CONCATENATE = _operator(
    Op.CONCATENATE,
    concatenate_rule,
    lambda node, *parts: np.concatenate(parts, node["dim"]),
    "dim",
    lambda: Case("", (_X, tensor(DType.F32, 3, 1, 5)), {"dim": 1}),
)

# ---- reverse ------------------------------------------------------------------------------------


def reverse_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Distinct dimensions."""
    arity(op, types, 1)
    check_dims(op, "dims", attrs["dims"], types[0].rank)
    return types


REVERSE = _operator(
    Op.REVERSE,
    reverse_rule,
    lambda node, x: np.flip(x, node["dims"]),
    "dims",
    lambda: Case("", (_X,), {"dims": (0, 2)}),
)

OPERATORS = (BROADCAST_IN_DIM, RESHAPE, TRANSPOSE, SLICE, PAD, CONCATENATE, REVERSE)
