"""Calls with effects, which a program has to make although nobody may need what they give.

They draw random numbers, are the user's, or other ranks wait for them. The compiler drops what no
result needs, and a simplification may find that a result needs less than was written: `x ** 0` is
1, and what is computed of no elements is a constant. So a program returns something of each such
call but for those that a result needs whatever is simplified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from neuronxcc.ir import build
from neuronxcc.ir.node import Node, topological
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group

_CALLS = frozenset({Op.CUSTOM_CALL, Op.HOST_CALL}) | Group.COLLECTIVE
# Of floats they need all operands, be some of them known: NaN and infinities decide.
_ARITHMETIC = frozenset(
    {Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.DIVIDE, Op.MAXIMUM, Op.MINIMUM, Op.ATAN2}
)
_MOVEMENT = frozenset({Op.BROADCAST_IN_DIM, Op.RESHAPE, Op.TRANSPOSE, Op.REVERSE, Op.CONVERT})
_WHOLE = (
    Group.UNARY
    | _MOVEMENT
    | {Op.CONCATENATE, Op.DOT_GENERAL, Op.CONVOLUTION, Op.REDUCE, Op.CUMULATIVE, Op.GET, Op.COMPLEX}
)


def unused(effects: Iterable[Node], results: Sequence[Node]) -> list[Node]:
    """The calls that no result is made of."""
    used = set(topological(results))
    # What is computed of no elements is a constant, whatever the elements were to be.
    used -= {node for node in used if node.op in Group.COLLECTIVE and not node.type.size}
    return [node for node in effects if node not in used and node.types]


def traces(effects: Iterable[Node], results: Sequence[Node]) -> list[Node]:
    """What a program returns besides its results, so that it makes all calls with effects."""
    calls = [node for node in effects if node.types]
    needed = set(_needed(results)) if calls else set()
    return [_trace(call) for call in calls if call not in needed or not call.types[0].size]


def _trace(call: Node) -> Node:
    """One element of what a call gives, which makes the program run it."""
    given = build.get(call, 0)
    if given.type.size < 2:
        return given
    return build.slice_dim(build.reshape(given, (given.type.size,)), 0, 0, 1)


def _needed(results: Iterable[Node]) -> Iterator[Node]:
    """What results need, whatever is simplified."""
    pending, seen = list(results), set[Node]()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if _needs_operands(node):
            pending += node.srcs


def _needs_operands(node: Node) -> bool:
    if node.op in _CALLS:
        return True
    if any(not t.size for t in node.types):
        return False
    if node.op is Op.SLICE:  # of what is made of parts it may need one
        (x,) = node.srcs
        while x.op in _MOVEMENT:
            (x,) = x.srcs
        return x.op in _CALLS or x.op in {Op.GET, Op.DOT_GENERAL}
    return node.op in _WHOLE or (node.op in _ARITHMETIC and node.dtype.is_float)
