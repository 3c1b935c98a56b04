"""Constant folding: what depends on constants only is computed now, by the reference."""

from __future__ import annotations

import math

from neuronxcc.ir import build
from neuronxcc.ir.arithmetic import Array
from neuronxcc.ir.node import Literal, Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.reference import apply
from neuronxcc.ir.table import Group
from neuronxcc.passes.rules import Rule, rule

MOST_ELEMENTS = 1 << 14  # of a folded tensor and of its operands
FREELY = 1 << 10  # a folded tensor may be larger than the constants it is made of up to this
MOST_WORK = 1 << 18  # multiplications, or elements taken one by one

# The reference goes through these element by element in Python, or they do much per element.
_LABORIOUS = frozenset(
    {
        *(Op.GATHER, Op.SCATTER, Op.SELECT_AND_SCATTER, Op.REDUCE_WINDOW, Op.CONVOLUTION),
        *(Op.ERF, Op.ERFC, Op.ERFINV, Op.NORMAL_CDF, Op.LGAMMA, Op.DIGAMMA),
    }
)
_FOLDABLE = (
    Group.ELEMENTWISE
    | (Group.MOVEMENT - {Op.BROADCAST_IN_DIM})
    | _LABORIOUS
    | {Op.DOT_GENERAL, Op.REDUCE, Op.ARG_REDUCE, Op.CUMULATIVE}
)


def _constant(node: Node) -> bool:
    """A constant, or a splat of one that is small enough to be spelt out."""
    if node.op is Op.BROADCAST_IN_DIM:
        node = node.srcs[0]
    return node.op is Op.CONSTANT


def _small(*nodes: Node) -> bool:
    return all(t.size <= MOST_ELEMENTS for node in nodes for t in node.types)


def _work(node: Node) -> int:
    if node.op is Op.DOT_GENERAL:
        extents: list[int] = [node.srcs[0].shape[d] for d in node["lhs_contract"]]
        return node.type.size * math.prod(extents)
    if node.op is Op.CONVOLUTION:
        return node.type.size * node.srcs[1].type.size
    return 64 * node.type.size if node.op in _LABORIOUS else 0


@rule("constant folding", *_FOLDABLE)
def fold(node: Node) -> Node | None:
    """Evaluate. Movement of splats is left to rules that keep them splats."""
    if not node.srcs or not all(map(_constant, node.srcs)) or not _small(node, *node.srcs):
        return None
    if _work(node) > MOST_WORK:
        return None
    if node.op not in Group.ELEMENTWISE and all(s.op is not Op.CONSTANT for s in node.srcs):
        return None
    literals = [src if src.op is Op.CONSTANT else src.srcs[0] for src in node.srcs]
    if node.type.size > max(FREELY, *(literal.type.size for literal in literals)):
        return None
    operands = [_array(src) for src in node.srcs]
    return build.constant(apply(node, operands)[0])


@rule("constant folding of several results", Op.GET)
def fold_several(node: Node) -> Node | None:
    """Sorting of constants."""
    (several,) = node.srcs
    if several.op not in (Op.SORT, Op.TOPK) or not _small(several, *several.srcs):
        return None
    if not all(map(_constant, several.srcs)):
        return None
    return build.constant(apply(several, [_array(src) for src in several.srcs])[node["index"]])


def _array(node: Node) -> Array:
    if node.op is Op.CONSTANT:
        literal: Literal = node["literal"]
        return literal.array
    return apply(node, [_array(node.srcs[0])])[0]


RULES: tuple[Rule, ...] = (fold, fold_several)
