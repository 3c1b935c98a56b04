"""Calls, control flow and collectives: one node, one step."""

from __future__ import annotations

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import CONTROL
from neuronxcc.lowering.fusion.demands import Demands
from neuronxcc.lowering.fusion.units import Opaque, Tensor
from neuronxcc.lowering.geometry.layout import contiguous


class Calls:
    """Makes an opaque unit of every call whose results somebody uses, or that has to run."""

    def __init__(self, demands: Demands) -> None:
        self.demands = demands
        self.places = demands.places
        # The results of a call that are used, by their numbers.
        self._gets: dict[Node, dict[int, Node]] = {}

    def visit_get(self, node: Node) -> None:
        """One of a call's results: has a place if somebody wants it."""
        if self.demands.wanted(node):
            self.places.store(node)
            self._gets.setdefault(node.srcs[0], {})[node["index"]] = node

    def visit(self, node: Node) -> None:
        """The call itself."""
        outs = self._outs(node)
        number = self.demands.number()
        operands: list[Tensor] = []
        for index, src in enumerate(node.srcs):
            # The state of a loop is that of its body's results after the first round: contiguous.
            strides = contiguous(src.shape)
            dense = node.op is Op.WHILE or node.op in Group.COLLECTIVE
            found = self.places.layout(src).strides
            if index in node.get("dense", ()):
                dense = any(step == 0 and n > 1 for step, n in zip(found, src.shape, strict=True))
            if dense and found != strides:
                operands.append(self.demands.packed(src, strides))
            else:
                operands.append(src)
                self.demands.require(src, number)
        self.demands.units.append(Opaque(number, node, tuple(operands), outs))

    def _outs(self, node: Node) -> tuple[Node | None, ...]:
        """The nodes that hold a call's results; None for those that nobody uses."""
        if len(node.types) == 1:
            used = {0: node} if self.demands.wanted(node) else {}
            if used:
                self.places.store(node)
        else:
            used = self._gets.get(node, {})
        # Bodies give every result; other ranks wait for this one's collectives.
        if node.op in CONTROL or node.op in Group.COLLECTIVE:
            used = {i: used.get(i) or self._unused(node, i) for i in range(len(node.types))}
        return tuple(used.get(i) for i in range(len(node.types)))

    def _unused(self, node: Node, index: int) -> Node:
        """A result that has a place although nobody uses it."""
        result = node
        if len(node.types) > 1:
            result = Node.make(Op.GET, node.types[index], (node,), {"index": index})
        self.places.store(result)
        return result
