"""The treatment of each operator by lowering, and the cost of computing one element."""

from __future__ import annotations

import math

import numpy as np

from neuronxcc.ir.arithmetic import Array, arithmetic
from neuronxcc.ir.node import Node, is_uniform
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group, info

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

# Never computed twice for one element unless one kernel does it anyway: what takes this many
# instructions per vector, or one that is slow.
_MANY = 8
_SLOW = REDUCTIONS | {Op.GATHER}


def is_slow(node: Node) -> bool:
    """Return whether computing an element again costs more than reading it from memory."""
    return node.op in _SLOW or info(node).instructions >= _MANY or node.dtype.is_complex


def is_hard(node: Node) -> bool:
    """Return whether the node is a step of its own, or the root of a reduction."""
    return node.op not in SOFT and node.op not in Group.LEAF and node.op is not Op.GET


def origin(node: Node) -> Node:
    """The node whose elements a chain of views shows."""
    while node.op in VIEWS:
        node = node.srcs[0]
    return node


def splat_value(node: Node) -> bool:
    """Return whether the node is a constant of one number, which kernels spell out."""
    if node.op is not Op.CONSTANT:
        return False
    array = node["literal"].array
    return bool(array.size) and is_uniform(array) and _is_number(array.reshape(-1)[:1])


def _is_number(one: Array) -> bool:
    """Return whether an element holds no unusual NaN, whose bits no number tells."""
    parts = one.view(one.real.dtype)
    odd = parts[np.isnan(arithmetic(parts))]
    return odd.tobytes() == np.full_like(odd, math.nan).tobytes()
