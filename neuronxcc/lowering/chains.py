"""Updates of updates: which of them can be one memory that changes in place.

Tensor IR has no memory. A buffer that a program writes in several places is a chain of updates, each
of the one before, and a write to a view of the buffer (`cache[3][:, p] = x`) is nested: an update of a
slice, put back where the slice was taken. Here both are recognised by comparing layouts.
"""

from __future__ import annotations

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.lowering.classify import UPDATES, VIEWS
from neuronxcc.lowering.layout import Layout, contiguous, unviewed, viewed
from neuronxcc.lowering.progressions import fixed_places


def versions(graph: Graph) -> dict[Node, Node]:
    """Contents of updated parameters, from the old one on, each with the update that replaces it.

    A parameter is here if nothing but updates leads from it to its new content.
    """
    following: dict[Node, Node] = {}
    for result, number in graph.aliases.items():
        node, chain = graph.results[result], []
        while node.op in UPDATES or node.op in VIEWS:
            if node.op in UPDATES:
                chain.append(node)
            node = node.srcs[0]
        if chain and node is graph.params[number]:
            for old, new in zip((*chain[1:], node), chain, strict=True):
                following.setdefault(old, new)
    return following


def value(node: Node) -> Node:
    """What an update puts in place of old elements."""
    return node.srcs[2] if node.op is Op.SCATTER else node.srcs[1]


def window(node: Node, layout: Layout) -> Layout | None:
    """Where the new elements of an update lie in memory that has this layout for the whole.

    None if that is not known now, or cannot be told by strides.
    """
    places = fixed_places(node)
    if places is None:
        return None
    offset = layout.offset + sum(p.start * s for p, s in zip(places, layout.strides, strict=True))
    strides = tuple(p.step * s for p, s in zip(places, layout.strides, strict=True))
    return Layout(strides, offset)


def enclosed(node: Node, layout: Layout) -> tuple[Node, Layout] | None:
    """The update that changes a part of what the given update's window held before.

    Args:
        node: An update.
        layout: Of the memory it is in.

    Returns:
        The other update and where it lies in the same memory; None if there is none. Then it is
        enough to do the inner update in the memory of the old content: outside of what it writes,
        the window has kept its elements.
    """
    old = node.srcs[0]
    inner = _moved(value(node), window(node, layout))
    if inner is None or inner[0].op not in UPDATES:
        return None
    base, held = _over(inner[0].srcs[0], _views(old))
    if base is None or held is None:
        return None
    whole = _over(old, {base})[1]
    if whole is None or any(n > 1 and not s for n, s in zip(old.shape, whole.strides, strict=True)):
        return None
    wanted = _moved(value(node), window(node, whole))
    if wanted is None or not _same(wanted[0].shape, wanted[1], held):
        return None
    return inner


def _views(node: Node) -> set[Node]:
    """A node and all that it is a view of."""
    found = {node}
    while node.op in VIEWS:
        node = node.srcs[0]
        found.add(node)
    return found


def _over(node: Node, bases: set[Node]) -> tuple[Node | None, Layout | None]:
    """The first of `bases` that a node is a view of, and its layout there if the base's is plain."""
    chain = []
    while node not in bases:
        if node.op not in VIEWS:
            return None, None
        chain.append(node)
        node = node.srcs[0]
    layout: Layout | None = Layout(contiguous(node.shape))
    for view in reversed(chain):
        layout = None if layout is None else viewed(view, layout)
    return node, layout


def _moved(node: Node, layout: Layout | None) -> tuple[Node, Layout] | None:
    """What a node is a view of, every element once, and its layout given that of the node."""
    while layout is not None and node.op in VIEWS:
        strides = unviewed(node, layout.strides)
        layout = None if strides is None else Layout(strides, layout.offset)
        node = node.srcs[0]
    return None if layout is None else (node, layout)


def _same(shape: tuple[int, ...], a: Layout, b: Layout) -> bool:
    pairs = zip(shape, a.strides, b.strides, strict=True)
    return a.offset == b.offset and all(n == 1 or s == t for n, s, t in pairs)
