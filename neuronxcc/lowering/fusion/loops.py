"""Nodes of loop kernels: computed in the kernels that want them, or stored by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import REDUCTIONS, splat_value
from neuronxcc.lowering.fusion import policy
from neuronxcc.lowering.fusion.cluster import Cluster, Storage, reduced_extents
from neuronxcc.lowering.fusion.contents import Contents
from neuronxcc.lowering.fusion.demands import Demands
from neuronxcc.lowering.geometry.index import At
from neuronxcc.lowering.geometry.layout import Layout


class Loops:
    """Finds kernels for nodes, or makes them.

    Args:
        demands: Of the steps made so far.
        contents: Which are overwritten.
        epilogue: The cluster of the product with which a node is computed, if any.
    """

    def __init__(
        self, demands: Demands, contents: Contents, epilogue: Callable[[Node], Cluster | None]
    ) -> None:
        self.demands = demands
        self.places = demands.places
        self.contents = contents
        self._epilogue = epilogue
        # Clusters that began with a reduction, by what it reduces, with the tensors they read.
        self._siblings: dict[Any, list[tuple[Cluster, set[Node]]]] = {}

    def visit_view(self, node: Node) -> None:
        """Movement: other positions of the operand where that is possible, else a copy."""
        demands = self.demands
        for cluster in demands.demanders.get(node, ()):
            if self.contents.is_stale(node, cluster) and self.contents.rescue(node):
                demands.require(node, cluster.number)
                continue
            traced = cluster.trace(node)
            if node.op is Op.RESHAPE and not (
                cluster is self._epilogue(node) or policy.affine(cluster, traced)
            ):
                demands.require(node, cluster.number)
                continue
            cluster.admit(node, traced)
            demands.want(cluster, (src for srcs in traced.values() for src, _ in srcs))
        if node in demands.required:
            if self.places.is_view(node):
                demands.require(node.srcs[0], demands.required[node])
            elif node not in self.places.storages:  # else a product stores it
                self._store_alone(node)

    def visit_leaf(self, node: Node) -> None:
        """Parameters and constants lie in memory; numbers and counters are computed."""
        demands = self.demands
        for cluster in demands.demanders.get(node, ()):
            if node.op is Op.IOTA or splat_value(node):
                cluster.admit(node, cluster.trace_leaf(node))
            elif node.op is Op.CONSTANT:
                demands.require(node, cluster.number)
        if node not in demands.required or node.op is Op.PARAMETER:
            return
        if node.op is Op.CONSTANT:
            strides = self.places.layout(node).strides
            self.places.storages[node] = Storage("constant", node, node.shape, strides)
        else:
            self._store_alone(node)

    def visit(self, node: Node) -> None:
        """Arithmetic or a reduction: computed where it is wanted, or stored."""
        clusters = self.demands.demanders.get(node, [])
        if node in self.demands.required or not self.inlined(node, clusters):
            self._host(node, clusters)

    def inlined(self, node: Node, clusters: list[Cluster]) -> bool:
        """Compute a node wherever it is wanted and nowhere else, if that is right to do."""
        if len(clusters) > 1 and not policy.recomputed(node):
            return False
        if any(self.contents.is_stale(node, cluster) for cluster in clusters):
            return False
        if not all(policy.accepts(cluster, node) for cluster in clusters):
            return False
        for cluster in clusters:
            self.demands.admit(cluster, node)
        return True

    def _host(self, node: Node, clusters: list[Cluster]) -> None:
        """Store a node in the first of its consumers, if that is a cluster which can, or alone."""
        newest = max((c.number for c in clusters), default=-1)
        # A step that reads the node from memory, as a view perhaps, must not be the one.
        if newest > self.demands.required.get(node, -1):
            cluster = next(c for c in clusters if c.number == newest)
            able = not self.contents.is_stale(node, cluster) and policy.may_host(cluster, node)
            if able and policy.covers(cluster, node):
                self.demands.admit(cluster, node)
                (at,) = cluster.wants[node]
                self.demands.write(cluster, node, at, *self.places.store(node))
                return
        self._store_alone(node)

    def _store_alone(self, node: Node) -> None:
        """Store a node by a cluster of its own, or by one of its kind that runs early enough."""
        storage, layout = self.places.store(node)
        if node.op is Op.CONCATENATE:
            self._store_parts(node, storage, layout)
            return
        cluster, at = self._sibling(node) or self._seed(node)
        self.demands.write(cluster, node, at, storage, layout)
        if node.op in Group.LEAF:
            cluster.admit(node, cluster.trace_leaf(node))
        else:
            self.demands.admit(cluster, node)

    def _seed(self, node: Node) -> tuple[Cluster, At]:
        """A new cluster over a node's elements, and those that it reduces over."""
        cluster = self.demands.cluster()
        at = cluster.identity(node.shape)
        if node.op in REDUCTIONS:
            for extent in reduced_extents(node):
                cluster.new_axis(extent, reduced=True)
        if node.op is Op.REDUCE:
            known = self._siblings.setdefault((node.srcs[0].shape, node["dims"]), [])
            known.append((cluster, policy.reads(node.srcs[0])))
        return cluster, at

    def _sibling(self, node: Node) -> tuple[Cluster, At] | None:
        """A cluster that reduces the same memory likewise, and the node's position there."""
        if node.op is not Op.REDUCE:
            return None
        known = self._siblings.get((node.srcs[0].shape, node["dims"]), [])
        wanted = (c.number for c in self.demands.demanders.get(node, ()))
        bound = max((self.demands.required.get(node, -1), *wanted))
        reads = policy.reads(node.srcs[0])
        for cluster, others in reversed(known[-4:]):
            able = cluster.number > bound and not self.contents.is_stale(node, cluster)
            if able and cluster.work < policy.MAX_WORK and reads & others:
                return cluster, cluster.writes[0].at
        return None

    def _store_parts(self, node: Node, storage: Storage, layout: Layout) -> None:
        """Store each operand of a concatenation by a cluster of its own, where it belongs."""
        offset = layout.offset
        for src in node.srcs:
            cluster = self.demands.cluster()
            at = cluster.identity(src.shape)
            self.demands.write(cluster, src, at, storage, Layout(layout.strides, offset))
            self.demands.want(cluster, (src,))
            offset += src.shape[node["dim"]] * layout.strides[node["dim"]]
