"""The demands of the steps made so far on nodes that fusion has not visited yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from neuronxcc.ir.node import Node
from neuronxcc.lowering.classify import VIEWS
from neuronxcc.lowering.fusion.cluster import Cluster, Storage, Write
from neuronxcc.lowering.fusion.places import Places
from neuronxcc.lowering.fusion.units import Unit
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import At
from neuronxcc.lowering.geometry.layout import Layout, Strides


class Demands:
    """The units made so far, and what they want.

    Attributes:
        places: Where tensors lie.
        units: The steps, the last one first.
        required: Of nodes read from memory: the number of the first step that does.
        demanders: The clusters that want a node.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self.units: list[Unit] = []
        self.required: dict[Node, float] = {}
        self.demanders: dict[Node, list[Cluster]] = {}
        # Copies of nodes in layouts that steps need, made when all consumers are known.
        self._copies: dict[Node, dict[Strides, Storage]] = {}

    def number(self) -> float:
        """Of the next step to be made."""
        return len(self.units)

    def cluster(self, **attributes: Any) -> Cluster:
        """A new cluster, which is a step of its own."""
        cluster = Cluster(self.number(), **attributes)
        self.units.append(cluster)
        return cluster

    def wanted(self, node: Node) -> bool:
        """Return whether any step wants the node."""
        return node in self.demanders or node in self.required

    def require(self, node: Node, number: float) -> None:
        """A step reads the node from memory."""
        if node not in self.required and node.op in VIEWS:
            self.places.prefer(node)
        self.required[node] = max(self.required.get(node, -1), number)

    def want(self, cluster: Cluster, wanted: Iterable[Node]) -> None:
        """A cluster wants nodes, at the positions that it has noted."""
        for node in wanted:
            demanders = self.demanders.setdefault(node, [])
            if cluster not in demanders:
                demanders.append(cluster)

    def admit(self, cluster: Cluster, node: Node) -> None:
        """A cluster computes a node, and wants its operands."""
        traced = cluster.trace(node)
        cluster.admit(node, traced)
        self.want(cluster, (src for srcs in traced.values() for src, _ in srcs))

    def write(self, cluster: Cluster, node: Node, at: At, storage: Storage, layout: Layout) -> None:
        """A cluster stores a node that it has at a position."""
        write = Write(node, at, storage, at.coords, layout.strides, layout.offset)
        cluster.writes.append(write)
        cluster.want(node, at)

    def copy_into(self, node: Node, storage: Storage, strides: Strides) -> None:
        """Make a cluster that writes a node's elements to a storage."""
        cluster = self.cluster()
        # A stride of 0 repeats elements: write them once.
        repeats = zip(node.shape, strides, strict=True)
        at = At(tuple(ix.ZERO if n and s == 0 else cluster.new_axis(n) for n, s in repeats))
        self.write(cluster, node, at, storage, Layout(strides))
        self.want(cluster, (node,))

    def packed(self, node: Node, strides: Strides) -> Storage:
        """A copy of a node with those strides, to be made when the node is visited."""
        copies = self._copies.setdefault(node, {})
        if strides not in copies:
            copies[strides] = Storage("temp", node, node.shape, strides)
        return copies[strides]

    def copy_packed(self, node: Node) -> None:
        """Make the copies of the node that were asked for and are not made."""
        for storage in self._copies.pop(node, {}).values():
            self.copy_into(node, storage, storage.strides)
