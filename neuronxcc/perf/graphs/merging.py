"""What one instruction does of several nodes, and which of two engines does it.

Three instructions take arithmetic with numbers along (NKI API reference): `activation` multiplies
by a number and adds one before its function, `tensor_scalar` has two operations, and
`scalar_tensor_tensor` one with a number before that of two tensors. And where Vector and Scalar may
both run an instruction, the less busy one does, as in kernels whose engines a compiler chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from neuronxcc.ir.node import Node
from neuronxcc.perf.graphs.rates import FREE, NUMBERS, NodeCost

__all__ = ["balance", "merge"]

#: By class, how many operations with numbers its instruction takes along.
_TAKES: Final = {"function": 2, NUMBERS: 1, "arithmetic of tensors": 1}


def merge(costs: Sequence[NodeCost], users: Mapping[Node, Sequence[Node]]) -> None:
    """Let nodes that another one's instruction takes along cost nothing.

    Args:
        costs: of the nodes of a section, operands first.
        users: of every node.
    """
    known = {cost.node: cost for cost in costs}
    taken: dict[Node, int] = {}
    for cost in costs:
        if cost.kind != NUMBERS:
            continue
        user = _only_user(cost.node, known, users)
        if user is None:
            continue
        more = 1 + taken.get(cost.node, 0)
        if taken.get(user.node, 0) + more <= _TAKES.get(user.kind, 0):
            taken[user.node] = taken.get(user.node, 0) + more
            cost.busy, cost.either, cost.engine = {}, {}, ""


def _only_user(
    node: Node, known: Mapping[Node, NodeCost], users: Mapping[Node, Sequence[Node]]
) -> NodeCost | None:
    """Who uses a node, if it is one of the section; what costs nothing is looked through."""
    while True:
        found = users.get(node, ())
        if len(found) != 1 or found[0] is node:  # a result is its own user
            return None
        cost = known.get(found[0])
        if cost is None or cost.kind != FREE:
            return cost
        node = found[0]


def balance(costs: Sequence[NodeCost], busy: dict[str, float]) -> None:
    """Give what Vector and Scalar may both do to the less busy one, the longest first.

    Args:
        costs: of a section; `either` of them is not in `busy`.
        busy: microseconds by engine; is added to.
    """
    for cost in sorted(costs, key=lambda cost: -max(cost.either.values(), default=0.0)):
        if not cost.either:
            continue
        name = min(cost.either, key=lambda name: busy.get(name, 0.0) + cost.either[name])
        busy[name] = busy.get(name, 0.0) + cost.either[name]
        if not cost.busy:
            cost.engine = name
