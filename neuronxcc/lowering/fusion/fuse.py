"""Groups nodes into units: loop kernels, matrix products with epilogues, calls.

Nodes are visited consumers first. By then every consumer has said at which positions of its kernel
it wants the node's elements (`demands`), so one decision per node is enough: compute it inside the
kernels that want it, or store it, in a kernel that wants it if that can be the first of them to
run, else in one of its own (`policy` has the rules). Units are numbered as they are made, and run
from the last to the first: one may read whatever is made after it, and no cycle can arise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import REDUCTIONS, SOFT, UPDATES, VIEWS, is_hard, origin
from neuronxcc.lowering.fusion.calls import Calls
from neuronxcc.lowering.fusion.channels import channels_last, last_strides
from neuronxcc.lowering.fusion.cluster import Storage
from neuronxcc.lowering.fusion.contents import Contents
from neuronxcc.lowering.fusion.contractions import Contractions
from neuronxcc.lowering.fusion.convolve import region_of
from neuronxcc.lowering.fusion.demands import Demands
from neuronxcc.lowering.fusion.in_place import Updates
from neuronxcc.lowering.fusion.loops import Loops
from neuronxcc.lowering.fusion.order import Region, program_order, regions, stages
from neuronxcc.lowering.fusion.places import Places
from neuronxcc.lowering.fusion.units import Home, Unit
from neuronxcc.lowering.geometry.chains import late_readers, versions
from neuronxcc.lowering.geometry.layout import Strides


@dataclass(frozen=True)
class Fused:
    """The result of fusion.

    Attributes:
        graph: What was fused.
        places: Where tensors lie.
        units: The steps, the last one first.
        results: For every result the storage that holds it.
    """

    graph: Graph
    places: Places
    units: Sequence[Unit]
    results: Sequence[Storage]


def fuse(
    graph: Graph, param_strides: Sequence[Strides], result_strides: Sequence[Strides]
) -> Fused:
    """Group the nodes of a graph.

    Args:
        graph: As `preparation` leaves it.
        param_strides: Of every parameter, in elements.
        result_strides: Of every result, in elements.
    """
    following = versions(graph)
    order = program_order(graph, late_readers(graph, following))
    stage = stages(order)
    last = channels_last(graph, order, param_strides, result_strides)
    users = _users(order)

    def begun(node: Node) -> Region | None:
        return region_of(node, last=node in last)

    found = regions(order, stage, users, _kept(graph, order), begun)
    order.sort(key=lambda n: (stage[n], n not in found, n.serial))
    places = Places(graph, param_strides, found)
    demands = Demands(places)
    contents = Contents(places, following)
    results, late = _place_results(graph, result_strides, demands, contents)
    for node in last:
        if node not in found and node.op not in VIEWS:
            places.claim(node, last_strides(node.shape))
    _Visitor(demands, contents, users, following).visit_all(reversed(order))
    for node, storage in late:
        demands.copy_into(node, storage, storage.strides)
    return Fused(graph, places, demands.units, results)


class _Visitor:
    """Gives every node to the part of fusion that treats its kind."""

    def __init__(
        self,
        demands: Demands,
        contents: Contents,
        users: Mapping[Node, Sequence[Node]],
        following: Mapping[Node, Node],
    ) -> None:
        self.demands = demands
        self.contractions = Contractions(demands, users)
        self.loops = Loops(demands, contents, self.contractions.epilogue)
        self.updates = Updates(demands, contents, self.loops, following.values())
        self.calls = Calls(demands)

    def visit_all(self, nodes: Iterator[Node]) -> None:
        for node in nodes:
            self.demands.copy_packed(node)
            self._visit(node)

    def _visit(self, node: Node) -> None:
        if node.op in VIEWS:
            self.contractions.store_view(node)
            self.loops.visit_view(node)
        elif node.op in Group.LEAF:
            self.loops.visit_leaf(node)
        elif node.op is Op.GET:
            self.calls.visit_get(node)
        elif node in self.contractions.regions:
            self.contractions.visit(node)
        elif node.op in UPDATES:
            self.updates.visit(node)
        elif node.op not in SOFT and node.op not in REDUCTIONS:
            self.calls.visit(node)
        elif node.op not in SOFT or self.demands.wanted(node):
            self.loops.visit(node)


def _place_results(
    graph: Graph, result_strides: Sequence[Strides], demands: Demands, contents: Contents
) -> tuple[list[Storage], list[tuple[Node, Storage]]]:
    """Decide which nodes are computed straight into outputs or parameters.

    Returns the storages of the results, and of those that are parameters' old contents what is to
    be copied last of all in the order of making, hence first when the program runs.
    """
    places = demands.places
    results: list[Storage] = []
    filled: list[Storage] = []
    late: list[tuple[Node, Storage]] = []
    for i, (node, strides) in enumerate(zip(graph.results, result_strides, strict=True)):
        target = graph.aliases.get(i)
        if target is not None:
            param = places.params[target]
            results.append(param)
            if node is param.node:
                continue
            storage = Storage("temp", node, node.shape, param.strides, home=target)
            demands.units.append(Home(demands.number(), storage))
        else:
            storage = Storage("output", node, node.shape, tuple(strides), index=i)
            results.append(storage)
        filled.append(storage)
    # Parameters get their new content last of all: what reads the old one has run by then.
    for storage in filled:
        node, strides = storage.node, storage.strides
        base = places.claim(node, strides)
        if base is None and places.claim_copy(node, strides):
            base = node
        if base is not None:
            places.homes[base] = storage
            demands.require(base, -1)
        elif node in contents.versions and node.op is Op.PARAMETER:
            late.append((node, storage))
        else:
            demands.copy_into(node, storage, strides)
    return results, late


def _kept(graph: Graph, order: Sequence[Node]) -> Iterator[Node]:
    """Nodes that have to be in memory whatever is fused."""
    for result in graph.results:
        yield origin(result)
    for node in order:
        if is_hard(node) and node.op not in REDUCTIONS:
            for src in node.srcs:
                yield origin(src)


def _users(order: Sequence[Node]) -> dict[Node, list[Node]]:
    users: dict[Node, list[Node]] = {node: [] for node in order}
    for node in order:
        for src in node.srcs:
            users[src].append(node)
    return users
