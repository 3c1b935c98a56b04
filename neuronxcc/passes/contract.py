"""Products in one form: no transposed operand where renaming dimensions does, no extents of 1."""

from __future__ import annotations

from collections.abc import Sequence

from neuronxcc.ir import build
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.passes.match import fill
from neuronxcc.passes.rules import Rule, rule


@rule("product over nothing", Op.DOT_GENERAL, Op.CONVOLUTION)
def over_nothing(node: Node) -> Node | None:
    """An empty sum is 0."""
    if all(src.type.size for src in node.srcs) or not node.type.size:
        return None
    return fill(0, node.type)


@rule("product of a transpose", Op.DOT_GENERAL)
def of_transpose(node: Node) -> Node | None:
    """Name the dimensions of the operand, if its free ones keep their order."""
    srcs, attrs = list(node.srcs), node.attrs
    for side, src in zip(("lhs", "rhs"), node.srcs, strict=True):
        if src.op is not Op.TRANSPOSE:
            continue
        order = src["permutation"]
        used = (*attrs[f"{side}_batch"], *attrs[f"{side}_contract"])
        free = [order[d] for d in range(src.type.rank) if d not in used]
        if free != sorted(free):
            continue
        srcs[0 if side == "lhs" else 1] = src.srcs[0]
        for role in ("batch", "contract"):
            attrs[f"{side}_{role}"] = tuple(order[d] for d in attrs[f"{side}_{role}"])
    return build.make(Op.DOT_GENERAL, srcs, **attrs) if tuple(srcs) != node.srcs else None


@rule("product of extents of 1", Op.DOT_GENERAL)
def of_ones(node: Node) -> Node | None:
    """Drop them from the operands and put them back into the result."""
    if all(1 not in src.shape for src in node.srcs):
        return None
    lhs, lhs_kept = _without_ones(node.srcs[0])
    rhs, rhs_kept = _without_ones(node.srcs[1])

    def renamed(name: str, kept: Sequence[int]) -> tuple[int, ...]:
        return tuple(kept.index(d) for d in node[name] if d in kept)

    product = build.dot_general(
        lhs,
        rhs,
        lhs_batch=renamed("lhs_batch", lhs_kept),
        rhs_batch=renamed("rhs_batch", rhs_kept),
        lhs_contract=renamed("lhs_contract", lhs_kept),
        rhs_contract=renamed("rhs_contract", rhs_kept),
        dtype=node["dtype"],
    )
    return build.reshape(product, node.shape)


def _without_ones(x: Node) -> tuple[Node, list[int]]:
    kept = [d for d, n in enumerate(x.shape) if n != 1]
    return build.reshape(x, [x.shape[d] for d in kept]), kept


RULES: tuple[Rule, ...] = (over_nothing, of_transpose, of_ones)
