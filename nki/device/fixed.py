"""What depends on weights and constants alone: it is computed once, when a program is loaded.

Weights are converted and turned then, so that every product finds its operands with k over
partitions, and masks and positions are there. In training weights change, and nothing is fixed but
constants.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from neuronxcc.ir import build
from neuronxcc.ir.graph import Graph
from neuronxcc.ir.node import Node, TensorType
from neuronxcc.ir.op import Op
from nki.device.pointwise import POINTWISE
from nki.device.views import MOVES, Sources, View, collapsed, contiguous

__all__ = ["NOTHING", "Fixed", "prepared"]


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """What is computed when a program is loaded.

    Attributes:
        nodes: all of it.
        moved: of these, operators of movement whose elements are copied.
    """

    nodes: frozenset[Node]
    moved: frozenset[Node]


NOTHING: Final = Fixed(frozenset(), frozenset())
_COMPUTED: Final = frozenset({*POINTWISE, *MOVES, Op.REDUCE, Op.CONCATENATE, Op.PAD})
_TILE: Final = 128  # rows of k
_LONG_ROW: Final = 4096  # bytes of a row with which transfers reach their rate
_SMALL: Final = 1 << 12  # elements: below that turning costs nothing


def prepared(graph: Graph, weights: Collection[int]) -> tuple[Graph, Fixed]:
    """Return a graph whose products have turned weights, and what of it is fixed.

    Args:
        graph: without calls.
        weights: numbers of the parameters that never change.
    """
    moved: set[Node] = set()
    known: dict[Node, bool] = {}
    sources = Sources()

    def fixed(node: Node) -> bool:
        """Return whether a node is fixed whose operands are known."""
        if node.op is Op.PARAMETER:
            return node["index"] in weights
        if node.op in (Op.CONSTANT, Op.IOTA):
            return True
        return node.op in _COMPUTED and all(known[src] for src in node.srcs)

    def rule(node: Node) -> Node | None:
        known[node] = fixed(node)
        if node.op is Op.IOTA and node.type.rank > 1:
            return _flat_iota(node, known)
        if node.op is Op.CONVERT:
            return _converted_before(node, known)
        if node.op is Op.DOT_GENERAL:
            return _turned(node, known, moved, sources)
        return None

    made = graph.rewrite(rule)
    nodes = frozenset(n for n in made.nodes() if known.get(n) and n.op is not Op.PARAMETER)
    return made, Fixed(nodes, frozenset(moved & nodes))


_REORDERS: Final = frozenset({Op.RESHAPE, Op.TRANSPOSE, Op.REVERSE, Op.BROADCAST_IN_DIM})


def _converted_before(node: Node, known: dict[Node, bool]) -> Node | None:
    """Return a conversion of what is moved, moved: who computes a value can write its type."""
    moves: list[Node] = []
    source = node.srcs[0]
    while source.op in _REORDERS:
        moves.append(source)
        source = source.srcs[0]
    if not moves or source.op in (Op.PARAMETER, Op.CONSTANT, Op.IOTA):
        return None
    if node.dtype.itemsize >= source.dtype.itemsize or len(source.types) != 1:
        return None
    made = build.convert(source, node.dtype)
    known[made] = known[source]
    for move in reversed(moves):
        made = Node.make(move.op, TensorType(node.dtype, move.shape), (made,), move.attrs)
        known[made] = known[source]
    return made


def _flat_iota(node: Node, known: dict[Node, bool]) -> Node:
    """Return positions along one dimension, seen in all of them."""
    dim = node["dim"]
    line = build.iota(node.dtype, (node.shape[dim],), 0)
    made = build.broadcast_in_dim(line, node.shape, (dim,))
    known[line] = known[made] = True
    return made


def _is_short(turned: Node, batch: tuple[int, ...], inner: tuple[int, ...]) -> bool:
    """Return whether rows of a matrix (k, n) are shorter than transfers should have them."""
    deep, width = turned.shape[0], turned.type.size // max(1, turned.shape[0])
    plain = not batch and len(inner) == 1 and turned.type.rank == 2
    tiles = deep > _TILE and deep % _TILE == 0
    return plain and tiles and width * turned.dtype.itemsize < _LONG_ROW


def _packed(node: Node, turned: Node, known: dict[Node, bool], moved: set[Node]) -> Node:
    """Return a product whose right operand lies so that a partition's rows of k are neighbours.

    What is (k, n) is kept as (128, k / 128, n): a transfer moves several rows of k at once.
    """
    deep, width = turned.shape
    tiles = deep // _TILE
    parts = build.transpose(build.reshape(turned, (tiles, _TILE, width)), (1, 0, 2))
    seen = build.transpose(parts, (1, 0, 2))
    if seen.op not in MOVES or seen.srcs[0] is not parts:
        # The builder has undone both: they are made as they are meant.
        seen = Node.make(
            Op.TRANSPOSE, TensorType(parts.dtype, (tiles, _TILE, width)), (parts,),
            {"permutation": (1, 0, 2)},
        )  # fmt: skip
    moved.add(parts)
    left = node.srcs[0]
    (k,) = node["lhs_contract"]
    shape = (*left.shape[:k], tiles, _TILE, *left.shape[k + 1 :])
    split = build.reshape(left, shape)
    for made in (turned, parts, *parts.srcs, seen):
        known[made] = True
    known[split] = known[left]
    attrs = dict(node.attrs)
    attrs |= {"lhs_contract": (k, k + 1), "rhs_contract": (0, 1), "rhs_batch": ()}
    result = Node.make(Op.DOT_GENERAL, node.types, (split, seen), attrs)
    known[result] = known[node]
    return result


def _in_order(view: View) -> bool:
    """Return whether elements lie in memory in the order in which they are seen."""
    return collapsed(view.dims) == collapsed(contiguous(view.shape).dims)


def _turned(node: Node, known: dict[Node, bool], moved: set[Node], sources: Sources) -> Node | None:
    """Return a product whose fixed operands lie with k before what they have of the result."""
    srcs = list(node.srcs)
    attrs = dict(node.attrs)
    for number, side in enumerate(("lhs", "rhs")):
        src = node.srcs[number]
        if not known[src] or src.type.size < _SMALL or src.op is Op.CONSTANT:
            continue
        batch, inner = node[f"{side}_batch"], node[f"{side}_contract"]
        outer = tuple(d for d in range(src.type.rank) if d not in {*batch, *inner})
        order = (*batch, *inner, *outer)
        use = sources.of(src)
        as_is = use.view.permuted(order)
        if math.prod(src.shape[d] for d in inner) == 1 or _in_order(as_is):
            continue
        turned = build.transpose(src, order)
        if turned.op not in MOVES:
            continue
        if number == 1 and _is_short(turned, batch, inner):
            return _packed(node, turned, known, moved)
        known[turned] = True
        moved.add(turned)
        srcs[number] = turned
        attrs[f"{side}_batch"] = tuple(range(len(batch)))
        attrs[f"{side}_contract"] = tuple(range(len(batch), len(batch) + len(inner)))
    if srcs == list(node.srcs):
        return None
    made = Node.make(Op.DOT_GENERAL, node.types, srcs, attrs)
    known[made] = known[node]
    return made
