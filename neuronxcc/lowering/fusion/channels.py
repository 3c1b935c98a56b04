"""Which images have their channels last in memory.

Convolutions read either layout and write the one that they are told to, so no step of its own ever
changes a layout. What is computed from images pixel by pixel, or by sliding windows over them,
should find all its operands in one layout: such nodes form a class, and a class has the layout that
most of its bytes are better off with. What the caller gave or was promised counts as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import VIEWS
from neuronxcc.lowering.fusion.convolve import is_convolution
from neuronxcc.lowering.geometry.layout import Strides, contiguous, unviewed

FEW = 16  # channels: with fewer of them vectors lie better along the pixels

# Bytes gained per byte of a tensor by having channels last, in passes over it.
_WRITTEN = 0.5  # by a convolution: sums come channels first from its kernels
_WINDOW = 2.0  # windows read neighbouring pixels, vectors of channels are then whole
_COPIED = 2.0  # read and written once more
_READ = 1.0  # across the layout

# Nodes whose operands and results are images alike.
_SAME = Group.ELEMENTWISE | {Op.REDUCE_WINDOW, Op.PAD, Op.CONCATENATE, Op.SLICE}


def last_strides(shape: Sequence[int]) -> Strides:
    """Dense strides of (images, channels, rows, columns) with the channels last."""
    n, c, h, w = shape
    image, row, column, channel = contiguous((n, h, w, c))
    return image, channel, row, column


def channels_last(
    graph: Graph,
    order: Iterable[Node],
    param_strides: Sequence[Strides],
    result_strides: Sequence[Strides],
) -> frozenset[Node]:
    """The images that should have their channels last.

    Args:
        graph: What is lowered.
        order: Its nodes, operands first.
        param_strides: Of every parameter.
        result_strides: Of every result.
    """
    order = list(order)
    if not any(map(is_convolution, order)):
        return frozenset()
    classes = _Classes()
    for node in order:
        _vote(classes, node)
        if node.op in _SAME and _is_image(node):
            for src in node.srcs:
                if _is_image(src) and src.shape[0] == node.shape[0]:
                    classes.join(node, src)
    for param, strides in zip(graph.params, param_strides, strict=True):
        classes.vote(param, _READ * _liking(param, strides))
    for i, (node, strides) in enumerate(zip(graph.results, result_strides, strict=True)):
        target = graph.aliases.get(i)
        wanted = strides if target is None else param_strides[target]
        base, found = _base(node, wanted)
        if found is not None:
            classes.vote(base, _COPIED * _liking(base, found))
    return classes.chosen(filter(_is_image, order))


def _is_image(node: Node) -> bool:
    return len(node.types) == 1 and node.type.rank == 4


def _vote(classes: _Classes, node: Node) -> None:
    """A node's gain or loss, as the node that is computed or as the reader of its operand."""
    if is_convolution(node):
        classes.convolutions.add(node)
        few = node.shape[1] < FEW
        classes.vote(node, -_COPIED if few else _WRITTEN)
    elif node.op is Op.REDUCE_WINDOW and node.type.rank == 4 and node["window"][1] == 1:
        classes.vote(node.srcs[0], _WINDOW)
    elif (
        node.op is Op.RESHAPE
        and _is_image(node.srcs[0])
        and node.shape[:2] != node.srcs[0].shape[:2]
    ):
        classes.vote(node.srcs[0], -_COPIED)


def _base(node: Node, strides: Strides) -> tuple[Node, Strides | None]:
    """The node that a result is a view of, and the strides it has if the result has these."""
    found: Strides | None = strides
    while node.op in VIEWS and found is not None:
        found = unviewed(node, found)
        node = node.srcs[0]
    return node, found


def _liking(node: Node, strides: Strides) -> int:
    """1 for a layout with channels last, -1 for one without, 0 for what is no image."""
    if not _is_image(node):
        return 0
    return 1 if strides == last_strides(node.shape) else -1


class _Classes:
    """Sets of nodes with one layout (a forest, whose roots stand for them), and their votes."""

    def __init__(self) -> None:
        self.parent: dict[Node, Node] = {}
        self.votes: dict[Node, float] = {}
        self.convolutions: set[Node] = set()

    def root(self, node: Node) -> Node:
        while node in self.parent:
            node = self.parent[node]
        return node

    def join(self, a: Node, b: Node) -> None:
        a, b = self.root(a), self.root(b)
        if a is not b:
            self.parent[a] = b
            self.votes[b] = self.votes.get(b, 0) + self.votes.pop(a, 0)

    def vote(self, node: Node, weight: float) -> None:
        """Count a weight for every byte of a node; where both layouts are one, it says nothing."""
        if not _is_image(node) or node.shape[1] == 1 or math.prod(node.shape[2:]) == 1:
            return
        root = self.root(node)
        self.votes[root] = self.votes.get(root, 0) + weight * node.type.nbytes

    def chosen(self, nodes: Iterable[Node]) -> frozenset[Node]:
        """Those of classes with a convolution, most of whose bytes want it."""
        convolved = {self.root(node) for node in self.convolutions}
        return frozenset(
            node
            for node in nodes
            if self.root(node) in convolved and self.votes.get(self.root(node), 0) > 0
        )
