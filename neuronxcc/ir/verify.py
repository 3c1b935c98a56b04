"""Checks that a graph is valid: "valid in, valid out" is held between all passes in tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.operators.checks import ShapeError
from neuronxcc.ir.operators.definition import Kind
from neuronxcc.ir.table import info


class VerifierError(ValueError):
    """A graph breaks a rule of the IR: a bug of the front end or of the pass that made it.

    Attributes:
        node: The node at fault, None if it is the graph as a whole.
    """

    code = "NCC_EVRF064"

    def __init__(self, graph: Graph, node: Node | None, text: str) -> None:
        where = ""
        if node is not None:
            where = f"{node!r}: "
            if node in graph.locs:
                where = f"{node!r} from {graph.locs[node]}: "
        super().__init__(f"[{self.code}] graph {graph.name!r} is invalid: {where}{text}")
        self.node = node


def verify(graph: Graph) -> None:
    """Check a graph and the graphs it calls.

    Raises:
        VerifierError: which node breaks which rule.
    """
    _verify(graph, set())


def _verify(graph: Graph, done: set[int]) -> None:
    if id(graph) in done:
        return
    done.add(id(graph))
    _signature(graph)
    params = set(graph.params)
    sequences: set[int] = set()
    for node in graph.nodes():
        _attributes(graph, node)
        for src in node.srcs:
            if len(src.types) != 1 and node.op is not Op.GET:
                raise VerifierError(graph, node, f"uses all results of {src!r}; take one by `get`")
        if node.op is Op.PARAMETER and node not in params:
            raise VerifierError(graph, node, "is no parameter of the graph")
        if node.get("sequence") in sequences:
            raise VerifierError(graph, node, f"sequence {node['sequence']} is used twice")
        if node.get("sequence") is not None:
            sequences.add(node["sequence"])
        _types(graph, node)
        for called in called_graphs(node):
            _verify(called, done)


def called_graphs(node: Node) -> tuple[Graph, ...]:
    """The graphs in a node's attributes."""
    if info(node).kind is not Kind.CONTROL:
        return ()
    single = (node.get("cond"), node.get("body"))
    return (*(graph for graph in single if graph is not None), *node.get("branches", ()))


def with_called(node: Node, change: Callable[[Graph], Graph]) -> dict[str, Any]:
    """A node's attributes with the graphs in them changed."""
    attrs = node.attrs
    for name, value in attrs.items():
        if isinstance(value, Graph):
            attrs[name] = change(value)
        elif name == "branches":
            attrs[name] = tuple(map(change, value))
    return attrs


def _signature(graph: Graph) -> None:
    for number, param in enumerate(graph.params):
        if param.op is not Op.PARAMETER or param["index"] != number:
            raise VerifierError(graph, param, f"stands as parameter {number}")
    for result in graph.results:
        if len(result.types) != 1:
            raise VerifierError(graph, result, "returned with all its results; take one by `get`")
    if len(set(graph.aliases.values())) != len(graph.aliases):
        raise VerifierError(graph, None, "two results update one parameter")
    for position, updated in graph.aliases.items():
        if not (0 <= position < len(graph.results) and 0 <= updated < len(graph.params)):
            raise VerifierError(graph, None, f"alias {position}: {updated} names nothing")
        if graph.results[position].type != graph.params[updated].type:
            found, wanted = graph.results[position].type, graph.params[updated].type
            raise VerifierError(graph, None, f"result {position}, {found}, updates a {wanted}")


def _attributes(graph: Graph, node: Node) -> None:
    entry, names = info(node), frozenset(node.attrs)
    if missing := entry.attrs - names:
        raise VerifierError(graph, node, f"lacks {', '.join(sorted(missing))}")
    if unknown := names - entry.attrs - entry.optional:
        raise VerifierError(graph, node, f"has unknown attributes {', '.join(sorted(unknown))}")


def _types(graph: Graph, node: Node) -> None:
    """The types of the results are those of the rule; operators without one have a check."""
    block = info(node)
    if block.rule is None:
        text = block.check(node) if block.check is not None else None
        if text is not None:
            raise VerifierError(graph, node, text)
        return
    try:
        types = block.rule(node.op, tuple(src.types[0] for src in node.srcs), node.attrs)
    except ShapeError as error:
        raise VerifierError(graph, node, str(error)) from error
    if types != node.types:
        raise VerifierError(graph, node, f"must be {', '.join(map(str, types))}")
