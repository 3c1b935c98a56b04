"""Operators that put elements in order."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from neuronxcc.ir.arithmetic import Array, arithmetic
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
    INTEGERS,
    PRED,
    REAL,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dim,
    check_dtype,
)
from neuronxcc.ir.operators.definition import (
    WIDE,
    Case,
    Cost,
    Gap,
    Kind,
    Operator,
    names,
    takes,
    tensor,
)
from neuronxcc.targets import Engine


def order(key: Array, dim: int, *, descending: bool) -> Array:
    """Stable sorting positions; NaN is largest, -0.0 equals 0.0, equals keep their order."""
    values = arithmetic(key)
    if not descending:
        return np.argsort(values, axis=dim, kind="stable")
    # Sorted backwards from the back, equals come out in their order.
    turned = np.argsort(np.flip(values, dim), axis=dim, kind="stable")
    return np.flip(key.shape[dim] - 1 - turned, dim)


# ---- sort: operands together, by the first ------------------------------------------------------


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


def sort(node: Node, *operands: Array) -> tuple[Array, ...]:
    """SORT."""
    places = order(operands[0], node["dim"], descending=node["descending"])
    return tuple(np.take_along_axis(x, places, node["dim"]) for x in operands)


def _sorts() -> Iterable[Case]:
    types = (tensor(DType.F32, 3, 8), tensor(DType.S64, 3, 8))
    for descending in (False, True):
        attrs = {"dim": 1, "descending": descending, "stable": True}
        yield Case("down" if descending else "up", types, attrs)


SORT = Operator(
    op=Op.SORT,
    kind=Kind.REDUCTION,
    engine=Engine.GPSIMD,
    cost=Cost.SORT,
    attrs=names("dim descending stable"),
    rule=sort_rule,
    meaning=sort,
    cases=_sorts,
)

# ---- topk: of the last dimension; values and s64 indices ----------------------------------------


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


def topk(node: Node, x: Array) -> tuple[Array, Array]:
    """TOPK."""
    places = order(x, -1, descending=node["largest"])[..., : node["k"]]
    return np.take_along_axis(x, places, -1), places.astype(np.int64)


def _tops() -> Iterable[Case]:
    for largest in (False, True):
        name = "largest" if largest else "smallest"
        yield Case(name, (tensor(DType.F32, 3, 8),), {"k": 3, "largest": largest})


TOPK = Operator(
    op=Op.TOPK,
    kind=Kind.REDUCTION,
    engine=Engine.GPSIMD,
    cost=Cost.SORT,
    attrs=names("k largest"),
    rule=topk_rule,
    meaning=topk,
    cases=_tops,
    gaps=(Gap("NCC_EVRF013", lambda node: takes(node, WIDE)),),
)

OPERATORS = (SORT, TOPK)
