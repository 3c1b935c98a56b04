"""Reductions, windows and scans."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import reduce as fold
from typing import Any

import numpy as np

from neuronxcc.ir.arithmetic import COMBINE, Array, arithmetic, cast, neutral, precise_sum
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
    CUMULATIVE_KINDS,
    INTEGERS,
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
    dilated,
    windows,
)
from neuronxcc.ir.operators.definition import (
    Case,
    Cost,
    Gap,
    Kind,
    Operator,
    more_than_one,
    names,
    tensor,
)
from neuronxcc.ir.operators.layout import padded
from neuronxcc.targets import Engine

# ---- reduce -------------------------------------------------------------------------------------


def reduce_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """Without the reduced dimensions."""
    arity(op, types, 1)
    (x,) = types
    check_kind(op, attrs, REDUCE_KINDS, x.dtype)
    dims = check_dims(op, "dims", attrs["dims"], x.rank)
    return (TensorType(x.dtype, tuple(n for d, n in enumerate(x.shape) if d not in dims)),)


def reduce(node: Node, x: Array) -> Array:
    """REDUCE: the elements to combine become the first dimension, combined one by one."""
    dims, kind = node["dims"], node["kind"]
    kept = [d for d in range(x.ndim) if d not in dims]
    count = math.prod(x.shape[d] for d in dims)
    rows = x.transpose([*dims, *kept]).reshape(count, *node.shape)
    return cast(fold(COMBINE[kind], precise_sum(rows, kind), _start(node)), node.dtype)


def _start(node: Node) -> Array:
    """What combining starts with: 0 for sums, so that a sum of nothing but -0.0 is 0.0."""
    value = neutral(node["kind"], node.dtype)
    return precise_sum(np.full(node.shape, value, node.dtype.numpy), node["kind"])


def _reductions() -> Iterable[Case]:
    for kind in REDUCE_KINDS:
        dtype = DType.S32 if kind in ("and", "or", "xor") else DType.F32
        attrs = {"kind": kind, "dims": (0, 2)}
        yield Case(kind, (tensor(dtype, 3, 4, 5),), attrs, special=kind in ("min", "max"))


REDUCE = Operator(
    op=Op.REDUCE,
    kind=Kind.REDUCTION,
    engine=Engine.VECTOR,
    cost=Cost.OPERANDS,
    attrs=names("kind dims"),
    rule=reduce_rule,
    meaning=reduce,
    cases=_reductions,
)

# ---- arg_reduce: the first one wins, NaN wins ---------------------------------------------------


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


def arg_reduce(node: Node, x: Array) -> Array:
    """ARG_REDUCE: NumPy also takes the first, and the first NaN."""
    of = np.argmax if node["kind"] == "max" else np.argmin
    return np.asarray(of(arithmetic(x), axis=node["dim"]), node.dtype.numpy)


def _arg_reductions() -> Iterable[Case]:
    for kind in ("min", "max"):
        attrs = {"kind": kind, "dim": 1, "dtype": DType.S64}
        yield Case(kind, (tensor(DType.F32, 4, 6),), attrs)


ARG_REDUCE = Operator(
    op=Op.ARG_REDUCE,
    kind=Kind.REDUCTION,
    engine=Engine.VECTOR,
    cost=Cost.OPERANDS,
    attrs=names("kind dim dtype"),
    rule=arg_reduce_rule,
    meaning=arg_reduce,
    cases=_arg_reductions,
)

# ---- reduce_window ------------------------------------------------------------------------------


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


def _places(node: Node, out: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """For every place in the window, the elements of the padded operand that lie there."""
    holes = node.get("window_dilation", (1,) * len(out))
    steps = list(zip(holes, out, node["strides"], strict=True))
    return [
        tuple(
            slice(p * h, p * h + (n - 1) * s + 1 if n else p * h, s)
            for p, (h, n, s) in zip(place, steps, strict=True)
        )
        for place in np.ndindex(node["window"])
    ]


def reduce_window(node: Node, x: Array) -> Array:
    """REDUCE_WINDOW."""
    kind = node["kind"]
    fill = neutral(kind, node.dtype)
    wide = precise_sum(padded(x, fill, node["low"], node["high"], node["base_dilation"]), kind)
    if not np.prod(node.shape):
        return np.empty(node.shape, node.dtype.numpy)
    parts = [wide[place] for place in _places(node, node.shape)]
    return cast(fold(COMBINE[kind], parts, _start(node)), node.dtype)


def _windows() -> Iterable[Case]:
    ones = (1, 1, 1)
    attrs = {
        "window": (1, 3, 2),
        "strides": (1, 2, 1),
        "low": (0, 1, 0),
        "high": (0, 1, 1),
        "base_dilation": ones,
        "window_dilation": ones,
    }
    for kind in ("add", "max"):
        types = (tensor(DType.F32, 2, 7, 6),)
        yield Case(kind, types, {**attrs, "kind": kind}, special=kind == "max")


REDUCE_WINDOW = Operator(
    op=Op.REDUCE_WINDOW,
    kind=Kind.REDUCTION,
    engine=Engine.VECTOR,
    cost=Cost.WINDOWS,
    attrs=names("kind window strides low high base_dilation window_dilation"),
    rule=reduce_window_rule,
    meaning=reduce_window,
    cases=_windows,
    gaps=(
        Gap("NCC_EVRF017", lambda node: more_than_one(node, "base_dilation")),
        Gap("NCC_EVRF018", lambda node: more_than_one(node, "window_dilation")),
    ),
)

# ---- select_and_scatter: x, source --------------------------------------------------------------


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


def select_and_scatter(node: Node, x: Array, source: Array) -> Array:
    """SELECT_AND_SCATTER: window by window."""
    kind = node["kind"]
    total = _start(node)
    beats: Callable[[Any, Any], Any] = operator.gt if node["select"] == "max" else operator.lt

    def better(new: Any, best: Any) -> bool:
        return bool(beats(new, best) or (np.isnan(new) and not np.isnan(best)))

    values = arithmetic(x)
    for position in np.ndindex(source.shape):
        first = [
            p * s - low for p, s, low in zip(position, node["strides"], node["low"], strict=True)
        ]
        chosen: tuple[int, ...] | None = None
        for place in np.ndindex(node["window"]):
            where = tuple(a + b for a, b in zip(first, place, strict=True))
            if any(not 0 <= i < n for i, n in zip(where, x.shape, strict=True)):
                continue
            if chosen is None or better(values[where], values[chosen]):
                chosen = where
        if chosen is not None:
            update = precise_sum(np.asarray(source[position]), kind)
            total[chosen] = COMBINE[kind](total[chosen], update)
    return cast(total, node.dtype)


def _selections() -> Iterable[Case]:
    window, none = (1, 2, 2), (0, 0, 0)
    attrs = {"kind": "add", "select": "max", "window": window, "strides": window}
    types = (tensor(DType.F32, 2, 6, 6), tensor(DType.F32, 2, 3, 3))
    yield Case("", types, {**attrs, "low": none, "high": none}, special=False)


SELECT_AND_SCATTER = Operator(
    op=Op.SELECT_AND_SCATTER,
    kind=Kind.REDUCTION,
    engine=Engine.GPSIMD,
    cost=Cost.WINDOWS,
    attrs=names("kind select window strides low high"),
    rule=select_and_scatter_rule,
    meaning=select_and_scatter,
    cases=_selections,
)

# ---- cumulative ---------------------------------------------------------------------------------


def cumulative_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The type of the operand."""
    arity(op, types, 1)
    check_kind(op, attrs, CUMULATIVE_KINDS, types[0].dtype)
    check_dim(op, attrs, types[0].rank)
    return types


def cumulative(node: Node, x: Array) -> Array:
    """CUMULATIVE."""
    rows = np.moveaxis(precise_sum(x, node["kind"]), node["dim"], 0).copy()
    start = np.moveaxis(_start(node), node["dim"], 0)
    for i in range(rows.shape[0]):
        rows[i] = COMBINE[node["kind"]](rows[i - 1] if i else start[0], rows[i])
    return cast(np.moveaxis(rows, 0, node["dim"]), node.dtype)


def _scans() -> Iterable[Case]:
    for kind in CUMULATIVE_KINDS:
        yield Case(kind, (tensor(DType.F32, 3, 7),), {"kind": kind, "dim": 1}, special=False)


CUMULATIVE = Operator(
    op=Op.CUMULATIVE,
    kind=Kind.REDUCTION,
    engine=Engine.VECTOR,
    cost=Cost.OPERANDS,
    attrs=names("kind dim"),
    rule=cumulative_rule,
    meaning=cumulative,
    cases=_scans,
)

OPERATORS = (REDUCE, ARG_REDUCE, REDUCE_WINDOW, SELECT_AND_SCATTER, CUMULATIVE)
