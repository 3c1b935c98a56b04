"""Dead results of nodes that have several: branches, loops, sorts.

What no result needs is gone by itself, since a graph is what its results reach. Only nodes of
several results can hold something that nobody uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from neuronxcc.ir import build
from neuronxcc.ir.graph import Graph, parameter
from neuronxcc.ir.node import Node, topological
from neuronxcc.ir.op import Op
from neuronxcc.passes.rules import program_order

# The new node, and for each old result that is used the new one.
Pruned = dict[int, Node]


def prune(graph: Graph) -> Graph:
    """Drop dead results, in called graphs too."""
    used: dict[Node, set[int]] = {}
    nodes = program_order(graph)
    if not any(node.op in _PRUNERS for node in nodes):
        return graph
    for node in nodes:
        if node.op is Op.GET:
            used.setdefault(node.srcs[0], set()).add(node["index"])
    new: dict[Node, Node] = {}
    parts: dict[Node, Pruned] = {}
    locs = dict(graph.locs)
    for node in nodes:
        if node.op is Op.GET and node.srcs[0] in parts:
            new[node] = parts[node.srcs[0]][node["index"]]
        elif node.op in _PRUNERS and (several := used.get(node, set())):
            parts[node] = _PRUNERS[node.op](node, [new[src] for src in node.srcs], sorted(several))
        elif node.op in _PRUNERS:
            (new[node],) = _PRUNERS[node.op](node, [new[src] for src in node.srcs], [0]).values()
        else:
            new[node] = node.replace(new[src] for src in node.srcs)
        if node in graph.locs and node in new:
            locs.setdefault(new[node], graph.locs[node])
    results = tuple(new[result] for result in graph.results)
    return Graph(graph.name, graph.params, results, graph.aliases, locs)


def _results(node: Node, used: Sequence[int]) -> Pruned:
    return {old: build.get(node, new) for new, old in enumerate(used)}


def _sort(node: Node, srcs: list[Node], used: list[int]) -> Pruned:
    """The key is always needed."""
    kept = sorted({0, *used})
    several = build.sort(
        [srcs[i] for i in kept],
        node["dim"],
        descending=node["descending"],
        stable=node["stable"],
    )
    return {i: build.get(several, kept.index(i)) for i in used}


def _subset(graph: Graph, results: Sequence[int], params: Sequence[int]) -> Graph:
    """Some results of a graph as a function of some parameters, the only ones they need."""
    renamed = {
        graph.params[old]: parameter(new, graph.params[old].type, graph.params[old]["name"])
        for new, old in enumerate(params)
    }
    copies: dict[Node, Node] = dict(renamed)
    locs = {}
    wanted = [graph.results[i] for i in results]
    for node in topological(wanted):
        if node not in copies:
            copies[node] = node.replace(copies[src] for src in node.srcs)
        if node in graph.locs:
            locs[copies[node]] = graph.locs[node]
    outputs = tuple(copies[node] for node in wanted)
    return prune(Graph(graph.name, tuple(renamed.values()), outputs, {}, locs))


def _needs(graph: Graph, results: Iterable[int]) -> set[int]:
    """The parameters on which results depend."""
    reached = topological([graph.results[i] for i in results])
    return {node["index"] for node in reached if node.op is Op.PARAMETER}


def _conditional(node: Node, srcs: list[Node], used: list[int]) -> Pruned:
    branches: tuple[Graph, ...] = node["branches"]
    params = sorted(set().union(*(_needs(branch, used) for branch in branches)))
    several = build.conditional(
        srcs[0],
        [_subset(branch, used, params) for branch in branches],
        [srcs[1 + i] for i in params],
    )
    return _results(several, used)


def _call(node: Node, srcs: list[Node], used: list[int]) -> Pruned:
    params = sorted(_needs(node["body"], used))
    several = build.call(_subset(node["body"], used, params), [srcs[i] for i in params])
    return _results(several, used)


def _while(node: Node, srcs: list[Node], used: list[int]) -> Pruned:
    """State that neither the condition nor the wanted state depends on."""
    live = _needs(node["cond"], [0]) | set(used)
    while not (needed := _needs(node["body"], live)) <= live:
        live |= needed
    kept = sorted(live)
    several = build.while_(
        _subset(node["cond"], [0], kept),
        _subset(node["body"], kept, kept),
        [srcs[i] for i in kept],
    )
    return {i: build.get(several, kept.index(i)) for i in used}


_PRUNERS: dict[Op, Callable[[Node, list[Node], list[int]], Pruned]] = {
    Op.SORT: _sort,
    Op.CONDITIONAL: _conditional,
    Op.CALL: _call,
    Op.WHILE: _while,
}
