"""When a kernel computes a tensor: the decisions of fusion, about one cluster and one node each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from neuronxcc.ir.dtypes import DType
from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from neuronxcc.ir.table import Group
from neuronxcc.lowering.classify import BIJECTIVE, REDUCTIONS, SOFT, VIEWS, is_slow, splat_value
from neuronxcc.lowering.fusion.cluster import Cluster, reduced_extents
from neuronxcc.lowering.geometry import index as ix
from neuronxcc.lowering.geometry.index import At, Index
from neuronxcc.lowering.geometry.sources import Source

MAX_WORK = 128  # operations of a kernel
MAX_OPEN = 24  # tensors that a kernel reads
MAX_POSITIONS = 3  # at which a kernel computes one tensor
MAX_ARMS = 4  # operands of a concatenation that is computed by choosing
MIN_ROWS = 8  # rows below which a long reduction is not done row by row
LONG = 1 << 16  # elements
FEW_LINES = 16  # of a product, which are read as they are (the thin methods of csrc/gemm)
SMALL_PRODUCT = 1 << 20  # multiplications
MADE_TYPES = frozenset({DType.F32})  # others are rearranged once more to pairs
LEAST_LEFT = 4 << 20  # bytes: a smaller left operand is better read where it is
MOST_LINES = (2048, 1024)  # columns for which a left operand is made, rows for a right one
MAX_MADE = 16  # tensors with which an operand is made
TINY = 128  # bytes: a step of its own costs more than computing that again


def accepts(cluster: Cluster, node: Node) -> bool:
    """Return whether a cluster may compute a node that it wants. May prepare its space for that."""
    opened = len(cluster.wants) - len(cluster.inside)
    if cluster.work > MAX_WORK or (opened > MAX_OPEN and len(node.srcs) > 1):
        return False
    if cluster.has_updates and not recomputed(node):
        return False  # updates run on few threads
    if cluster.kind != "loop" and not _suits_product(cluster, node):
        return False
    if node.op is Op.CONCATENATE and len(node.srcs) > MAX_ARMS:
        return False
    return _reduces(cluster, node) if node.op in REDUCTIONS else _computes(cluster, node)


def _suits_product(cluster: Cluster, node: Node) -> bool:
    """Return whether a node may be computed as part of a product or convolution."""
    if cluster.kind == "conv" and node.type.size < cluster.points(cluster.order):
        return False  # what is the same for many results (constants of a normalisation): once
    if cluster.kind == "operand" and is_slow(node):
        return False  # computed again for every block of the product
    return node.op in Group.ELEMENTWISE


def _computes(cluster: Cluster, node: Node) -> bool:
    """Return whether few enough of a node's elements would be computed more than once."""
    wanted = cluster.wants[node]
    if not is_slow(node):
        return len(wanted) <= MAX_POSITIONS
    return sum(cluster.points(ix.axes_of_at(at)) for at in wanted) <= node.type.size


def _reduces(cluster: Cluster, node: Node) -> bool:
    """Return whether a reduction can run over the cluster's space; prepares the space for it."""
    wanted = cluster.wants[node]
    if len(wanted) != 1 or cluster.has_updates:
        return False
    (at,) = wanted
    axes = ix.axes_of_at(at)
    once = cluster.points(axes) == node.type.size and not axes & cluster.reduced
    if at.mask or not once or not all(map(ix.is_affine, at.coords)):
        return False
    extents = reduced_extents(node)
    if _too_long(math.prod(extents), cluster.points(axes)):
        return False
    free = [axis for axis in cluster.order if axis not in axes]
    if free:
        return _reduces_along(cluster, node, free)
    if cluster.order and not axes:
        return False
    for extent in extents:
        cluster.new_axis(extent, reduced=True)
    return True


def _reduces_along(cluster: Cluster, node: Node, free: list[int]) -> bool:
    """Return whether a reduction can run along the axes on which its results do not depend."""
    if cluster.points(free) != math.prod(reduced_extents(node)):
        return False
    if node.op is Op.ARG_REDUCE and len(free) > 1:
        return False
    if cluster.reduced:
        return set(free) == cluster.reduced and _unflattens(cluster, node)
    cluster.reduced.update(free)
    if _unflattens(cluster, node):
        return True
    cluster.reduced.clear()
    return False


def _unflattens(cluster: Cluster, node: Node) -> bool:
    over: list[Index] = []

    def compute() -> None:
        over[:] = cluster.reduced_coords(node)

    cluster.affine(compute)
    return all(map(ix.is_affine, over))


def recomputed(node: Node) -> bool:
    """Return whether several kernels compute the node each for itself rather than read it."""
    if is_slow(node) or node.op in (Op.CONCATENATE, Op.PAD):
        return False
    if node.type.nbytes <= TINY:
        return True
    # An operand per row or column beside one full operand is next to nothing.
    return sum(_bytes_read(src) for src in set(node.srcs)) <= 1.25 * node.type.nbytes


def _bytes_read(node: Node) -> int:
    """Bytes of the tensor from which a node's elements come."""
    size = node.type.nbytes
    while node.op in VIEWS:
        node = node.srcs[0]
        size = min(size, node.type.nbytes)
    return 0 if node.op is Op.IOTA or splat_value(node) else size


