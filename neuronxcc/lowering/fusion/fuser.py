"""Groups nodes into steps: loop kernels, matrix products with epilogues, calls.

Nodes are visited consumers first. By then every consumer has said at which positions of its kernel
it wants the node's elements, so one decision per node is enough: compute it inside the kernels that
want it, or store it, in a kernel that wants it if that can be the first of them to run, else in one
of its own (`policy` has the rules). Steps are numbered as they are made, and run from the last to
the first: a step may read whatever is made after it, and no cycle can arise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import (
    CONTROL,
    REDUCTIONS,
    SOFT,
    UPDATES,
    VIEWS,
    is_hard,
    origin,
    splat_value,
)
from neuronxcc.lowering.fusion import policy
from neuronxcc.lowering.fusion.channels import channels_last, last_strides
from neuronxcc.lowering.fusion.cluster import Cluster, Storage, Write, reduced_extents
from neuronxcc.lowering.fusion.convolve import ConvRegion, region_of
from neuronxcc.lowering.fusion.order import Region, program_order, regions, stages
from neuronxcc.lowering.fusion.places import Places
from neuronxcc.lowering.fusion.units import Home, Made, Opaque, Product, Tensor, Unit
from neuronxcc.lowering.fusion.updates import update_write
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.chains import enclosed, in_step, late_readers, versions
from neuronxcc.lowering.geometry.index import At
from neuronxcc.lowering.geometry.layout import Layout, Strides, contiguous
from neuronxcc.lowering.geometry.products import frame, matrix, packed, shown_strides
from neuronxcc.lowering.geometry.sources import is_choice


class Fuser:
    """See the module. After `run`, `units` are the steps, the last one first.

    Attributes:
        graph: What is lowered.
        regions: The products' regions by their nodes.
        places: Where tensors lie.
        units: The steps.
        results: For every result the storage that holds it.
        required: Of nodes read from memory: the number of the first step that does.
        demanders: The clusters that want a node.
    """

    def __init__(
        self, graph: Graph, param_strides: Sequence[Strides], result_strides: Sequence[Strides]
    ) -> None:
        self.graph = graph
        self.units: list[Unit] = []
        self.results: list[Storage] = []
        self.required: dict[Node, float] = {}
        self.demanders: dict[Node, list[Cluster]] = {}
        self._gets: dict[Node, dict[int, Node]] = {}
        self._products: dict[Region, Product] = {}
        # Clusters that began with a reduction, by what it reduces, with the tensors they read.
        self._siblings: dict[Any, list[tuple[Cluster, set[Node]]]] = {}
        # Copies of nodes in layouts that steps need, made when all consumers are known.
        self._copies: dict[Node, dict[Strides, Storage]] = {}
        following = versions(graph)
        self._versions = set(following)
        self._chained = set(following.values())  # done in place if at all possible
        # The first step that writes over a content, by that content.
        self._overwritten: dict[Node, float] = {}
        # For updates inside of another's memory: the content that the memory needs before.
        self._old: dict[Node, tuple[Node, Storage, Strides]] = {}
        self._rescued: set[Node] = set()  # views that are copied before that
        self._late: list[tuple[Node, Storage]] = []  # results that are parameters' old contents
        self.order = program_order(graph, late_readers(graph, following))
        stage = stages(self.order)
        self._last = channels_last(graph, self.order, param_strides, result_strides)
        self._users = _users(self.order)
        self.regions = regions(self.order, stage, self._users, self._kept(), self._begun)
        self.order.sort(key=lambda n: (stage[n], n not in self.regions, n.serial))
        self.places = Places(graph, param_strides, self.regions)
        self._place_results(result_strides)
        for node in self._last:
            if node not in self.regions and node.op not in VIEWS:
                self.places.claim(node, last_strides(node.shape))

    def _kept(self) -> Iterable[Node]:
        """Nodes that have to be in memory whatever is fused."""
        for result in self.graph.results:
            yield origin(result)
        for node in self.order:
            if is_hard(node) and node.op not in REDUCTIONS:
                for src in node.srcs:
                    yield origin(src)

    def _begun(self, node: Node) -> Region | None:
        return region_of(node, last=node in self._last)

    def run(self) -> None:
        """Visit all nodes, consumers first."""
        for node in reversed(self.order):
            for storage in self._copies.get(node, {}).values():
                self._copy_into(node, storage, storage.strides)
            if node.op in VIEWS:
                self._visit_view(node)
            elif node.op in Group.LEAF:
                self._visit_leaf(node)
            elif node.op is Op.GET:
                self._visit_get(node)
            elif node in self.regions:
                self._visit_region(node)
            elif node in self.demanders or node in self.required or node.op not in SOFT:
                self._visit_step(node)
        for node, storage in self._late:
            self._copy_into(node, storage, storage.strides)

    def _visit_step(self, node: Node) -> None:
        if node.op in UPDATES:
            self._visit_update(node)
        elif node.op in SOFT or node.op in REDUCTIONS:
            clusters = self.demanders.get(node, [])
            if node in self.required or not self._inlined(node, clusters):
                self._host(node, clusters)
        else:
            self._visit_opaque(node)

    # ---- results ------------------------------------------------------------------------------

    def _place_results(self, result_strides: Sequence[Strides]) -> None:
        """Decide which nodes are computed straight into outputs or parameters."""
        params, aliases = self.places.params, self.graph.aliases
        filled: list[Storage] = []
        for i, (node, strides) in enumerate(zip(self.graph.results, result_strides, strict=True)):
            target = aliases.get(i)
            if target is not None:
                self.results.append(params[target])
                if node is params[target].node:
                    continue
                storage = Storage("temp", node, node.shape, params[target].strides, home=target)
                self.units.append(Home(self._number(), storage))
            else:
                storage = Storage("output", node, node.shape, tuple(strides), index=i)
                self.results.append(storage)
            filled.append(storage)
        # Parameters get their new content last of all: what reads the old one has run by then.
        for storage in filled:
            node, strides = storage.node, storage.strides
            base = self.places.claim(node, strides)
            if base is None and self.places.claim_copy(node, strides):
                base = node
            if base is None and node in self._versions and node.op is Op.PARAMETER:
                self._late.append((node, storage))
            elif base is None:
                self._copy_into(node, storage, strides)
            else:
                self.places.homes[base] = storage
                self._require(base, -1)

    # ---- demands ------------------------------------------------------------------------------

    def _number(self) -> float:
        """Of the next step to be made."""
        return len(self.units)

    def _cluster(self, **attributes: Any) -> Cluster:
        cluster = Cluster(self._number(), **attributes)
        self.units.append(cluster)
        return cluster

    def _require(self, node: Node, number: float) -> None:
        """A step reads the node from memory."""
        if node not in self.required and node.op in VIEWS:
            self.places.prefer(node)
        self.required[node] = max(self.required.get(node, -1), number)

    def _want(self, cluster: Cluster, wanted: Iterable[Node]) -> None:
        for node in wanted:
            demanders = self.demanders.setdefault(node, [])
            if cluster not in demanders:
                demanders.append(cluster)

    def _admit(self, cluster: Cluster, node: Node) -> None:
        traced = cluster.trace(node)
        cluster.admit(node, traced)
        self._want(cluster, (src for srcs in traced.values() for src, _ in srcs))

    def _write(
        self, cluster: Cluster, node: Node, at: At, storage: Storage, layout: Layout
    ) -> None:
        """Let a cluster store a node that it has at a position."""
        write = Write(node, at, storage, at.coords, layout.strides, layout.offset)
        cluster.writes.append(write)
        cluster.want(node, at)

    def _copy_into(self, node: Node, storage: Storage, strides: Strides) -> None:
        """Make a cluster that writes a node's elements to a storage."""
        cluster = self._cluster()
        # A stride of 0 repeats elements: write them once.
        repeats = zip(node.shape, strides, strict=True)
        at = At(tuple(ix.ZERO if n and s == 0 else cluster.new_axis(n) for n, s in repeats))
        self._write(cluster, node, at, storage, Layout(strides))
        self._want(cluster, (node,))

    def _packed(self, node: Node, strides: Strides) -> Storage:
        """A copy of a node with those strides."""
        copies = self._copies.setdefault(node, {})
        if strides not in copies:
            copies[strides] = Storage("temp", node, node.shape, strides)
        return copies[strides]

    # ---- nodes that are computed where they are wanted, or stored -------------------------------

    def _visit_view(self, node: Node) -> None:
        for cluster in self.demanders.get(node, ()):
            if self._is_stale(node, cluster) and self._rescue(node):
                self._require(node, cluster.number)
                continue
            traced = cluster.trace(node)
            if node.op is Op.RESHAPE and not (
                cluster is self._epilogue_of(node) or policy.affine(cluster, traced)
            ):
                self._require(node, cluster.number)
                continue
            cluster.admit(node, traced)
            self._want(cluster, (src for srcs in traced.values() for src, _ in srcs))
        if node in self.required:
            if self.places.is_view(node):
                self._require(node.srcs[0], self.required[node])
            else:
                self._store_alone(node)

    def _is_stale(self, node: Node, cluster: Cluster) -> bool:
        """Return whether an operand that the cluster would read is overwritten in its place.

        The cluster that does it may read what it replaces, at the same points. A reduction is asked
        for all that it is computed from: better it is computed before than its operand stored.
        """
        if not self._overwritten:
            return False
        for src in policy.leaves(node) if node.op in REDUCTIONS else node.srcs:
            written = self._overwritten.get(origin(src), -2)
            if written > cluster.number:
                return True
            if written == cluster.number:
                update, at = cluster.update, cluster.writes[0].at
                if update is None or not in_step(update, src) or list(cluster.wants[node]) != [at]:
                    return True
        return False

    def _rescue(self, node: Node) -> bool:
        """Have a view of what is overwritten copied before that, if its layout is free."""
        if node not in self._rescued:
            strides = contiguous(node.shape)
            if not self.places.claim_copy(node, strides):
                return False
            self.places.homes[node] = Storage("temp", node, node.shape, strides)
            self._rescued.add(node)
        return True

    def _epilogue_of(self, node: Node) -> Cluster | None:
        """The cluster of the product with which a node is computed."""
        region = self.regions.get(node)
        product = None if region is None else self._products.get(region)
        return None if product is None else product.cluster

    def _visit_leaf(self, node: Node) -> None:
        for cluster in self.demanders.get(node, ()):
            if node.op is Op.IOTA or splat_value(node):
                cluster.admit(node, cluster.trace_leaf(node))
            elif node.op is Op.CONSTANT:
                self._require(node, cluster.number)
        if node not in self.required or node.op is Op.PARAMETER:
            return
        if node.op is Op.CONSTANT:
            strides = self.places.layout(node).strides
            self.places.storages[node] = Storage("constant", node, node.shape, strides)
        else:
            self._store_alone(node)

    def _inlined(self, node: Node, clusters: list[Cluster]) -> bool:
        """Compute a node wherever it is wanted and nowhere else, if that is right to do."""
        if len(clusters) > 1 and not policy.recomputed(node):
            return False
        if any(self._is_stale(node, cluster) for cluster in clusters):
            return False
        if not all(policy.accepts(cluster, node) for cluster in clusters):
            return False
        for cluster in clusters:
            self._admit(cluster, node)
        return True

    def _host(self, node: Node, clusters: list[Cluster]) -> None:
        """Store a node in the first of its consumers, if that is a cluster which can, or alone."""
        newest = max((c.number for c in clusters), default=-1)
        # A step that reads the node from memory, as a view perhaps, must not be the one.
        if newest > self.required.get(node, -1):
            cluster = next(c for c in clusters if c.number == newest)
            able = not self._is_stale(node, cluster) and policy.may_host(cluster, node)
            if able and policy.covers(cluster, node):
                self._admit(cluster, node)
                (at,) = cluster.wants[node]
                self._write(cluster, node, at, *self.places.store(node))
                return
        self._store_alone(node)

    def _store_alone(self, node: Node) -> None:
        """Store a node by a cluster of its own, or by one of its kind that runs early enough."""
        storage, layout = self.places.store(node)
        if node.op is Op.CONCATENATE:
            self._store_parts(node, storage, layout)
            return
        cluster, at = self._sibling(node) or self._seed(node)
        self._write(cluster, node, at, storage, layout)
        if node.op in Group.LEAF:
            cluster.admit(node, cluster.trace_leaf(node))
        else:
            self._admit(cluster, node)

    def _seed(self, node: Node) -> tuple[Cluster, At]:
        """A new cluster over a node's elements, and those that it reduces over."""
        cluster = self._cluster()
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
        wanted = (c.number for c in self.demanders.get(node, ()))
        bound = max((self.required.get(node, -1), *wanted))
        reads = policy.reads(node.srcs[0])
        for cluster, others in reversed(known[-4:]):
            able = cluster.number > bound and not self._is_stale(node, cluster)
            if able and cluster.work < policy.MAX_WORK and reads & others:
                return cluster, cluster.writes[0].at
        return None

    def _store_parts(self, node: Node, storage: Storage, layout: Layout) -> None:
        """Store each operand of a concatenation by a cluster of its own, where it belongs."""
        offset = layout.offset
        for src in node.srcs:
            cluster = self._cluster()
            at = cluster.identity(src.shape)
            self._write(cluster, src, at, storage, Layout(layout.strides, offset))
            self._want(cluster, (src,))
            offset += src.shape[node["dim"]] * layout.strides[node["dim"]]

    def _visit_update(self, node: Node) -> None:
        clusters = self.demanders.get(node, [])
        if not clusters and node not in self.required:
            return
        chained = node in self._chained or enclosed(node, _plain(node)) is not None
        free = node not in self.required and not chained and is_choice(node)
        if free and self._inlined(node, clusters):
            return
        storage, layout = self.places.store(node)
        old = self._old.pop(node, None) or (node.srcs[0], storage, layout.strides)
        if self._enclose(node, storage, layout, old):
            return
        cluster = self._cluster(update=node)
        cluster.writes.append(update_write(node, cluster, storage, layout))
        content = origin(old[0])
        if content in self._versions:
            self._overwritten[content] = cluster.number
        self._want(cluster, cluster.wants)
        self._copy_old(*old)

    def _enclose(
        self, node: Node, storage: Storage, layout: Layout, old: tuple[Node, Storage, Strides]
    ) -> bool:
        """Let the update of a part of a window do it in the memory of the whole."""
        found = enclosed(node, layout)
        if found is None or found[0] in self.places.layouts or found[0] in self.places.homes:
            return False
        inner, place = found
        self.places.layouts[inner] = place
        self.places.homes[inner] = storage
        self._old[inner] = old
        self._require(inner, self._number())
        return True

    def _copy_old(self, node: Node, storage: Storage, strides: Strides) -> None:
        """Give memory the content that is then updated; most often it turns out to be there."""
        if origin(node).op in UPDATES:
            self.places.claim(node, strides)
        self._copy_into(node, storage, strides)

    # ---- products -----------------------------------------------------------------------------

    def _visit_region(self, node: Node) -> None:
        region = self.regions[node]
        product = self._products.get(region)
        if product is None:
            kind = "conv" if isinstance(region, ConvRegion) else "gemm"
            cluster = Cluster(self._number(), kind, dict(region.extents), [0, 1, 2])
            product = self._products[region] = Product(self._number(), cluster, region)
            self.units.append(product)
        cluster = product.cluster
        at = At(region.frames[node])
        outside = [c for c in self.demanders.get(node, ()) if c is not cluster]
        if outside or node in self.required:
            self._write(cluster, node, at, *self.places.store(node))
        if node not in cluster.wants:
            return
        if node is not region.dot:
            self._admit(cluster, node)
            return
        cluster.inside[node] = {at: ()}
        for side, src in enumerate(node.srcs):
            if isinstance(region, ConvRegion):
                self._require(src, product.number)
                product.operands.append(src)
            else:
                product.operands.append(self._matrix(product, side, src))

    def _matrix(self, product: Product, side: int, src: Node) -> Tensor | Made:
        """A product's operand: made for it, or the node where it lies, or a packed copy of it."""
        dot = product.region.dot
        made = self._made(product, side, src)
        if made is not None:
            return made
        if src.op in VIEWS:
            self.places.prefer(src)
        if matrix(dot, side, self.places.layout(src)) is not None:
            self._require(src, product.number)
            return src
        strides = contiguous(src.shape)
        if matrix(dot, side, Layout(strides)) is None:
            strides = packed(dot, side)
        return self._packed(src, strides)

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
        self._want(cluster, (src,))
        return Made(cluster, by_columns)

    def _only_for_one(self, node: Node) -> bool:
        """Return whether a node serves one other only, and need not be in memory."""
        unseen = node not in self.required and node not in self.places.layouts
        soft = node.op in VIEWS or node.op in Group.ELEMENTWISE
        return soft and unseen and len(self._users[node]) == 1 and node not in self.regions

    # ---- calls --------------------------------------------------------------------------------

    def _visit_get(self, node: Node) -> None:
        if node in self.demanders or node in self.required:
            self.places.store(node)
            self._gets.setdefault(node.srcs[0], {})[node["index"]] = node

    def _visit_opaque(self, node: Node) -> None:
        outs = self._outs(node)
        number = self._number()
        operands: list[Tensor] = []
        for src in node.srcs:
            # The state of a loop is that of its body's results after the first round: contiguous.
            strides = contiguous(src.shape)
            dense = node.op is Op.WHILE or node.op in Group.COLLECTIVE
            if dense and self.places.layout(src).strides != strides:
                operands.append(self._packed(src, strides))
            else:
                operands.append(src)
                self._require(src, number)
        self.units.append(Opaque(number, node, tuple(operands), outs))

    def _outs(self, node: Node) -> tuple[Node | None, ...]:
        """The nodes that hold a call's results; None for those that nobody uses."""
        if len(node.types) == 1:
            used = {0: node} if node in self.demanders or node in self.required else {}
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


def _plain(node: Node) -> Layout:
    return Layout(contiguous(node.shape))


def _users(order: Sequence[Node]) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for src in node.srcs:
            users[src].append(node)
    return users
