"""Elementwise operators of several operands: complex numbers, comparisons, choices."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from neuronxcc.ir.arithmetic import Array, arithmetic, cast, maximum, minimum
from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import (
    COMPLEX_OF,
    DIRECTIONS,
    INTEGERS,
    REAL,
    Attrs,
    ShapeError,
    Types,
    arity,
    check_dtype,
    choice,
    equal_types,
)
from neuronxcc.ir.operators.definition import (
    Case,
    Cost,
    Kind,
    Meaning,
    Operator,
    Rounding,
    Rule,
    each_type,
    names,
    tensor,
)
from neuronxcc.targets import Engine


def _operator(
    op: Op,
    rule: Rule,
    meaning: Meaning,
    cases: Callable[[], Iterable[Case]],
    attrs: str = "",
    *,
    complex: bool = False,  # noqa: A002 - the name of the field
) -> Operator:
    return Operator(
        op=op,
        kind=Kind.CHOICE,
        engine=Engine.VECTOR,
        cost=Cost.ELEMENTS,
        attrs=names(attrs),
        rule=rule,
        meaning=meaning,
        cases=cases,
        complex=complex,
        rounding=Rounding.ONCE,
    )


# ---- complex: real part, imaginary part ---------------------------------------------------------


def complex_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """Two real parts of one type."""
    arity(op, types, 2)
    part = equal_types(op, types)
    check_dtype(op, part.dtype, COMPLEX_OF)
    return (TensorType(COMPLEX_OF[part.dtype], part.shape),)


def complex_(node: Node, a: Array, b: Array) -> Array:
    """COMPLEX. Assigned part by part: a + 1j * b makes NaN of infinite imaginary parts."""
    result = np.empty(a.shape, node.dtype.numpy)
    result.real, result.imag = a, b
    return result


COMPLEX = _operator(Op.COMPLEX, complex_rule, complex_, lambda: each_type(2, (3, 5)), complex=True)

# ---- compare ------------------------------------------------------------------------------------


def compare_rule(op: Op, types: Types, attrs: Attrs) -> Types:
    """A pred; complex numbers have no order."""
    arity(op, types, 2)
    operand = equal_types(op, types)
    direction = choice(op, "direction", attrs["direction"], DIRECTIONS)
    if operand.dtype.is_complex and direction not in ("EQ", "NE"):
        raise ShapeError(op, f"direction {direction} of {operand.dtype.value}; allowed: EQ NE")
    return (TensorType(DType.PRED, operand.shape),)


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def compare(node: Node, a: Array, b: Array) -> Array:
    """COMPARE."""
    return _COMPARE[node["direction"]](arithmetic(a), arithmetic(b))


def _comparisons() -> Iterable[Case]:
    for direction in DIRECTIONS:
        yield from each_type(2, (7,), direction=direction)


COMPARE = _operator(Op.COMPARE, compare_rule, compare, _comparisons, "direction", complex=True)

# ---- select: pred, on_true, on_false ------------------------------------------------------------


def select_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """A pred of the shape of two operands of one type."""
    arity(op, types, 3)
    result = equal_types(op, types[1:])
    if types[0] != TensorType(DType.PRED, result.shape):
        raise ShapeError(op, f"predicate {types[0]}; must be pred of shape {result.shape}")
    return (result,)


def _selections() -> Iterable[Case]:
    for dtype in DType:
        types = (tensor(DType.PRED, 3, 5), tensor(dtype, 3, 5), tensor(dtype, 3, 5))
        yield Case(dtype.value, types)


SELECT = _operator(
    Op.SELECT,
    select_rule,
    lambda _, pred, yes, no: np.where(pred, yes, no),
    _selections,
    complex=True,
)

# ---- clamp: low, x, high, all of one shape ------------------------------------------------------


def clamp_rule(op: Op, types: Types, _attrs: Attrs) -> Types:
    """Three operands of one type that has an order."""
    arity(op, types, 3)
    result = equal_types(op, types)
    check_dtype(op, result.dtype, INTEGERS | REAL)
    return (result,)


def clamp(node: Node, low: Array, x: Array, high: Array) -> Array:
    """CLAMP."""
    raised = maximum(arithmetic(x), arithmetic(low))
    return cast(minimum(raised, arithmetic(high)), node.dtype)


CLAMP = _operator(Op.CLAMP, clamp_rule, clamp, lambda: each_type(3, (3, 5)))

OPERATORS = (COMPLEX, COMPARE, SELECT, CLAMP)