def makes(dot: Node, side: int, node: Node, own: Callable[[Node], bool]) -> bool:
    """Return whether a product had better compute an operand while it reads it.

    Args:
        dot: The product.
        side: 0 for the left operand, 1 for the right one.
        node: What the operand is, or is a view of.
        own: Whether a node is wanted by one other node only, so that it need not be stored.
    """
    if node.op not in Group.ELEMENTWISE or node.dtype not in MADE_TYPES:
        return False
    if side == 0 and node.type.nbytes < LEAST_LEFT:
        return False
    lhs, rhs = dot.srcs
    batch = math.prod(lhs.shape[d] for d in dot["lhs_batch"])
    depth = math.prod(lhs.shape[d] for d in dot["lhs_contract"])
    rows, columns = (src.type.size // (batch * depth) for src in (lhs, rhs))
    # Few rows or columns are multiplied without rearranging; small products are over soon anyway.
    if min(rows, columns) <= FEW_LINES or rows * columns * depth * batch < SMALL_PRODUCT:
        return False
    # Every block of the other operand computes this one again.
    return (columns, rows)[side] <= MOST_LINES[side] and _reads_little(node, own)


def _reads_little(node: Node, own: Callable[[Node], bool]) -> bool:
    """Return whether a node is cheap to compute, together with what is there for it alone."""
    read = 0
    pending, seen = [node], {node}
    while pending:
        found = pending.pop()
        if is_slow(found) or len(seen) > MAX_MADE:
            return False
        for src in found.srcs:
            base = src
            while base.op in VIEWS and own(base):
                base = base.srcs[0]
            if base in seen:
                continue
            seen.add(base)
            full = base.type.size * 8 > node.type.size
            if base.op in Group.ELEMENTWISE and own(base) and full:
                pending.append(base)
            else:
                read += _bytes_read(base)
    return read <= 1.25 * node.type.nbytes


def may_host(cluster: Cluster, node: Node) -> bool:
    """Return whether a cluster may store a node besides what it is for."""
    if cluster.kind != "loop" or cluster.has_updates or node.op is Op.CONCATENATE:
        return False
    return accepts(cluster, node)


def covers(cluster: Cluster, node: Node) -> bool:
    """Return whether the cluster computes every element of the node once, to store it.

    May make rows of the cluster: the node is then stored once per row.
    """
    return _covers(cluster, node) or (_make_rows(cluster, node) and _covers(cluster, node))


def _covers(cluster: Cluster, node: Node) -> bool:
    wanted = cluster.wants[node]
    if len(wanted) != 1:
        return False
    (at,) = wanted
    axes = ix.axes_of_at(at)
    if at.mask or not axes.issuperset(cluster.parallel):
        return False
    if axes & cluster.reduced and not axes.issuperset(cluster.reduced):
        return False
    # The digits of the element's number: each axis counts where the one below it ends.
    flat = ix.flatten(at.coords, node.shape)
    step = 1
    for coefficient, extent in sorted(
        (a, cluster.extents[t]) for t, a in flat.terms if isinstance(t, int)
    ):
        if coefficient != step:
            return False
        step *= extent
    return step == node.type.size == cluster.points(axes) and flat.offset == 0


def _make_rows(cluster: Cluster, node: Node) -> bool:
    """Reduce over the axes on which a node does not depend, if it follows from a reduction.

    Then the cluster stores the node once per row, and the reduction itself comes later.
    """
    if cluster.reduced or cluster.has_updates or len(cluster.wants[node]) != 1:
        return False
    (at,) = cluster.wants[node]
    axes = ix.axes_of_at(at)
    free = [axis for axis in cluster.order if axis not in axes]
    length = cluster.points(free)
    if not free or at.mask or _too_long(length, cluster.points(axes)):
        return False
    reduction = _row_source(node)
    if reduction is None or math.prod(reduced_extents(reduction)) != length:
        return False
    cluster.reduced.update(free)
    return True


def _row_source(node: Node) -> Node | None:
    """The reduction from whose results a node of the same number of elements is computed."""
    pending = [node]
    for _ in range(16):
        if not pending:
            return None
        found = pending.pop()
        if found.op is Op.REDUCE:
            return found
        if found.op in Group.ELEMENTWISE or found.op in BIJECTIVE:
            pending.extend(src for src in found.srcs if src.type.size == node.type.size)
    return None


def _too_long(length: int, rows: int) -> bool:
    """Return whether too few threads would find work if every row were one's."""
    return rows < MIN_ROWS and length * rows > LONG


def reads(node: Node) -> set[Node]:
    """The large tensors from which a node is computed, as far as a short look shows."""
    found: set[Node] = set()
    pending = [node]
    for _ in range(24):
        if not pending:
            break
        source = pending.pop()
        if source.op in Group.ELEMENTWISE or source.op in VIEWS:
            pending.extend(source.srcs)
        elif 2 * source.type.size >= node.type.size and source.op is not Op.IOTA:
            found.add(source)
    return found


def leaves(node: Node) -> set[Node]:
    """The sources of a node through nodes that are computed anywhere, after a short look."""
    found: set[Node] = set()
    pending = list(node.srcs)
    for _ in range(24):
        if not pending:
            break
        source = pending.pop()
        if source.op in SOFT:
            pending.extend(source.srcs)
        else:
            found.add(source)
    return found


def affine(cluster: Cluster, traced: Mapping[At, tuple[Source, ...]]) -> bool:
    """Return whether positions are cheap to compute.

    A quotient is, if it is the same for a whole row of a product.
    """
    for at, srcs in traced.items():
        for _, where in srcs:
            quotients = [c for c in where.coords if not ix.is_affine(c)]
            if quotients and cluster.kind == "loop" and all(map(ix.is_affine, at.coords)):
                return False
            if any(cluster.order[-1] in ix.axes_of(c) for c in quotients):
                return False
    return True
