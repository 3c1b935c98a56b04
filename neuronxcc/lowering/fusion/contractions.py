"""Matrix products and convolutions: the product, its operands, and what follows it in its tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neuronxcc.ir.node import Node
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import VIEWS
from neuronxcc.lowering.fusion import policy
from neuronxcc.lowering.fusion.cluster import Cluster
from neuronxcc.lowering.fusion.convolve import ConvRegion
from neuronxcc.lowering.fusion.demands import Demands
from neuronxcc.lowering.fusion.order import Region
from neuronxcc.lowering.fusion.units import Made, Product, Tensor
from neuronxcc.lowering.geometry.index import At
from neuronxcc.lowering.geometry.layout import Layout, contiguous
from neuronxcc.lowering.geometry.products import frame, matrix, packed, shown_strides


class Contractions:
    """Makes a unit of every region.

    Args:
        demands: Of the steps made so far.
        users: Of every node the nodes that have it as an operand.
    """

    def __init__(self, demands: Demands, users: Mapping[Node, Sequence[Node]]) -> None:
        self.demands = demands
        self.places = demands.places
        self.regions: Mapping[Node, Region] = demands.places.regions
        self._users = users
        self._products: dict[Region, Product] = {}

    def visit(self, node: Node) -> None:
        """A node of a region: computed in the product's tiles, or the product itself."""
        region = self.regions[node]
        product = self._products.get(region)
        if product is None:
            product = self._products[region] = self._begin(region)
        cluster = product.cluster
        at = At(region.frames[node])
        outside = [c for c in self.demands.demanders.get(node, ()) if c is not cluster]
        if outside or node in self.demands.required:
            self.demands.write(cluster, node, at, *self.places.store(node))
        if node not in cluster.wants:
            return
        if node is not region.dot:
            self.demands.admit(cluster, node)
            return
        cluster.inside[node] = {at: ()}
        for side, src in enumerate(node.srcs):
            if isinstance(region, ConvRegion):
                self.demands.require(src, product.number)
                product.operands.append(src)
            else:
                product.operands.append(self._matrix(product, side, src))

    def _begin(self, region: Region) -> Product:
        # Who reads results of the product runs after it, and is made before: its nodes are visited
        # when it has been made, and what is made then runs earlier.
        for node in region.frames:
            self.demands.copy_packed(node)
        number = self.demands.number()
        kind = "conv" if isinstance(region, ConvRegion) else "gemm"
        cluster = Cluster(number, kind, dict(region.extents), [0, 1, 2])
        product = Product(number, cluster, region)
        self.demands.units.append(product)
        return product

    def store_view(self, node: Node) -> None:
        """A view that has memory of its own is written from the tiles, if the product was made."""
        cluster = self.epilogue(node)
        apart = node in self.demands.required and not self.places.is_view(node)
        if cluster is not None and apart:
            at = At(self.regions[node].frames[node])
            self.demands.write(cluster, node, at, *self.places.store(node))
            self.demands.want(cluster, (node,))

    def epilogue(self, node: Node) -> Cluster | None:
        """The cluster of the product with which a node is computed."""
        region = self.regions.get(node)
        product = None if region is None else self._products.get(region)
        return None if product is None else product.cluster

    def _matrix(self, product: Product, side: int, src: Node) -> Tensor | Made:
        """A product's operand: made for it, or the node where it lies, or a packed copy of it."""
        dot = product.region.dot
        made = self._made(product, side, src)
        if made is not None:
            return made
        if src.op in VIEWS:
            self.places.prefer(src)
        if matrix(dot, side, self.places.layout(src)) is not None:
            self.demands.require(src, product.number)
            return src
        strides = contiguous(src.shape)
        if matrix(dot, side, Layout(strides)) is None:
            strides = packed(dot, side)
        return self.demands.packed(src, strides)

    def _made(self, product: Product, side: int, src: Node) -> Made | None:
        """An operand that is computed while the product reads it, if nobody else wants it."""
        dot, node = product.region.dot, src
        while self._only_for_one(node) and node.op in VIEWS:
            node = node.srcs[0]
        if not self._only_for_one(node) or not policy.makes(dot, side, node, self._only_for_one):
            return None
        strides = shown_strides(src, node)
        if strides is None or matrix(dot, side, Layout(strides)) is None:
            return None
        by_columns, extents, coords = frame(dot, side, strides)
        cluster = Cluster(product.number, "operand", extents, [0, 1, 2])
        cluster.made = (src, At(coords))
        cluster.want(*cluster.made)
        self.demands.want(cluster, (src,))
        return Made(cluster, by_columns)

    def _only_for_one(self, node: Node) -> bool:
        """Return whether a node serves one other only, and need not be in memory."""
        unseen = node not in self.demands.required and node not in self.places.layouts
        soft = node.op in VIEWS or node.op in Group.ELEMENTWISE
        return soft and unseen and len(self._users[node]) == 1 and node not in self.regions
