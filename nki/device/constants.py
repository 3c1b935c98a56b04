"""Constants of types that no engine has: what depends on constants alone is computed now.

Sizes and positions are often counted in float64, as PyTorch does for `arange` and for the places
that an interpolation reads, before they are float32 or integers. A program has these, as it has
any constant; where no conversion follows, there is no form of the type, and that is said.
"""

from __future__ import annotations

from typing import Final

from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.reference import apply
from neuronxcc.ir.table import Group
from nki.device.types import has_form

__all__ = ["without_wide_constants"]

_MOST: Final = 1 << 22  # elements that are computed one by one
_COMPUTED: Final = Group.ELEMENTWISE | Group.MOVEMENT | {Op.IOTA, Op.REDUCE}


def without_wide_constants(graph: Graph) -> Graph:
    """Return a graph whose constants are computed where no engine could compute them.

    What has no form itself stays: it is left out if nobody else needs it.
    """
    known: dict[Node, Array] = {}  # constants of types without a form

    def rule(node: Node) -> Node | None:
        if len(node.types) != 1 or node.type.size > _MOST:
            return None
        wide = not has_form(node.dtype)
        if node.op is Op.CONSTANT:
            if wide:
                known[node] = node["literal"].array
            return None
        if node.op not in _COMPUTED or not (wide or any(src in known for src in node.srcs)):
            return None
        if not all(src in known or src.op is Op.CONSTANT for src in node.srcs):
            return None
        operands = [known[src] if src in known else src["literal"].array for src in node.srcs]
        (found,) = apply(node, operands)
        if not wide:
            return build.constant(found)
        known[node] = found
        return None

    return graph.rewrite(rule)
