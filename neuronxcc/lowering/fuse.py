"""Groups nodes into steps: loop kernels, matrix products with epilogues, calls.

Nodes are visited consumers first. By then every consumer has said at which positions of its kernel
it wants the node's elements, so one decision per node is enough: compute it inside the kernels that
want it, or store it, in a kernel that wants it if that can be the first of them to run, else in one
of its own. Steps are numbered as they are made and run from the last number to the first, so a step
may read whatever gets a greater number, and no cycle can arise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Group, Op
from neuronxcc.lowering import index as ix
from neuronxcc.lowering.classify import (
    BIJECTIVE,
    CALLS,
    CONTROL,
    REDUCTIONS,
    UPDATES,
    VIEWS,
    is_hard,
    is_slow,
    origin,
    splat_value,
)
from neuronxcc.lowering.cluster import Cluster, Storage, Write, reduced_extents
from neuronxcc.lowering.index import At, Index
from neuronxcc.lowering.layout import Layout, Strides, collapsed, contiguous, unviewed, viewed
from neuronxcc.lowering.order import Region, program_order, regions, stages
from neuronxcc.lowering.sources import is_choice
from neuronxcc.lowering.updates import update_write

MAX_WORK = 128  # operations of a kernel
MAX_OPEN = 24  # tensors that a kernel reads
MAX_POSITIONS = 3  # at which a kernel computes one tensor
MAX_ARMS = 4  # operands of a concatenation that is computed by choosing
MIN_ROWS = 8  # rows below which a long reduction is not done row by row
LONG = 1 << 16  # elements


@dataclass(eq=False)
class Opaque:
    """A step that is one node: a call, control flow. `outs`: where its results go, None: unused."""

    number: int
    node: Node
    outs: tuple[Node | None, ...]


@dataclass(eq=False)
class Product:
    """A matrix product. `operands` are nodes, or storages that were packed for it."""

    number: int
    cluster: Cluster
    region: Region
    operands: list[Node | Storage] = field(default_factory=list)


@dataclass(eq=False)
class Home:
    """Copies a storage to the parameter that is to have its content; runs last of all."""

    number: int
    storage: Storage


Unit = Cluster | Opaque | Product | Home


class Fuser:
    """See the module. After `run`, `units` are the steps, the last one first.

    Attributes:
        units: The steps.
        storages: Of every stored node.
        layouts: Of nodes whose layout is decided.
        results: For every result the storage that holds it.
    """

    def __init__(
        self, graph: Graph, param_strides: Sequence[Strides], result_strides: Sequence[Strides]
    ) -> None:
        self.graph = graph
        self.units: list[Unit] = []
        self.storages: dict[Node, Storage] = {}
        self.layouts: dict[Node, Layout] = {}
        self.results: list[Storage] = []
        self.required: dict[Node, int] = {}  # number of the first step that reads it from memory
        self.demanders: dict[Node, list[Cluster]] = {}
        self._homes: dict[Node, Storage] = {}
        self._gets: dict[Node, dict[int, Node]] = {}
        self._products: dict[Region, Product] = {}
        # Clusters that began with a reduction, by what it reduces, with the tensors they read.
        self._siblings: dict[Any, list[tuple[Cluster, Write, set[Node]]]] = {}
        # Copies of nodes in the layout that products need, made when all consumers are known.
        self._copies: dict[Node, dict[Strides, Storage]] = {}
        self.params = [
            Storage("input", node, node.shape, tuple(strides), index=i)
            for i, (node, strides) in enumerate(zip(graph.params, param_strides, strict=True))
        ]
        for storage in self.params:
            self.storages[storage.node] = storage
            self.layouts[storage.node] = Layout(storage.strides)
        self.order = program_order(graph)
        stage = stages(self.order)
        users: dict[Node, list[Node]] = {node: [] for node in self.order}
        for node in self.order:
            for src in node.srcs:
                users[src].append(node)
        self.regions = regions(self.order, stage, users, self._kept())
        self.order.sort(key=lambda n: (stage[n], n not in self.regions, n.serial))
        self._place_results(result_strides)

    def _kept(self) -> Iterable[Node]:
        """Nodes that have to be in memory whatever is fused."""
        for result in self.graph.results:
            yield origin(result)
        for node in self.order:
            if is_hard(node) and node.op not in REDUCTIONS:
                for src in node.srcs:
                    yield origin(src)

    def number(self) -> int:
        """Of the next step to be made."""
        return len(self.units)

    # ---- results ------------------------------------------------------------------------------

    def _place_results(self, result_strides: Sequence[Strides]) -> None:
        """Decide which nodes are computed straight into outputs or parameters."""
        filled: list[Storage] = []
        updated = {
            self.graph.params[target]
            for i, target in self.graph.aliases.items()
            if self.graph.results[i] is not self.graph.params[target]
        }
        for i, (node, strides) in enumerate(zip(self.graph.results, result_strides, strict=True)):
            target = self.graph.aliases.get(i)
            if target is not None:
                self.results.append(self.params[target])
                if node is not self.graph.params[target]:
                    strides = self.params[target].strides
                    storage = Storage("temp", node, node.shape, strides, home=target)
                    self.units.append(Home(self.number(), storage))
                    filled.append(storage)
            elif node.op is Op.PARAMETER and node not in updated:
                self.results.append(self.storages[node])
            else:
                storage = Storage("output", node, node.shape, tuple(strides), index=i)
                self.results.append(storage)
                filled.append(storage)
        # Parameters get their new content last of all: what reads the old one has run by then.
        for storage in filled:
            base = self._claim(storage.node, storage.strides)
            if base is None:
                self.copy_into(storage.node, storage)
            else:
                self._homes[base] = storage
                self.require(storage.node, -1)

    def _claim(self, node: Node, strides: Strides) -> Node | None:
        """Decide the layout of a node, or of the node that it views, so that it has these strides.

        Returns the node whose layout is decided now; None if it cannot be, or was before.
        """
        wanted: Strides | None = strides
        while node.op in VIEWS:
            wanted = unviewed(node, wanted) if wanted is not None else None
            if wanted is None:
                return None
            node = node.srcs[0]
        if node in self.layouts or not self._flexible(node, wanted or ()):
            return None
        if any(n > 1 and s <= 0 for n, s in zip(node.shape, wanted or (), strict=True)):
            return None
        self.layouts[node] = Layout(wanted or ())
        return node

    def _flexible(self, node: Node, strides: Strides) -> bool:
        """Whether a node may be given this layout."""
        if node.op in Group.LEAF:
            return False
        if node.op is Op.GET or node.op in CONTROL:
            owner = node.srcs[0] if node.op is Op.GET else node
            return owner.op in CALLS or strides == contiguous(node.shape)
        if node in self.regions:
            return self.regions[node].holds(node, strides)
        return True

    def layout(self, node: Node) -> Layout:
        """Where a node's elements lie in its memory. From now on this is decided."""
        found = self.layouts.get(node)
        if found is None:
            if node.op in VIEWS:
                found = self._view_layout(node)
            elif node in self.regions:
                found = Layout(self.regions[node].strides[node])
            if found is None:
                found = Layout(contiguous(node.shape))
            self.layouts[node] = found
        return found

    def _view_layout(self, node: Node) -> Layout | None:
        """The layout of a view over its operand's memory; None if it has to be copied."""
        found = viewed(node, self.layout(node.srcs[0]))
        # PyTorch's tensors have no negative strides.
        return None if found is None or min(found.strides, default=0) < 0 else found

    # ---- demands ------------------------------------------------------------------------------

    def require(self, node: Node, number: int) -> None:
        """A step reads the node from memory."""
        if node not in self.required and node.op in VIEWS:
            self._prefer(node)
        self.required[node] = max(self.required.get(node, -1), number)

    def _prefer(self, node: Node) -> None:
        """Give the origin of a view the layout in which the view is contiguous, if it is free."""
        base = origin(node)
        if base in self.layouts:
            return
        source = Layout(contiguous(base.shape))
        chain = [node]
        while chain[-1].srcs[0] is not base:
            chain.append(chain[-1].srcs[0])
        for view in reversed(chain):
            layout = viewed(view, source)
            if layout is None:
                self._claim(node, contiguous(node.shape))
                return
            source = layout

    def _want(self, cluster: Cluster, wanted: Iterable[Node]) -> None:
        for node in wanted:
            demanders = self.demanders.setdefault(node, [])
            if cluster not in demanders:
                demanders.append(cluster)

    def copy_into(self, node: Node, storage: Storage, strides: Strides | None = None) -> None:
        """Make a cluster that writes a node's elements to a storage.

        `strides` are where; None: the storage is of the node's shape, and has its own.
        """
        strides = storage.strides if strides is None else strides
        cluster = Cluster(self.number())
        self.units.append(cluster)
        # A stride of 0 repeats elements: write them once.
        repeats = zip(node.shape, strides, strict=True)
        at = At(tuple(ix.ZERO if s == 0 else cluster.new_axis(n) for n, s in repeats))
        cluster.writes.append(Write(node, at, storage, at.coords, strides))
        cluster.want(node, at)
        self._want(cluster, (node,))

    def _store(self, node: Node) -> tuple[Storage, Layout]:
        """Memory for a node."""
        layout = self.layout(node)
        storage = self._homes.get(node)
        if storage is None:
            storage = Storage("temp", node, node.shape, layout.strides)
        self.storages[node] = storage
        return storage, layout

    # ---- the sweep ----------------------------------------------------------------------------

    def run(self) -> None:
        """Visit all nodes, consumers first."""
        for node in reversed(self.order):
            for storage in self._copies.get(node, {}).values():
                self.copy_into(node, storage)
            if node.op in VIEWS:
                self._visit_view(node)
            elif node.op in Group.LEAF:
                self._visit_leaf(node)
            elif node.op is Op.GET:
                self._visit_get(node)
            elif node in self.regions:
                self._visit_region(node)
            elif node.op in UPDATES:
                self._visit_update(node)
            elif node.op in Group.ELEMENTWISE or not is_hard(node) or node.op in REDUCTIONS:
                self._visit_computed(node)
            else:
                self._visit_opaque(node)

    def _admit(self, cluster: Cluster, node: Node) -> None:
        traced = cluster.trace(node)
        cluster.admit(node, traced)
        self._want(cluster, (src for srcs in traced.values() for src, _ in srcs))

    def _visit_view(self, node: Node) -> None:
        for cluster in self.demanders.get(node, ()):
            traced = cluster.trace(node)
            if node.op is Op.RESHAPE and not (
                cluster is self._epilogue_of(node) or self._affine(cluster, traced)
            ):
                self.require(node, cluster.number)
                continue
            cluster.admit(node, traced)
            self._want(cluster, (src for srcs in traced.values() for src, _ in srcs))
        if node in self.required:
            if self._is_view(node):
                self.layout(node)
                self.require(node.srcs[0], self.required[node])
            else:
                self._store_alone(node)

    def _epilogue_of(self, node: Node) -> Cluster | None:
        """The cluster of the product with which a node is computed."""
        region = self.regions.get(node)
        product = None if region is None else self._products.get(region)
        return None if product is None else product.cluster

    def _is_view(self, node: Node) -> bool:
        """Whether the node's memory is its operand's."""
        return self._view_layout(node) == self.layout(node)

    @staticmethod
    def _affine(cluster: Cluster, traced: dict[At, tuple[tuple[Node, At], ...]]) -> bool:
        """Whether positions are cheap to compute.

        A quotient is, if it is the same for a whole row of a product.
        """
        for at, srcs in traced.items():
            for _, where in srcs:
                if all(map(ix.is_affine, where.coords)):
                    continue
                if cluster.kind == "loop" and all(map(ix.is_affine, at.coords)):
                    return False
                for coordinate in where.coords:
                    axes: set[int] = set()
                    if not ix.is_affine(coordinate):
                        ix.axes_of(coordinate, axes)
                    if cluster.order[-1] in axes:
                        return False
        return True

    def _visit_leaf(self, node: Node) -> None:
        for cluster in self.demanders.get(node, ()):
            if node.op is Op.IOTA or splat_value(node):
                cluster.admit(node, cluster.trace_leaf(node))
            elif node.op is Op.CONSTANT:
                self.require(node, cluster.number)
        if node in self.required and node.op is not Op.PARAMETER:
            if node.op is Op.CONSTANT:
                layout = self.layout(node)
                self.storages[node] = Storage("constant", node, node.shape, layout.strides)
            else:
                self._store_alone(node)

    def _store_alone(self, node: Node) -> None:
        """Store a node by a cluster of its own, which computes it if it is wanted nowhere else."""
        storage, layout = self._store(node)
        if node.op is Op.CONCATENATE:
            self._store_parts(node, storage, layout)
            return
        found = self._sibling(node)
        if found is None:
            cluster = Cluster(self.number())
            self.units.append(cluster)
            at = cluster.identity(node.shape)
            if node.op in REDUCTIONS:
                for extent in reduced_extents(node):
                    cluster.new_axis(extent, reduced=True)
        else:
            cluster, at = found
        write = Write(node, at, storage, at.coords, layout.strides, layout.offset)
        cluster.writes.append(write)
        cluster.want(node, at)
        if node.op is Op.REDUCE and found is None:
            known = self._siblings.setdefault((node.srcs[0].shape, node["dims"]), [])
            known.append((cluster, write, self._reads(node.srcs[0])))
        if node.op in Group.LEAF:
            cluster.admit(node, cluster.trace_leaf(node))
        else:
            self._admit(cluster, node)

    def _sibling(self, node: Node) -> tuple[Cluster, At] | None:
        """A cluster over the same space that reads the same memory, and runs early enough.

        Returns it with the position of the node there.
        """
        if node.op is not Op.REDUCE:
            return None
        known = self._siblings.get((node.srcs[0].shape, node["dims"]), [])
        reads = self._reads(node.srcs[0])
        bound = self.required.get(node, -1)
        bound = max((bound, *(c.number for c in self.demanders.get(node, ()))))
        for cluster, write, others in reversed(known[-4:]):
            if cluster.number > bound and cluster.work < MAX_WORK and reads & others:
                return cluster, write.at
        return None

    def _reads(self, node: Node) -> set[Node]:
        """The large tensors from which a node is computed, as far as a short look shows."""
        found: set[Node] = set()
        pending = [node]
        for _ in range(24):
            if not pending:
                break
            source = pending.pop()
            if source.op in Group.ELEMENTWISE or source.op in VIEWS:
                pending.extend(source.srcs)
            elif 2 * source.type.size >= node.type.size and source.op is not Op.IOTA:
                found.add(source)
        return found

    def _store_parts(self, node: Node, storage: Storage, layout: Layout) -> None:
        """Store each operand of a concatenation by a cluster of its own, where it belongs."""
        offset = layout.offset
        for src in node.srcs:
            cluster = Cluster(self.number())
            self.units.append(cluster)
            at = cluster.identity(src.shape)
            cluster.writes.append(Write(src, at, storage, at.coords, layout.strides, offset))
            cluster.want(src, at)
            self._want(cluster, (src,))
            offset += src.shape[node["dim"]] * layout.strides[node["dim"]]

    def _visit_computed(self, node: Node) -> None:
        clusters = self.demanders.get(node, [])
        if not clusters and node not in self.required:
            return
        if node in self.required or not self._inlined(node, clusters):
            self._host(node, clusters)

    def _inlined(self, node: Node, clusters: list[Cluster]) -> bool:
        """Compute a node wherever it is wanted and nowhere else, if that is right to do."""
        if len(clusters) > 1 and not self._recomputed(node):
            return False
        if not all(self._accepts(cluster, node) for cluster in clusters):
            return False
        for cluster in clusters:
            self._admit(cluster, node)
        return True

    def _host(self, node: Node, clusters: list[Cluster]) -> None:
        """Store a node in the first of its consumers, if that is a cluster which can, or alone."""
        newest = max((c.number for c in clusters), default=-1)
        newest = max(newest, self.required.get(node, -1))
        cluster = next((c for c in clusters if c.number == newest), None)
        if newest == self.required.get(node):
            cluster = None  # it also reads the node, as a view, from memory
        if cluster is None or not self._may_host(cluster, node):
            self._store_alone(node)
            return
        at = self._covering(cluster, node)
        if at is None and self._make_rows(cluster, node):
            at = self._covering(cluster, node)
        if at is None:
            self._store_alone(node)
            return
        self._admit(cluster, node)
        at = self._covering(cluster, node)
        assert at is not None
        storage, layout = self._store(node)
        cluster.writes.append(Write(node, at, storage, at.coords, layout.strides, layout.offset))

    def _may_host(self, cluster: Cluster, node: Node) -> bool:
        """Whether a cluster may store a node besides what it is for."""
        if cluster.kind != "loop" or cluster.has_updates or node.op is Op.CONCATENATE:
            return False
        return self._accepts(cluster, node)

    def _make_rows(self, cluster: Cluster, node: Node) -> bool:
        """Reduce over the axes on which a node does not depend, if it follows from a reduction.

        Then the cluster stores the node once per row, and the reduction itself comes later.
        """
        if cluster.reduced or cluster.has_updates or len(cluster.wants[node]) != 1:
            return False
        (at,) = cluster.wants[node]
        axes: set[int] = set()
        ix.axes_of_at(at, axes)
        free = [axis for axis in cluster.order if axis not in axes]
        length = cluster.points(free)
        if not free or at.mask or self._too_long(length, cluster.points(axes)):
            return False
        reduction = self._row_source(node)
        if reduction is None or math.prod(reduced_extents(reduction)) != length:
            return False
        cluster.reduced.update(free)
        return True

    def _row_source(self, node: Node) -> Node | None:
        """The reduction from whose results a node of the same number of elements is computed."""
        pending = [node]
        for _ in range(16):
            if not pending:
                return None
            found = pending.pop()
            if found.op is Op.REDUCE:
                return found
            if found.op in Group.ELEMENTWISE or found.op in BIJECTIVE:
                pending.extend(src for src in found.srcs if src.type.size == node.type.size)
        return None

    @staticmethod
    def _too_long(length: int, rows: int) -> bool:
        """Whether too few threads would find work if every row were one's."""
        return rows < MIN_ROWS and length * rows > LONG

    @staticmethod
    def _covering(cluster: Cluster, node: Node) -> At | None:
        """The position at which the cluster computes every element of the node just once."""
        wanted = cluster.wants[node]
        if len(wanted) != 1:
            return None
        (at,) = wanted
        if at.mask:
            return None
        axes: set[int] = set()
        ix.axes_of_at(at, axes)
        if not axes.issuperset(cluster.parallel) or cluster.points(axes) != node.type.size:
            return None
        if axes & cluster.reduced and not axes.issuperset(cluster.reduced):
            return None
        flat = ix.flatten(at.coords, node.shape)
        if flat.offset:
            return None
        step = 1
        for coefficient, extent in sorted(
            (a, cluster.extents[t]) for t, a in flat.terms if isinstance(t, int)
        ):
            if coefficient != step:
                return None
            step *= extent
        return at if step == node.type.size else None

    def _accepts(self, cluster: Cluster, node: Node) -> bool:
        """Whether a cluster may compute a node that it wants."""
        opened = len(cluster.wants) - len(cluster.inside)
        if cluster.work > MAX_WORK or (opened > MAX_OPEN and len(node.srcs) > 1):
            return False
        if cluster.has_updates and not self._recomputed(node):
            return False  # updates run on few threads
        wanted = cluster.wants[node]
        if node.op in REDUCTIONS:
            return cluster.kind == "loop" and self._reduces(cluster, node)
        if node.op not in Group.ELEMENTWISE and cluster.kind != "loop":
            return False
        if node.op is Op.CONCATENATE and len(node.srcs) > MAX_ARMS:
            return False
        if not is_slow(node):
            return len(wanted) <= MAX_POSITIONS
        total = 0
        for at in wanted:
            axes: set[int] = set()
            ix.axes_of_at(at, axes)
            total += cluster.points(axes)
        return total <= node.type.size

    def _reduces(self, cluster: Cluster, node: Node) -> bool:
        """Whether a reduction can run over the cluster's space; prepares the space for it."""
        wanted = cluster.wants[node]
        if len(wanted) != 1 or cluster.has_updates:
            return False
        (at,) = wanted
        if at.mask or not all(map(ix.is_affine, at.coords)):
            return False
        axes: set[int] = set()
        ix.axes_of_at(at, axes)
        if axes & cluster.reduced or cluster.points(axes) != node.type.size:
            return False
        extents = reduced_extents(node)
        length = math.prod(extents)
        free = [axis for axis in cluster.order if axis not in axes]
        if self._too_long(length, cluster.points(axes)):
            return False
        if cluster.reduced:
            if set(free) != cluster.reduced or cluster.points(cluster.reduced) != length:
                return False
            if node.op is Op.ARG_REDUCE and len(cluster.reduced) > 1:
                return False
            return self._unflattens(cluster, node)
        if not free:
            if cluster.order and not axes:
                return False
            for extent in extents:
                cluster.new_axis(extent, reduced=True)
            return True
        if cluster.points(free) != length or (node.op is Op.ARG_REDUCE and len(free) > 1):
            return False
        cluster.reduced.update(free)
        if self._unflattens(cluster, node):
            return True
        cluster.reduced.clear()
        return False

    @staticmethod
    def _unflattens(cluster: Cluster, node: Node) -> bool:
        over: list[Index] = []

        def compute() -> None:
            over[:] = cluster.reduced_coords(node)

        cluster.affine(compute)
        return all(map(ix.is_affine, over))

    @staticmethod
    def _recomputed(node: Node) -> bool:
        """Whether several kernels compute the node each for itself rather than read it."""
        if is_slow(node) or node.op in (Op.CONCATENATE, Op.PAD):
            return False
        # An operand per row or column beside one full operand is next to nothing.
        return sum(_bytes_read(src) for src in set(node.srcs)) <= 1.25 * node.type.nbytes

    # ---- products -----------------------------------------------------------------------------

    def _visit_region(self, node: Node) -> None:
        region = self.regions[node]
        product = self._products.get(region)
        if product is None:
            cluster = Cluster(self.number(), "gemm", dict(region.extents), [0, 1, 2])
            product = Product(self.number(), cluster, region)
            self.units.append(product)
            self._products[region] = product
        cluster = product.cluster
        at = At(region.frames[node])
        outside = [c for c in self.demanders.get(node, ()) if c is not cluster]
        if outside or node in self.required:
            storage, layout = self._store(node)
            cluster.writes.append(
                Write(node, at, storage, at.coords, layout.strides, layout.offset)
            )
            cluster.want(node, at)
        if node not in cluster.wants:
            return
        if node is not region.dot:
            self._admit(cluster, node)
            return
        cluster.inside[node] = {at: ()}
        for side, src in enumerate(node.srcs):
            product.operands.append(self._operand(product, side, src))

    def _operand(self, product: Product, side: int, src: Node) -> Node | Storage:
        """A product's operand: the node where it lies, or a packed copy of it."""
        dot = product.region.dot
        if src.op in VIEWS:
            self._prefer(src)
        if matrix(dot, side, self.layout(src)) is not None:
            self.require(src, product.number)
            return src
        strides = contiguous(src.shape)
        if matrix(dot, side, Layout(strides)) is None:
            strides = _packed(dot, side)
        copies = self._copies.setdefault(src, {})
        if strides not in copies:
            copies[strides] = Storage("temp", src, src.shape, strides)
        return copies[strides]

    # ---- calls and updates --------------------------------------------------------------------

    def _visit_get(self, node: Node) -> None:
        owner = node.srcs[0]
        numbers = [c.number for c in self.demanders.get(node, ())]
        if numbers or node in self.required:
            self._store(node)
            self._gets.setdefault(owner, {})[node["index"]] = node

    def _unused(self, node: Node, index: int) -> Node:
        result = Node.make(Op.GET, node.types[index], (node,), {"index": index})
        self._store(result)
        return result

    def _visit_opaque(self, node: Node) -> None:
        if len(node.types) == 1:
            outs: tuple[Node | None, ...] = (None,)
            if node in self.demanders or node in self.required or node.op in CONTROL:
                self._store(node)
                outs = (node,)
        else:
            used = self._gets.get(node, {})
            if node.op in CONTROL:  # its bodies give every result
                used = {i: used.get(i) or self._unused(node, i) for i in range(len(node.types))}
            outs = tuple(used.get(i) for i in range(len(node.types)))
        unit = Opaque(self.number(), node, outs)
        self.units.append(unit)
        for src in dict.fromkeys(node.srcs):
            self.require(src, unit.number)

    def _visit_update(self, node: Node) -> None:
        clusters = self.demanders.get(node, [])
        if not clusters and node not in self.required:
            return
        if node not in self.required and is_choice(node) and self._inlined(node, clusters):
            return
        storage, layout = self._store(node)
        cluster = Cluster(self.number(), has_updates=True)
        self.units.append(cluster)
        cluster.writes.append(update_write(node, cluster, storage, layout))
        self._want(cluster, cluster.wants)
        self.copy_into(node.srcs[0], storage, layout.strides)


