"""Which rows and columns a group is computed by, and which of its nodes are equal."""

from __future__ import annotations

import functools
import math
from typing import Any, Final

from neuronxcc.ir.node import Node
from neuronxcc.ir.op import Op
from nki.device.emitter import PARTITIONS
from nki.device.groups import Group, Space, is_number
from nki.device.views import collapsed

__all__ = ["MOST_COLUMNS", "equal_nodes", "space_of", "spread_of"]

MOST_COLUMNS: Final = 4096  # of a block
_LONG = 1024  # columns of a single row that are worth being spread over partitions
_FEW_COLUMNS = 512  # below that instructions and transfers are mostly overhead
_MOST_BLOCKS = 64  # of a core in which a dense tensor of awkward size is computed
_SHARED: Final = frozenset(
    {Op.ADD, Op.SUBTRACT, Op.MULTIPLY, Op.MAXIMUM, Op.MINIMUM, Op.CONVERT}
)  # operators whose equals are looked for


def _is_linear(group: Group, mine: set[Node]) -> bool:
    """Return whether all of a group is element by element in the order of memory."""
    size = group.nodes[0].type.size
    if group.stored or group.lines:
        return False
    for node in group.nodes:
        if node.op is Op.REDUCE or node.type.size != size:
            return False
        for source, view in group.uses[node]:
            if source in mine or is_number(source):
                continue
            dims = collapsed(view.dims)
            single = all(stride == 0 for _, stride in dims)
            if not single and not (len(dims) <= 1 and all(stride == 1 for _, stride in dims)):
                return False
    return True


@functools.lru_cache(4096)
def _factored(size: int, cores: int) -> Space:
    """Return rows and columns of a dense tensor that keep all partitions of all cores busy.

    The last row may be shorter than the others; it is a block of its own then.
    """
    best, chosen = math.inf, Space(1, size)
    divisors = [n for n in range(1, min(size, MOST_COLUMNS) + 1) if size % n == 0]
    uneven = [-(-size // (PARTITIONS * cores * blocks)) for blocks in range(1, _MOST_BLOCKS + 1)]
    for columns in (*divisors, *(n for n in uneven if n <= MOST_COLUMNS)):
        rows, rest = divmod(size, columns)
        blocks = -(-(-(-rows // PARTITIONS) + bool(rest)) // cores)
        spent = blocks * (max(columns, _FEW_COLUMNS // 4) + 64)
        if spent < best:
            best, chosen = spent, Space(rows + bool(rest), columns)
    return chosen


def spread_of(group: Group) -> Space | None:
    """Return rows over which the columns of a single row can lie; None if they cannot."""
    mine = set(group.nodes)
    (rows, size), *_ = sorted(group.spaces)
    kinds = {node["kind"] for node in group.nodes if node.op is Op.REDUCE}
    if rows > 1 or size < _LONG or size % PARTITIONS or group.stored or group.lines:
        return None
    if not kinds or not kinds <= {"add", "max", "min"}:
        return None
    for node in group.nodes:
        if node.type.size not in (1, size) or not node.dtype.is_float:
            return None
        for source, view in group.uses[node]:
            dims = collapsed(view.dims)
            dense = len(dims) <= 1 and all(stride in (0, 1) for _, stride in dims)
            if view.size not in (1, size) or (source not in mine and not dense):
                return None
    width = size // PARTITIONS
    return Space(PARTITIONS, width) if width <= MOST_COLUMNS // 8 else None


def space_of(group: Group, cores: int = 1) -> tuple[Space, bool]:
    """Return rows and columns by which a group is computed fastest, and whether it is linear.

    The last row of a linear group may be shorter.

    Args:
        group: of rows or of a product.
        cores: how many share the rows.
    """
    mine = set(group.nodes)
    if group.kind == "rows" and _is_linear(group, mine):
        return _factored(group.nodes[0].type.size, cores), True

    def spent(space: Space) -> float:
        rows, columns = space
        blocks = -(-rows // (PARTITIONS * cores)) * -(-columns // MOST_COLUMNS)
        return blocks * (max(min(columns, MOST_COLUMNS), _FEW_COLUMNS // 4) + 64)

    return min(group.spaces, key=spent), False


def equal_nodes(group: Group) -> dict[Node, Node]:
    """Return of nodes that compute what an earlier one does, which that is."""
    found: dict[Node, Node] = {}
    known: dict[Any, Node] = {}
    for node in group.nodes:
        if node.op not in _SHARED:
            continue
        uses = tuple((found.get(u.source, u.source), u.view) for u in group.uses[node])
        kind = "line" if node in group.lines else node.shape
        first = known.setdefault((node.op, node.dtype, kind, uses), node)
        if first is not node:
            found[node] = first
    return found
