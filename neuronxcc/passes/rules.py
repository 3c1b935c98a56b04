"""Passes as tables of rules, and what applies them.

A rule looks at one node, whose operands have been simplified, and gives the node that takes its
place or None. `RulePass` applies a table until no rule has anything to say, in one walk: every node
that a rule makes is simplified before its users are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from neuronxcc.ir.graph import Graph, Loc
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.verify import called_graphs, with_called

Apply = Callable[[Node], Node | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rewriting.

    Attributes:
        name: What it does, for people.
        ops: The operators at which it looks.
        apply: Gives the replacement, of the same types, or None.
    """

    name: str
    ops: frozenset[Op]
    apply: Apply


def rule(name: str, *ops: Op) -> Callable[[Apply], Rule]:
    """Make a rule of the function below it."""
    return lambda apply: Rule(name, frozenset(ops), apply)


class RuleError(RuntimeError):
    """A bug in a table of rules: a changed type, or rules that undo each other."""


def program_order(graph: Graph) -> list[Node]:
    """The nodes in the order in which they were made, operands first.

    Passes go through graphs in this order, so that what they make comes in it too: lowering runs
    steps in the order of the program, which says when values die, and not in that of the results.
    """
    return sorted(graph.nodes(), key=lambda node: node.serial)


def rebuilt(
    graph: Graph, make: Callable[[Node, list[Node]], Node]
) -> tuple[dict[Node, Node], dict[Node, Loc]]:
    """Make every node of a graph again, in the order of the program.

    Args:
        graph: The graph.
        make: Takes a node and what has become of its operands; types may change.

    Returns:
        What has become of every node, and the positions in the user's program with those of the
        new nodes.
    """
    new: dict[Node, Node] = {}
    locs = dict(graph.locs)
    for node in program_order(graph):
        new[node] = make(node, [new[src] for src in node.srcs])
        if node in graph.locs:
            locs.setdefault(new[node], graph.locs[node])
    return new, locs


@dataclass
class RulePass:
    """A pass made of rules; call it with a graph.

    Attributes:
        rules: Tried in this order at every node.
        fired: How often each rule had something to say, over all graphs.
    """

    rules: Iterable[Rule]
    fired: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.table: dict[Op, list[Rule]] = {op: [] for op in Op}
        for entry in self.rules:
            for op in entry.ops:
                self.table[op].append(entry)

    def __call__(self, graph: Graph) -> Graph:
        """Simplify a graph and the graphs it calls."""
        return _Walk(self).graph(graph)


class _Walk:
    def __init__(self, rules: RulePass) -> None:
        self.rules = rules
        self.graphs: dict[int, Graph] = {}
        self.kept: list[Graph] = []  # so that no id of a graph is used again

    def graph(self, graph: Graph) -> Graph:
        if id(graph) not in self.graphs:
            walk = _GraphWalk(self, graph)
            for node in program_order(graph):
                walk.budget += 100
                walk.settle(node)
            results = tuple(walk.settle(result) for result in graph.results)
            same = all(a is b for a, b in zip(results, graph.results, strict=True))
            locs = walk.locs
            new = graph if same else Graph(graph.name, graph.params, results, graph.aliases, locs)
            self.graphs[id(graph)] = new
            self.kept.append(graph)
        return self.graphs[id(graph)]


class _GraphWalk:
    """Simplifies the nodes of one graph."""

    def __init__(self, walk: _Walk, graph: Graph) -> None:
        self.walk = walk
        self.name = graph.name
        self.locs = dict(graph.locs)
        self.done: dict[Node, Node] = {}  # node -> its final form
        self.next: dict[Node, Node] = {}  # node -> what took its place, not final yet
        # Far more than any graph needs: a rule that makes new nodes for ever is found out.
        self.budget = 10_000

    def settle(self, root: Node) -> Node:
        """The final form of a node. Without recursion: graphs are deep."""
        stack = [root]
        waiting: set[Node] = set()  # replaced, and on the stack until the replacement is final
        while stack:
            node = stack[-1]
            if node in self.done:
                stack.pop()
                continue
            if node in self.next:
                replacement = self.next[node]
                if replacement in self.done:
                    self.done[node] = self.done[replacement]
                    waiting.discard(node)
                    stack.pop()
                elif replacement in waiting:
                    raise RuleError(f"{self.name}: rules turn {node!r} and {replacement!r} around")
                else:
                    waiting.add(node)
                    stack.append(replacement)
                continue
            pending = [src for src in node.srcs if src not in self.done]
            if pending:
                stack.extend(reversed(pending))
                continue
            result = self.step(node)
            if result is None:
                self.done[node] = node
                stack.pop()
            else:
                self.next[node] = result
        return self.done[root]

    def step(self, node: Node) -> Node | None:
        """Replace operands by their final forms, or else apply the first rule that fits."""
        rebuilt = self.nested(node.replace(self.done[src] for src in node.srcs))
        if rebuilt is not node:
            self.locate(rebuilt, node)
            return rebuilt
        for entry in self.walk.rules.table[node.op]:
            result = entry.apply(node)
            if result is not None and result is not node:
                if result.types != node.types:
                    raise RuleError(f"rule {entry.name!r} made {result!r} out of {node!r}")
                self.walk.rules.fired[entry.name] += 1
                self.budget -= 1
                if self.budget < 0:
                    raise RuleError(f"{self.name}: no end of rules, last {entry.name!r}")
                self.locate(result, node)
                return result
        return None

    def nested(self, node: Node) -> Node:
        """The node with the graphs that it calls simplified."""
        if not called_graphs(node):
            return node
        attrs = with_called(node, self.walk.graph)
        if all(attrs[name] == value for name, value in node.attrs.items()):
            return node
        result = Node.make(node.op, node.types, node.srcs, attrs)
        self.walk.graphs.update({id(graph): graph for graph in called_graphs(result)})
        self.walk.kept.extend(called_graphs(result))
        return result

    def locate(self, made: Node, source: Node) -> None:
        """New nodes come from where the node came from that they replace."""
        loc = self.locs.get(source)
        if loc is None:
            return
        stack = [made]
        while stack:
            node = stack.pop()
            if node not in self.locs and node not in self.done and node not in self.next:
                self.locs[node] = loc
                stack.extend(node.srcs)
