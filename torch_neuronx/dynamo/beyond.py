"""Graphs that use more of an argument's storage than the argument shows.

`as_strided` may: of a slice that was made before the function, or before Dynamo broke the graph, it
reads what is beside the slice. A program has the elements of its arguments alone, so such a graph
gets the stretch of the storage that it reads as one more argument. Of what a graph writes beside
the slice AOTAutograd says nothing; that is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._functorch._aot_autograd.descriptors import SyntheticBaseAOTInput
from torch.fx import Graph, GraphModule, Node

from neuronxcc.lowering.geometry.layout import span
from torch_neuronx.dynamo.autograd_metadata import written_arguments
from torch_neuronx.dynamo.boxes import Boxed, takes_list
from torch_neuronx.dynamo.locations import location
from torch_neuronx.dynamo.lowerings.memory import memory_order
from torch_neuronx.dynamo.lowerings.storage import held_positions, outside, owner_of, positions
from torch_neuronx.dynamo.outputs import is_lazy, root, storage_of

aten = torch.ops.aten


def split(gm: GraphModule) -> tuple[GraphModule, Callable[[Boxed], Boxed] | None]:
    """Give a graph of AOTAutograd's the stretches of storages that it reads.

    One that the graph also writes to is left as it is: the order of reading and writing is lost.

    Raises:
        CaptureError: The graph writes to elements that an argument does not show.

    Returns:
        The graph with arguments for them behind the others, and what completes its function: None
        if there is none (then it is the graph that was given).
    """
    arguments = gm.graph.find_nodes(op="placeholder")
    written = _written(arguments)
    readers: dict[Node, Node] = {}  # what reads by place: the argument whose storage it reads
    beyond: set[Node] = set()
    for node in gm.graph.nodes:
        if node.target is aten.as_strided_scatter.default:
            _check_write(node, written)
        elif node.target in {aten.as_strided.default, aten.as_strided_copy.default}:
            owner = owner_of(node.args[0])
            if (
                owner.op == "placeholder"
                and 0 not in node.args[1]
                and not any(is_lazy(node.args[0].meta["val"]))
                and storage_of(owner) not in written
            ):
                readers[node] = owner
                if not _shows(owner.meta["val"], node):
                    beyond.add(owner)
    if not beyond:
        return gm, None
    # All that reads its storage: what is read beyond an argument may be read by place itself.
    readers = {node: owner for node, owner in readers.items() if owner in beyond}
    stretches = {
        owner: (min(begin for begin, _ in extents), max(end for _, end in extents))
        for owner in dict.fromkeys(readers.values())
        if (extents := [_extent(node) for node, of in readers.items() if of is owner])
    }
    return _with_stretches(gm, arguments, stretches, readers), _passing(
        [(arguments.index(owner), *stretch) for owner, stretch in stretches.items()]
    )


def cut_storages(gm: GraphModule) -> Callable[[Boxed], Boxed] | None:
    """Complete a graph's function for arguments that AOTAutograd made of whole storages.

    It does that where arguments share memory of which none is a view to autograd. In tracing a
    storage ends where the last of them does; the real one may go on.
    """
    sizes = {
        number: int(node.meta["val"].shape[0])
        for number, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if isinstance(node.meta.get("desc"), SyntheticBaseAOTInput)
    }
    if not sizes:
        return None

    def complete(run: Boxed) -> Boxed:
        def call(args: list[Any]) -> list[Any]:
            for number, size in sizes.items():
                args[number] = args[number][:size]
            return run(args)

        return takes_list(call)

    return complete


def _with_stretches(
    gm: GraphModule,
    arguments: list[Node],
    stretches: dict[Node, tuple[int, int]],
    readers: dict[Node, Node],
) -> GraphModule:
    graph, copies, stretch_of = Graph(), dict[Node, Node](), dict[Node, Node]()
    for node in gm.graph.nodes:
        if node not in readers:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        else:
            stretch = stretch_of[readers[node]]
            size, step, begin = _place(node)
            begin -= stretches[readers[node]][0]
            dtype = node.meta["val"].dtype
            line = graph.call_function(aten.view.dtype, (stretch, dtype))
            line.meta["val"] = stretch.meta["val"].view(dtype)
            copies[node] = graph.call_function(node.target, (line, size, step, begin))
            copies[node].meta = dict(node.meta)
            copies[node].meta["val"] = line.meta["val"].as_strided(size, step, begin)
        if node is arguments[-1]:
            for owner, (begin, end) in stretches.items():
                stretch = stretch_of[owner] = graph.placeholder(f"around_{owner.name}")
                stretch.meta["val"] = owner.meta["val"].new_empty(end - begin)
    return GraphModule(gm, graph)


def _passing(stretches: list[tuple[int, int, int]]) -> Callable[[Boxed], Boxed]:
    def complete(run: Boxed) -> Boxed:
        def call(args: list[Any]) -> list[Any]:
            for number, begin, end in stretches:
                args.append(args[number].detach().as_strided((end - begin,), (1,), begin))
            return run(args)

        return takes_list(call)

    return complete


def _written(arguments: list[Node]) -> set[int]:
    """The storages that the function writes to, in the graph or when it has run."""
    names = written_arguments() or ()
    return {
        storage_of(node)
        for node in arguments
        if isinstance(node.meta.get("val"), torch.Tensor)
        and node.meta["val"].layout is torch.strided
        and (
            str(node.target) in names
            or any(u.target is aten.copy_.default and u.args[0] is node for u in node.users)
        )
    }


def _check_write(node: Node, written: set[int]) -> None:
    owner: Any = node
    while owner.target is aten.as_strided_scatter.default:  # one write after the other
        owner = root(owner.args[0], same_type=True)
    of_argument = owner.op == "placeholder" and storage_of(owner) in written
    if of_argument and not _shows(owner.meta["val"], node):
        raise outside(node.target, "writes", location(node))


def _place(node: Node) -> tuple[list[int], list[int], int]:
    """Size, stride and offset that a node of `as_strided` or `as_strided_scatter` has."""
    given: Any = node.args
    first = 2 if node.target is aten.as_strided_scatter.default else 1
    size, step, *rest = given[first:]
    begin: Any = rest[0] if rest else node.kwargs.get("storage_offset")
    if begin is None:
        begin = given[0].meta["val"].storage_offset()
    return [int(n) for n in size], [int(n) for n in step], int(begin)


def _extent(node: Node) -> tuple[int, int]:
    """From where to where in its storage a node reads or writes."""
    size, step, begin = _place(node)
    return begin, begin + span(size, step)


def _shows(x: torch.Tensor, node: Node) -> bool:
    """Whether a tensor has all elements that a node reads or writes."""
    if memory_order(x) is None:
        return bool(np.isin(positions(*_place(node)), held_positions(x)).all())
    first, (begin, end) = int(x.storage_offset()), _extent(node)
    return begin == end or (first <= begin and end <= first + x.numel())
