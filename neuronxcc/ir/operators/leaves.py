"""Leaves of a graph, and the parts of what has several results."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from neuronxcc.ir.arithmetic import Array, cast
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Literal, Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import Attrs, ShapeError, Types, arity
from neuronxcc.ir.operators.definition import Case, Cost, Gap, Kind, Operator, names, tensor
from neuronxcc.targets import Engine

# ---- parameter and constant ---------------------------------------------------------------------


def constant_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """The type of the literal."""
    arity(op, types, 0)
    if not isinstance(attrs["literal"], Literal):
        raise ShapeError(op, f"literal {attrs['literal']!r}; must be a Literal")
    return (attrs["literal"].type,)


def _big(node: Node) -> bool:
    array = node["literal"].array
    return array.dtype == np.uint64 and bool((array > 2**32 - 1).any())


def _constants() -> Iterable[Case]:
    for dtype in (DType.F32, DType.BF16, DType.S32, DType.PRED):
        array = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype.numpy)
        yield Case(dtype.value, attrs={"literal": Literal(array)})


PARAMETER = Operator(
    op=Op.PARAMETER,
    kind=Kind.LEAF,
    engine=Engine.NONE,
    cost=Cost.FREE,
    attrs=names("index name"),
    check=lambda _: None,
    cases=lambda: (Case("", (tensor(DType.F32, 3),)),),
    complex=True,
)
CONSTANT = Operator(
    op=Op.CONSTANT,
    kind=Kind.LEAF,
    engine=Engine.NONE,
    cost=Cost.FREE,
    attrs=names("literal"),
    rule=constant_rule,
    meaning=lambda node: node["literal"].array,
    cases=_constants,
    gaps=(Gap("NCC_ESFH002", _big),),
    complex=True,
)

# ---- iota ---------------------------------------------------------------------------------------


def _iota(node: Node) -> str | None:
    inside = 0 <= node["dim"] < node.type.rank
    return None if inside else f"dim {node['dim']} is not one of {node.type}"


def iota(node: Node) -> Array:
    """IOTA."""
    dim, shape = node["dim"], node.shape
    along = np.arange(shape[dim], dtype=np.int64).reshape(
        [n if d == dim else 1 for d, n in enumerate(shape)]
    )
    return cast(np.broadcast_to(along, shape), node.dtype)


def _iotas() -> Iterable[Case]:
    for dtype in (DType.F32, DType.BF16, DType.S32):
        yield Case(dtype.value, (tensor(dtype, 3, 4),), {"dim": 1})


IOTA = Operator(
    op=Op.IOTA,
    kind=Kind.LEAF,
    engine=Engine.GPSIMD,
    cost=Cost.ELEMENTS,
    attrs=names("dim"),
    check=_iota,
    meaning=iota,
    cases=_iotas,
    complex=True,
)

# ---- a part of several results ------------------------------------------------------------------


def _get(node: Node) -> str | None:
    (src,) = node.srcs
    if 0 <= node["index"] < len(src.types) and node.types == (src.types[node["index"]],):
        return None
    return f"is not result {node['index']} of {src!r}"


GET = Operator(
    op=Op.GET,
    kind=Kind.PART,
    engine=Engine.NONE,
    cost=Cost.FREE,
    attrs=names("index"),
    check=_get,
    complex=True,
)

OPERATORS = (PARAMETER, CONSTANT, IOTA, GET)