def _bytes_read(node: Node) -> int:
    """Bytes of the tensor from which a node's elements come."""
    size = node.type.nbytes
    while node.op in VIEWS:
        node = node.srcs[0]
        size = min(size, node.type.nbytes)
    return 0 if node.op is Op.IOTA or splat_value(node) else size


def _roles(dot: Node, side: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The dimensions of an operand that are batch, rows (columns, of the right one), contracted."""
    batch = dot["rhs_batch" if side else "lhs_batch"]
    contract = dot["rhs_contract" if side else "lhs_contract"]
    rank = dot.srcs[side].type.rank
    free = tuple(d for d in range(rank) if d not in batch and d not in contract)
    return batch, free, contract


def _packed(dot: Node, side: int) -> Strides:
    """Dense strides of an operand in the order batch, rows, columns of the matrix."""
    batch, free, contract = _roles(dot, side)
    order = (*batch, *contract, *free) if side else (*batch, *free, *contract)
    shape = dot.srcs[side].shape
    strides = dict(zip(order, contiguous([shape[d] for d in order]), strict=True))
    return tuple(strides[d] for d in range(len(shape)))


def matrix(dot: Node, side: int, layout: Layout) -> tuple[int, int, int] | None:
    """Strides along batch, free and contracted dimensions, each taken together; None if none."""
    shape = dot.srcs[side].shape
    found = []
    for dims in _roles(dot, side):
        stride = collapsed([shape[d] for d in dims], [layout.strides[d] for d in dims])
        if stride is None:
            return None
        found.append(stride)
    return found[0], found[1], found[2]
