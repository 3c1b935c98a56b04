"""Updates of updates: which of them can be one memory that changes in place.

Tensor IR has no memory. A buffer that a program writes in several places is a chain of updates,
each of the one before, and a write to a view of the buffer (`cache[3][:, p] = x`) is nested: an
update of a slice, put back where the slice was taken. Both are recognised by comparing layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.lowering.classify import SOFT, UPDATES, VIEWS, is_hard
from neuronxcc.lowering.geometry.layout import Layout, contiguous, unviewed, viewed
from neuronxcc.lowering.geometry.progressions import fixed_places


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


def late_readers(graph: Graph, following: Mapping[Node, Node]) -> dict[Node, list[Node]]:
    """For updates in place what reads the content before, comes later in the program, but need not.

    Args:
        graph: Of the updates.
        following: See `versions`.
    """
    found: dict[Node, list[Node]] = {}
    users: dict[Node, list[Node]] = {}
    for old, new in following.items():
        users = users or graph.users()
        writer = new
        while (inner := enclosed(writer, Layout(contiguous(writer.shape)))) is not None:
            writer = inner[0]
        late = [n for n in _reached(old, users, SOFT) if n.serial > writer.serial and is_hard(n)]
        if not late:
            continue
        dependent = _reached(writer, users, frozenset(Op))
        late = [node for node in late if node not in dependent and node is not writer]
        # Where each of two updates waits for a reader of the other, none is moved.
        if late and not any(dependent.intersection(others) for others in found.values()):
            found[writer] = late
    return found


def _reached(node: Node, users: Mapping[Node, Sequence[Node]], through: frozenset[Op]) -> set[Node]:
    """All that computes with a node, on paths that lead through nodes of these operators."""
    found: set[Node] = set()
    pending = [node]
    while pending:
        for user in users.get(pending.pop(), ()):
            if user not in found:
                found.add(user)
                if user.op in through:
                    pending.append(user)
    return found


def value(node: Node) -> Node:
    """The elements that an update puts in place of old ones."""
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


def in_step(node: Node, src: Node) -> bool:
    """Return whether a tensor shows just the elements that an update replaces, in place."""
    places = _places(node, src)
    return places is not None and src.shape == value(node).shape and _same(src.shape, *places)


def unchanged(node: Node) -> bool:
    """Return whether an update puts the element that has been there, or was put before."""
    new, old = value(node), node.srcs[0]
    if in_step(node, new):
        return True
    # What the update before has put there.
    before = old.op in UPDATES and fixed_places(old) is not None
    return before and value(old) is new and fixed_places(old) == fixed_places(node)


def _places(node: Node, src: Node) -> tuple[Layout, Layout] | None:
    """Where an update writes and where another tensor lies, in memory of what both are views of."""
    old = node.srcs[0]
    base, held = _over(src, _views(old))
    if base is None or held is None:
        return None
    whole = _over(old, {base})[1]
    if whole is None:
        return None
    if any(n > 1 and not s for n, s in zip(old.shape, whole.strides, strict=True)):
        return None  # its elements share memory
    there = window(node, whole)
    return None if there is None else (there, held)


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
    inner = _moved(value(node), window(node, layout))
    if inner is None or inner[0].op not in UPDATES:
        return None
    places = _places(node, inner[0].srcs[0])
    if places is None:
        return None
    wanted = _moved(value(node), places[0])
    return inner if wanted is not None and _same(wanted[0].shape, wanted[1], places[1]) else None


def _views(node: Node) -> set[Node]:
    """A node and all that it is a view of."""
    found = {node}
    while node.op in VIEWS:
        node = node.srcs[0]
        found.add(node)
    return found


def _over(node: Node, bases: set[Node]) -> tuple[Node | None, Layout | None]:
    """The first of `bases` that a node is a view of, and its layout if the base is contiguous."""
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
    """The node that a node views, every element once, and its layout given that of the view."""
    while layout is not None and node.op in VIEWS:
        strides = unviewed(node, layout.strides)
        layout = None if strides is None else Layout(strides, layout.offset)
        node = node.srcs[0]
    return None if layout is None else (node, layout)


def _same(shape: tuple[int, ...], a: Layout, b: Layout) -> bool:
    pairs = zip(shape, a.strides, b.strides, strict=True)
    return a.offset == b.offset and all(n == 1 or s == t for n, s, t in pairs)
