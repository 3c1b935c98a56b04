"""The order in which fusion visits nodes, and the pointwise regions that follow matrix products.

Hard nodes (products, reductions, calls) are numbered in program order. The stage of any other node
is the last hard node that it depends on; what follows a product within its stage depends on that
product and on nothing later, so it can be computed while the product's tile is in the cache.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import pairwise

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import BIJECTIVE, CALLS, VIEWS, is_hard, is_slow, origin
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import Index, Space
from neuronxcc.lowering.geometry.layout import Layout, Strides, contiguous, viewed

MAX_REGION = 96  # operations of an epilogue

Users = Mapping[Node, list[Node]]
Groups = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def program_order(graph: Graph, first: Mapping[Node, Collection[Node]] | None = None) -> list[Node]:
    """All nodes, operands first, otherwise as the front end made them; effects in sequence.

    Collectives are in the order of their channels.

    Args:
        graph: Whose nodes.
        first: For some nodes others that come before them, too, though they are no operands; a wish
            that is not granted if effects are in the way.
    """
    nodes = sorted(graph.nodes(), key=lambda node: node.serial)
    effects = [n for n in nodes if n.op in CALLS and n.get("sequence") is not None]
    wanted = sorted(effects, key=lambda n: n["sequence"])
    channels = [n for n in nodes if n.get("channel") is not None]
    in_turn = sorted(channels, key=lambda n: n["channel"])
    after: dict[Node, set[Node]] = {}
    if effects != wanted or channels != in_turn or first:
        pairs = (*pairwise(wanted), *pairwise(in_turn))
        after = {node: {before} for before, node in pairs}
    for node, others in (first or {}).items():
        after[node] = after.get(node, set()).union(others)
    order = _ordered(nodes, after) if after else nodes
    if first and len(order) < len(nodes):  # some wait for each other
        return program_order(graph)
    return order


def _ordered(nodes: list[Node], after: Mapping[Node, Collection[Node]]) -> list[Node]:
    waiting = {}
    users: dict[Node, list[Node]] = {}
    ready: list[tuple[int, Node]] = []
    for node in nodes:
        needs = {*node.srcs, *after.get(node, ())}
        waiting[node] = len(needs)
        for need in needs:
            users.setdefault(need, []).append(node)
        if not needs:
            ready.append((node.serial, node))
    heapq.heapify(ready)
    result = []
    while ready:
        _, node = heapq.heappop(ready)
        result.append(node)
        for user in users.get(node, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, (user.serial, user))
    return result


def stages(order: Iterable[Node]) -> dict[Node, int]:
    """The stage of every node."""
    stage: dict[Node, int] = {}
    count = 0
    for node in order:
        if is_hard(node):
            count += 1
            stage[node] = count
        else:
            stage[node] = max((stage[src] for src in node.srcs), default=0)
    return stage


class Region:
    """A product and the pointwise nodes that are computed with it.

    Attributes:
        dot: The product: a DOT_GENERAL, or a call that is a convolution.
        batch, m, n: Extents of the epilogue's axes 0, 1 and 2.
        frames: For every node of the region its position in terms of these axes.
        strides: For every node of the region the strides that keep the product's order in memory.
    """

    def __init__(self, dot: Node, groups: Groups | None = None) -> None:
        """Begin with a product, whose dimensions along each axis `groups` may tell."""
        self.dot = dot
        groups = _groups(dot) if groups is None else groups
        extents = [tuple(dot.shape[d] for d in group) for group in groups]
        self.batch, self.m, self.n = map(math.prod, extents)
        self.extents = {0: self.batch, 1: self.m, 2: self.n}
        self.space = Space(self.extents, splittable=False)
        coords: dict[int, Index] = {}
        for axis, group in enumerate(groups):
            flat = ix.ZERO if self.extents[axis] == 1 else ix.of_axis(axis)
            coords.update(zip(group, ix.unflatten(flat, extents[axis], self.space), strict=True))
        order = [d for group in groups for d in group]
        steps = dict(zip(order, contiguous([dot.shape[d] for d in order]), strict=True))
        rank = range(dot.type.rank)
        self.frames: dict[Node, tuple[Index, ...]] = {dot: tuple(coords[d] for d in rank)}
        self.strides: dict[Node, Strides] = {dot: tuple(steps[d] for d in rank)}

    def _add(self, node: Node) -> None:
        """Take in a node of as many elements as the product if its positions follow from it."""
        inside = [src for src in node.srcs if src in self.frames]
        first = inside[0]
        frame, strides = self.frames[first], self.strides[first]
        if node.op in Group.ELEMENTWISE:
            if all(self.frames[src] == frame for src in inside):
                self.frames[node], self.strides[node] = frame, strides
            return
        layout = viewed(node, Layout(strides))
        if layout is None:
            return
        if node.op is Op.TRANSPOSE:
            frame = tuple(frame[d] for d in node["permutation"])
        else:
            inner = frame
            frame = ix.reshape(inner, first.shape, node.shape, self.space)
            # What is asked of the node must lead back to where its operand is computed.
            if ix.reshape(frame, node.shape, first.shape, self.space) != inner:
                return
        self.frames[node], self.strides[node] = frame, layout.strides

    def holds(self, node: Node, strides: Strides) -> bool:
        """Return whether the epilogue can well store a node of the region with these strides."""
        address = ix.weighted(zip(self.frames[node], strides, strict=True))
        # Else there is a division for every column.
        divided = (term for term, _ in address.terms if not isinstance(term, int))
        if any(2 in ix.axes_of(ix.of_term(term)) for term in divided):
            return False
        # A convolution writes either of two layouts well, and its caller has chosen one.
        step = dict(address.terms).get(2, 1)
        return self.dot.op is Op.DOT_GENERAL or step == 1

    def grow(self, candidates: Iterable[Node], stage: Mapping[Node, int]) -> None:
        """Take in what can be computed per element of the product.

        Args:
            candidates: The other nodes of the product's stage, operands first.
            stage: Of every node.
        """
        own = stage[self.dot]
        for node in candidates:
            if node.op not in Group.ELEMENTWISE and node.op not in BIJECTIVE:
                continue
            if not any(src in self.frames for src in node.srcs):
                continue
            if len(self.frames) > MAX_REGION or node.type.size != self.dot.type.size:
                continue
            if node.dtype.is_complex or not all(
                src in self.frames or stage[src] < own for src in node.srcs
            ):
                continue
            self._add(node)

    def trim(self, users: Users, needed: AbstractSet[Node]) -> None:
        """Give up what its consumers compute as well from what is stored, or from less memory."""
        stored = {
            node
            for node in self.frames
            if node in needed or any(u not in self.frames for u in _consumers(node, users))
        }
        for node in reversed(list(self.frames)):
            if node is self.dot or node in needed or any(u in self.frames for u in users[node]):
                continue
            if node.op not in VIEWS and is_slow(node):
                continue
            operands = {origin(src) for src in node.srcs if src in self.frames}
            if sum(src.type.nbytes for src in operands - stored) < node.type.nbytes:
                del self.frames[node]
                stored |= operands


def _groups(dot: Node) -> Groups:
    """The dimensions of a matrix product's result that are batch, rows and columns."""
    batch, left = len(dot["lhs_batch"]), dot.srcs[0].type.rank - len(dot["lhs_contract"])
    rank = range(dot.type.rank)
    return tuple(rank[:batch]), tuple(rank[batch:left]), tuple(rank[left:])


def _consumers(node: Node, users: Users) -> list[Node]:
    """The nodes that compute with a node, or with a view of it."""
    found: list[Node] = []
    for user in users[node]:
        found.extend(_consumers(user, users) if user.op in VIEWS else (user,))
    return found


def regions(
    order: Iterable[Node],
    stage: Mapping[Node, int],
    users: Users,
    kept: Iterable[Node],
    begun: Callable[[Node], Region | None],
) -> dict[Node, Region]:
    """The region of every node that is in one, the products of floats themselves included.

    Args:
        order: All nodes, operands first.
        stage: Of every node.
        users: Of every node.
        kept: Nodes that are in memory in any case.
        begun: The region that begins with a node, or None.
    """
    by_stage: dict[int, Region] = {}
    followers: dict[int, list[Node]] = {}
    for node in order:
        region = begun(node)
        if region is not None:
            by_stage[stage[node]] = region
        elif stage[node] in by_stage:
            followers.setdefault(stage[node], []).append(node)
    result: dict[Node, Region] = {}
    needed = set(kept)
    for number, region in by_stage.items():
        region.grow(followers.get(number, ()), stage)
        region.trim(users, needed)
        result.update(dict.fromkeys(region.frames, region))
    return result
