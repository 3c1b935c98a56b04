"""What lowering does with each operator, and what computing one element costs."""

from __future__ import annotations

import math

import numpy as np

from neuronxcc.ir.meaning.elementwise import Array, arithmetic
from neuronxcc.ir.node import Node, is_uniform
from neuronxcc.ir.op import Group, Op

# Their elements are elements of the operand, found by arithmetic on the position.
VIEWS = frozenset({Op.BROADCAST_IN_DIM, Op.RESHAPE, Op.TRANSPOSE, Op.SLICE, Op.REVERSE})
# Views that use every element of the operand once.
BIJECTIVE = frozenset({Op.RESHAPE, Op.TRANSPOSE})
# Computed wherever a kernel wants them, from positions that follow from its own.
SOFT = VIEWS | Group.ELEMENTWISE | {Op.PAD, Op.CONCATENATE, Op.GATHER, Op.DYNAMIC_SLICE}
# Loop kernels that cannot be computed just anywhere.
REDUCTIONS = frozenset({Op.REDUCE, Op.ARG_REDUCE, Op.REDUCE_WINDOW})
UPDATES = frozenset({Op.SCATTER, Op.DYNAMIC_UPDATE_SLICE})
CALLS = frozenset({Op.CUSTOM_CALL, Op.HOST_CALL})
CONTROL = frozenset({Op.WHILE, Op.CONDITIONAL, Op.CALL})

# Several instructions per vector, or one that is slow: never computed twice for one element
# unless one kernel does it anyway.
_SLOW = frozenset(
    {
        Op.EXP, Op.EXP2, Op.EXPM1, Op.LOG, Op.LOG2, Op.LOG10, Op.LOG1P, Op.SIN, Op.COS, Op.TAN,
        Op.SINH, Op.COSH, Op.TANH, Op.ASIN, Op.ACOS, Op.ATAN, Op.ASINH, Op.ACOSH, Op.ATANH, Op.ERF,
        Op.ERFC, Op.ERFINV, Op.LGAMMA, Op.DIGAMMA, Op.LOGISTIC, Op.POWER, Op.ATAN2, Op.DIVIDE,
        Op.REMAINDER, Op.SQRT, Op.RSQRT, Op.NEXTAFTER, Op.GATHER,
    }
)  # fmt: skip


def is_slow(node: Node) -> bool:
    """Whether computing an element again costs more than reading it from memory."""
    return node.op in _SLOW or node.op in REDUCTIONS or node.dtype.is_complex


def is_hard(node: Node) -> bool:
    """Whether the node is a step of its own, or the root of a reduction."""
    return node.op not in SOFT and node.op not in Group.LEAF and node.op is not Op.GET


def origin(node: Node) -> Node:
    """The node whose elements a chain of views shows."""
    while node.op in VIEWS:
        node = node.srcs[0]
    return node


def splat_value(node: Node) -> bool:
    """Whether the node is a constant whose elements are all one number, which kernels spell out."""
    if node.op is not Op.CONSTANT:
        return False
    array = node["literal"].array
    return bool(array.size) and is_uniform(array) and _is_number(array.reshape(-1)[:1])


def _is_number(one: Array) -> bool:
    """Whether an element is no NaN but the usual one: others have bits that no number tells."""
    parts = one.view(one.real.dtype)
    odd = parts[np.isnan(arithmetic(parts))]
    return odd.tobytes() == np.full_like(odd, math.nan).tobytes()
