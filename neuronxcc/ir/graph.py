"""A graph: parameters, results, and what the compiler may assume about their memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from neuronxcc.ir.node import Node, TensorType, topological
from neuronxcc.ir.op import Op


@dataclass(frozen=True, slots=True)
class Loc:
    """Where the user wrote an operation, for errors and dumps."""

    file: str
    line: int
    text: str = ""  # the source line
    op: str = ""  # the operator the user called, e.g. "aten.gelu.default"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(eq=False)
class Graph:
    """A function from parameters to results. Compared by identity.

    Attributes:
        name: For people.
        params: PARAMETER nodes; `params[i]["index"] == i`.
        results: Nodes of one result each; the same node may appear twice.
        aliases: Result number -> parameter number: that result is the new content of the memory of
            that parameter (an in-place update, or the parameter itself); it has the parameter's
            type. Results without an alias share memory with no parameter and no other result.
        locs: Source positions of nodes; not part of a node's identity.
    """

    name: str
    params: tuple[Node, ...]
    results: tuple[Node, ...]
    aliases: Mapping[int, int] = field(default_factory=dict)
    locs: dict[Node, Loc] = field(default_factory=dict)

    def nodes(self) -> Iterator[Node]:
        """Every node that the results need, operands first. Unused parameters do not appear."""
        return topological(self.results)

    def users(self) -> dict[Node, list[Node]]:
        """For every node those that use it, once per use."""
        users: dict[Node, list[Node]] = {}
        for node in self.nodes():
            users.setdefault(node, [])
            for src in node.srcs:
                users[src].append(node)
        return users

    def apply(self, operands: Sequence[Node], locs: dict[Node, Loc] | None = None) -> list[Node]:
        """Return the results for operands in the place of the parameters.

        Args:
            operands: One per parameter and of its type.
            locs: Where the positions of the new nodes go.
        """
        new: dict[Node, Node] = dict(zip(self.params, operands, strict=True))
        for node in self.nodes():
            if node not in new:
                new[node] = node.replace(new[src] for src in node.srcs)
                if locs is not None and node in self.locs:
                    locs[new[node]] = self.locs[node]
        return [new[result] for result in self.results]

    def rewrite(self, rule: Callable[[Node], Node | None]) -> Graph:
        """Rebuild the graph bottom-up.

        Args:
            rule: Called once per node, after its operands were rewritten, with the rebuilt node.
                Returns a node of the same types to put in its place, or None to leave it.
        """
        new: dict[Node, Node] = {}
        locs = dict(self.locs)
        for node in self.nodes():
            rebuilt = node.replace(new[src] for src in node.srcs)
            result = rule(rebuilt)
            result = rebuilt if result is None else result
            if result.types != node.types:
                raise TypeError(f"a rule made {result!r} out of {node!r}")
            new[node] = result
            if node in locs:
                for fresh in (rebuilt, result):
                    locs.setdefault(fresh, locs[node])
        results = tuple(new[node] for node in self.results)
        return Graph(self.name, self.params, results, self.aliases, locs)


def parameter(index: int, type_: TensorType, name: str = "") -> Node:
    """The parameter number `index` of a graph."""
    return Node.make(Op.PARAMETER, type_, (), {"index": index, "name": name or f"p{index}"})
