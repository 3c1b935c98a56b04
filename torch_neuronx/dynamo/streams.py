"""Streams and events in a compiled graph: programs between them, in the order of the user's calls.

A program is the work of one stream. Where the graph records an event, waits, synchronises or
changes the stream, one program ends and another begins, and the call itself runs between them as
in eager mode; so an event has the time that it would have there, and work that was issued to a
stream outside of the function is waited for where the function says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dynamo.graph_bytecode_inputs import CURRENT_STREAM_INDEX, get_external_object_by_index
from torch._inductor.fx_passes.control_dependencies import control_deps
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import Graph, GraphModule, Node, map_arg

from torch_neuronx import neuron
from torch_neuronx.dynamo.boxes import takes_list

Run = Callable[[list[Any]], Sequence[Any]]


def uses_streams(gm: GraphModule) -> bool:
    """Return whether a graph selects streams, or does something with streams or events."""
    return any(
        node.target is control_deps or _is_call(node) or _stream_of(node) is not None
        for node in gm.graph.nodes
        if node.op == "call_function"
    )


def compile_parts(gm: GraphModule, compile_one: Callable[[GraphModule, int], Run]) -> Run:
    """Compile a graph that uses streams.

    Args:
        gm: One of AOTAutograd's graphs; it is changed.
        compile_one: Compiles a graph without streams, the part of that number, to a function of
            the list of its arguments, which it may empty.

    Returns:
        A function of the list of the graph's arguments, which it empties.
    """
    _inline_ordered_calls(gm)
    parts = _split(gm)
    returned = gm.graph.output_node().args[0]
    needed = {node.name for node in gm.graph.output_node().all_input_nodes}
    steps: list[_Step] = []
    for number, part in reversed(list(enumerate(parts))):  # what later ones need is known
        steps.insert(0, _step(gm, part, needed, number, compile_one))
        needed |= set(steps[0].arguments)
    arguments = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    _note_last_uses(steps, returned)

    def call(args: list[Any]) -> Any:
        values = dict(zip(arguments, args, strict=True))
        args.clear()
        for step in steps:
            step.run(values)
        return map_arg(returned, lambda node: values[node.name])

    return takes_list(call)


@dataclass(slots=True)
class _Part:
    """Neighbours in a graph: one call on streams or events, or the operators of one stream."""

    stream: int | None = None
    nodes: list[Node] = field(default_factory=list)
    call: Node | None = None


@dataclass(slots=True)
class _Step:
    """One part, ready to run.

    Attributes:
        arguments: Names of the values that it takes.
        results: Names of those that it gives.
        function: Takes the list of the one, gives the other.
        stream: The number of the stream that it runs on; None for the current one.
        last: Names of values that nobody takes after it.
    """

    arguments: list[str]
    results: list[str]
    function: Run
    stream: int | None
    last: list[str] = field(default_factory=list)

    def run(self, values: dict[str, Any]) -> None:
        given = [values[name] for name in self.arguments]
        for name in self.last:
            values.pop(name, None)
        stream = None if self.stream is None else get_external_object_by_index(self.stream)
        with neuron.stream(stream if isinstance(stream, torch.Stream) else None):
            values.update(zip(self.results, self.function(given), strict=True))


def _is_call(node: Node) -> bool:
    if isinstance(node.target, OpOverloadPacket):  # in Dynamo's graphs
        return node.target._qualified_op_name.startswith("streams::")
    return isinstance(node.target, OpOverload) and node.target.namespace == "streams"


def _stream_of(node: Node) -> int | None:
    number = (node.meta.get("custom") or {}).get("stream")
    return None if number == CURRENT_STREAM_INDEX else number


def _inline_ordered_calls(gm: GraphModule) -> None:
    """Replace `control_deps(before, subgraph, *values)` by the call in the subgraph.

    AOTAutograd wraps calls on streams so that values pass through them. Here they keep their order.
    """
    wrapped = [node for node in gm.graph.nodes if node.target is control_deps]
    for node in wrapped:
        _before, body, *values = node.args
        inner: GraphModule = getattr(gm, body.target)
        inputs = inner.graph.find_nodes(op="placeholder")
        with gm.graph.inserting_before(node):
            returned: Any = gm.graph.graph_copy(inner.graph, dict(zip(inputs, values, strict=True)))
        for user in list(node.users):
            if user.target is operator.getitem:
                user.replace_all_uses_with(returned[user.args[1]])
                gm.graph.erase_node(user)
    for node in reversed(wrapped):  # the later ones name the earlier ones
        gm.graph.erase_node(node)


def _split(gm: GraphModule) -> list[_Part]:
    parts: list[_Part] = []
    home: dict[Node, _Part] = {}
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        if _is_call(node):
            parts.append(_Part(call=node))
            continue
        if node.target is operator.getitem and node.args[0] in home:
            part = home[node.args[0]]
        else:
            stream = _stream_of(node)
            if not parts or parts[-1].call is not None or parts[-1].stream != stream:
                parts.append(_Part(stream))
            part = parts[-1]
        part.nodes.append(node)
        home[node] = part
    return parts


def _step(
    gm: GraphModule,
    part: _Part,
    needed: set[str],
    number: int,
    compile_one: Callable[[GraphModule, int], Run],
) -> _Step:
    if part.call is not None:
        call = part.call
        names = [node.name for node in call.all_input_nodes]
        return _Step(names, [], _direct(call), None)
    graph = Graph()
    copies: dict[Node, Node] = {}
    inputs = [
        n for n in dict.fromkeys(i for node in part.nodes for i in node.all_input_nodes)
        if n not in part.nodes
    ]  # fmt: skip
    for node in inputs:
        if node.op == "get_attr":
            copies[node] = graph.node_copy(node)
        else:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
    for node in part.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        # The part as a whole runs on its stream.
        copies[node].meta["custom"] = {
            k: v for k, v in (node.meta.get("custom") or {}).items() if k != "stream"
        }
    results = [node for node in part.nodes if node.name in needed]
    graph.output(tuple(copies[node] for node in results))
    arguments = [node.name for node in inputs if node.op != "get_attr"]
    compiled = compile_one(GraphModule(gm, graph), number)
    return _Step(arguments, [node.name for node in results], compiled, part.stream)


def _direct(call: Node) -> Run:
    target: Any = call.target

    def run(given: list[Any]) -> Sequence[Any]:
        values = dict(zip(call.all_input_nodes, given, strict=True))
        target(*map_arg(call.args, values.__getitem__), **map_arg(call.kwargs, values.__getitem__))
        return ()

    return run


def _note_last_uses(steps: Sequence[_Step], returned: Any) -> None:
    kept: set[str] = set()
    map_arg(returned, lambda node: kept.add(node.name))
    for step in reversed(steps):
        step.last = [name for name in step.arguments if name not in kept]
        kept.update(step.arguments)
