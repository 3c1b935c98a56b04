"""The operator table: the blocks of all operators, and the sets of them that rules speak of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators import (
    binary,
    calls,
    choice,
    collectives,
    contraction,
    control,
    conversion,
    indices,
    layout,
    leaves,
    reduction,
    sorting,
    unary,
)
from neuronxcc.ir.operators.checks import Types
from neuronxcc.ir.operators.definition import ELEMENTWISE, Kind, Operator

_FAMILIES = (
    leaves, unary, conversion, binary, choice, layout, indices, contraction, reduction, sorting,
    control, calls, collectives,
)  # fmt: skip

TABLE: Mapping[Op, Operator] = {
    operator.op: operator for family in _FAMILIES for operator in family.OPERATORS
}


def info(node: Node) -> Operator:
    """The block of a node's operator."""
    return TABLE[node.op]


def infer(op: Op, types: Types, attrs: Mapping[str, Any]) -> Types:
    """Return the types of the results.

    Args:
        op: An operator whose types follow from operands: not PARAMETER, IOTA or a custom call.
        types: The types of the operands.
        attrs: The attributes in the form in which nodes hold them: complete, tuples of int, no
            negative dimension. The conveniences are in `build`.

    Raises:
        ShapeError: the operator does not take these.
    """
    rule = TABLE[op].rule
    assert rule is not None, op
    return rule(op, types, attrs)


def _those(has: Callable[[Operator], bool]) -> frozenset[Op]:
    return frozenset(op for op, operator in TABLE.items() if has(operator))


class Group:
    """Sets of operators that rules speak about."""

    LEAF = _those(lambda o: o.kind is Kind.LEAF)
    UNARY = _those(lambda o: o.kind is Kind.UNARY)
    # Unary too, but the type of the result differs or an attribute matters.
    CONVERSION = _those(lambda o: o.kind is Kind.CONVERSION)
    BINARY = _those(lambda o: o.kind is Kind.BINARY)
    COMMUTATIVE = _those(lambda o: o.commutative)
    ELEMENTWISE = _those(lambda o: o.kind in ELEMENTWISE)
    # The value of an element is that of one element of an operand: only its place changes.
    MOVEMENT = _those(lambda o: o.kind is Kind.MOVEMENT)
    COLLECTIVE = _those(lambda o: o.kind is Kind.COLLECTIVE)
